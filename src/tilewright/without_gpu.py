"""Calls of arrays in the machine's memory: Triton's interpreter runs them, or an emulated GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright import arrays, calls, capturing
from tilewright.arch import arch
from tilewright.calls import Arrays
from tilewright.errors import FindingsFound, WrongDevice, listed
from tilewright.plan import Planner
from tilewright.ready import Ready

if TYPE_CHECKING:
    from tilewright.emulate.device import EmulatedGpu, Ran


def interpret(
    planner: Planner, family: Any, config: Any, given: Arrays, scalars: Sequence[int | float | None]
) -> None:
    """Run a call in Triton's interpreter, as planned for `planner`'s device.

    config: the kernel that the call names; None for the chosen one.
    """
    from tilewright.runtime.interpreter import interpreter

    target, problem = planner.device_for_planning(), given.problem
    if config is None:
        plan = planner.plan(problem, target)
        capturing.saw(plan)
    else:
        plan = planner.named(config, problem, target)
    runs = family.interpreted(plan.config)
    interpreter().run(
        family.sources(runs, arch(target.arch)),
        plan.launch if runs == plan.config else family.launch(runs, problem, target),
        {name: arrays.to_numpy(x) for name, x in given.by_name.items()},
        given.written,
        scalars=calls.scalar_values(family, problem, scalars),
    )
    given.note_writes()


def emulate(
    gpu: EmulatedGpu,
    ready: Ready,
    family: Any,
    given: Arrays,
    scalars: Sequence[int | float | None],
) -> tuple[Ran, ...]:
    """Execute a call's kernels on an emulated GPU. Returns what each of them did."""
    ran = gpu.run(
        ready.bound,
        ready.plan.launch,
        {name: arrays.to_numpy(x) for name, x in given.by_name.items()},
        given.written,
        tuple(calls.scalar_values(family, given.problem, scalars).values()),
    )
    given.note_writes()
    return ran


def check_in_memory(given: Arrays) -> None:
    """Raise `WrongDevice` for operands that are not in this machine's memory."""
    if any(view.device != "cpu" for view in given.views):
        raise WrongDevice(
            f"operands are on {given.views[0].device}; an emulated GPU takes arrays in this "
            "machine's memory"
        )


def refuse_findings(problem: Any, ran: Sequence[Ran]) -> None:
    """Raise `FindingsFound` if a kernel did what no kernel may do."""
    found = tuple(text for one in ran for text in one.findings)
    if found:
        raise FindingsFound(f"{problem}, emulated: {listed(found)}", found)
