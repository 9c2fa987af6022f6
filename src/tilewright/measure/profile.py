"""Runs every instance of a space on one problem: which are supported (or why not), verified, timed
and ranked. Also reports the resources of a built kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.compile import Kernel, Store, find
from tilewright.compile.resources import occupancy
from tilewright.errors import BadArgument
from tilewright.measure.crew import Task
from tilewright.measure.measurement import Measurement
from tilewright.measure.statistics import indistinguishable
from tilewright.measure.sweep import Crew, Group
from tilewright.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Instance:
    """One kernel and its result: a verdict against it, or its measurement."""

    name: str
    verdict: Verdict
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """The results of a problem's instances.

    ranked: timed instances, fastest first.
    alike: names of instances that the intervals do not tell from the fastest.
    failed: measured, but without a time.
    unsupported: each with the rule that refused it.
    """

    problem: Any
    device: Device
    ranked: tuple[Instance, ...]
    alike: tuple[str, ...]
    failed: tuple[Instance, ...]
    unsupported: tuple[Instance, ...]


def profile(
    problem: Any,
    configs: Iterable[Any],
    group: Group,
    start: Callable[[], Crew],
    each: Callable[[Measurement], None] = lambda measurement: None,
) -> Profile:
    """Verify and time every config that supports `problem`, on the devices of `group`.

    start: starts the crew. Its store must have the binaries (see `supported`).
    each: is called with each measurement as soon as it is made.

    Raises `BadArgument` without a config.
    """
    family, this = ops.family(problem.family), arch(group.device.arch)
    verdicts = {c.name: (c, family.supports(c, problem, this)) for c in configs}
    if not verdicts:
        raise BadArgument("there is no kernel to profile")
    names = [name for name, (_, verdict) in verdicts.items() if verdict]
    measured: list[Measurement] = []
    if names:
        crew = start()
        try:
            for m in crew.run(Task(name, problem, this.name) for name in names):
                measured.append(m)
                each(m)
        finally:
            crew.close()
    timed = sorted((m for m in measured if m.status == "ok"), key=lambda m: (m.median_us, m.kernel))
    alike = indistinguishable(
        {m.kernel: m.median_us for m in timed}, {m.kernel: m.interval_us for m in timed}
    )
    instances = {m.kernel: Instance(m.kernel, verdicts[m.kernel][1], m) for m in measured}
    return Profile(
        problem,
        group.device,
        tuple(instances[m.kernel] for m in timed),
        tuple(alike),
        tuple(i for i in instances.values() if i.measurement and i.measurement.status != "ok"),
        tuple(Instance(name, verdict) for name, (_, verdict) in verdicts.items() if not verdict),
    )


def supported(problem: Any, configs: Iterable[Any], device: Device) -> list[Any]:
    """The configs that support `problem` on `device`: these must be built."""
    family, this = ops.family(problem.family), arch(device.arch)
    return [config for config in configs if family.supports(config, problem, this)]


def taken(config: Any, device: Device, store: Store) -> dict[str, dict[str, Any]] | None:
    """What each built kernel of a config takes of a compute unit, by part: registers, spills,
    shared memory, how many workgroups fit, and why not more. None if one is not in the store."""
    found = find(config, device.arch, store)
    if found is None:
        return None
    return {part: _taken(kernel, device) for part, kernel in found.items()}


def _taken(kernel: Kernel, device: Device) -> dict[str, Any]:
    fits = occupancy(
        arch(device.arch),
        num_warps=kernel.num_warps,
        registers=kernel.resources.registers,
        shared=kernel.shared,
    )
    return {
        "registers": kernel.resources.registers,
        "spill_bytes": kernel.resources.spill_bytes,
        "shared_bytes": kernel.shared,
        "warps": kernel.num_warps,
        "workgroups_per_cu": fits.workgroups,
        "limiter": fits.limiter,
    }


def candidates(
    problem: Any, device: Device, names: Sequence[str] = (), *, every: bool = False
) -> list[Any]:
    """The kernels called `names`, or else those of the family's default space for this problem.

    every: whether those of the spaces that a tuning chooses from join them.
    """
    family = ops.family(problem.family)
    if names:
        return [family.parse_name(name) for name in names]
    this = arch(device.arch)
    spaces = [family.default_space(problem, this)]
    if every:
        spaces += family.tuning_spaces(problem, this)
    found = {c.name: c for space in spaces for c in space.expand(this).configs}
    return list(found.values())
