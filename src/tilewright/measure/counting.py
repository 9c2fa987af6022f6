"""What kernels do for a problem, counted on an emulated GPU, next to what their estimates say.

Counts are not times: they say how much each unit has to do, and nothing of what overlaps or waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dispatch import Dispatcher
from tilewright.emulate.counts import Counted
from tilewright.errors import BadArgument
from tilewright.ops.estimate import Estimate
from tilewright.verify import Check, verify


@dataclass(frozen=True, slots=True)
class Executed:
    """One kernel that a launch executed.

    name: of the kernel, with its part if the config has several.
    workgroups, waves: of the launch.
    registers: that each thread takes. shared_bytes: of a workgroup.
    workgroups_per_cu, limiter: how many a compute unit holds at once, and why not more.
    """

    name: str
    workgroups: int
    waves: int
    registers: int
    shared_bytes: int
    workgroups_per_cu: int
    limiter: str
    counted: Counted


@dataclass(frozen=True, slots=True)
class Counting:
    """A config's kernels on one problem.

    check: how the result compares with its reference, and what was found.
    """

    kernel: str
    check: Check
    executed: tuple[Executed, ...]
    estimate: Estimate


def count(problem: Any, config: Any, dispatcher: Dispatcher, seed: int | None = None) -> Counting:
    """Run `config` once for `problem` on the dispatcher's emulated GPU, check the result, and count
    what it did. Builds the kernels that are not in the dispatcher's store.

    Raises `BadArgument` for a dispatcher without an emulated GPU, and what `verify` raises.
    """
    if not dispatcher.emulated:
        raise BadArgument("only an emulated GPU counts: make the dispatcher with one")
    device = dispatcher.device_for_planning()
    dispatcher.counting = True
    try:
        check = verify(dispatcher, problem, config.name, seed=seed)
    finally:
        dispatcher.counting = False
    return Counting(
        config.name,
        check,
        tuple(_executed(one, device) for one in dispatcher.ran),
        ops.family(problem.family).estimate(config, problem, device),
    )


def _executed(ran: Any, device: Device) -> Executed:
    kernel = ran.kernel
    fits = kernel.occupancy(arch(device.arch))
    return Executed(
        kernel.called,
        ran.execution.waves // kernel.num_warps,
        ran.execution.waves,
        kernel.resources.registers,
        kernel.shared,
        fits.workgroups,
        fits.limiter,
        ran.counted,
    )


def in_order(problem: Any, configs: Iterable[Any], device: Device) -> list[Any]:
    """The configs that support `problem`, the one with the least estimated time first."""
    family, this = ops.family(problem.family), arch(device.arch)
    usable = [config for config in configs if family.supports(config, problem, this)]
    return [config for config, _ in family.rank(problem, usable, device)]
