"""The process's dispatcher, which `tilewright.gemm` and its like use."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.checks import flag
from tilewright.compile import Progress, Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, NoKernelFound, shown
from tilewright.plan import Plan, Planner
from tilewright.preparing import Measuring, Preparation
from tilewright.select.constraints import Constraints
from tilewright.standing import WAITS
from tilewright.tables import own


def default_dispatcher() -> Dispatcher:
    """The process's dispatcher. It chooses from the families' default spaces, for the GPU of each
    call's operands. Its calls do not wait for kernels that have to be built (`Dispatcher`, `waits`)
    unless ``TILEWRIGHT_WAITS`` says so.

    While ``torch.use_deterministic_algorithms`` is on, this is a second dispatcher, which chooses
    only kernels that give the same bits in every run. If there is none, it raises `NoKernelFound`;
    under ``warn_only`` it warns and takes any kernel.
    """
    if not _repeats_wanted():
        return _default()
    return _repeating(sys.modules["torch"].is_deterministic_algorithms_warn_only_enabled())


def prepare(
    problems: Iterable[Any],
    *,
    device: Device | str | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    measure: bool | Measuring = False,
) -> Preparation:
    """Build the kernels that calls with these problems will need, side by side, so that no call
    waits for the compiler. Nothing is launched, unless `measure` says so.

    problems: such as `GemmProblem`, or those of `capturing.load`.
    device: the GPU to plan for; by default the first GPU of this machine. A name needs no GPU.
    store: where kernels are kept; by default where `tilewright.gemm` and its like look.
    progress: called with each result, such as `compile.show_progress` gives.
    measure: first measure, for each problem without a row of its own, a few kernels and the
        algorithms of the vendor's library, on the GPU that is planned for. The winners become rows
        of the user's table (`tables.own.to_write`), which this and later processes choose by.

    Raises as `Dispatcher.prepare` does; with `measure` also `NoDriver`, `WrongDevice` and
    `BadArgument` where nothing can be measured, and as a tuning does.
    """
    named = device is not None or store is not None
    dispatcher = Dispatcher(device=device, store=store) if named else default_dispatcher()
    if measure is False:
        return dispatcher.prepare(problems, progress=progress)
    from tilewright.tune import ahead

    how = Measuring() if measure is True else measure
    if not isinstance(how, Measuring):
        raise BadArgument(f"measure = {shown(how)} is neither True, False nor a Measuring")
    wanted, steps = tuple(problems), ahead.Shown(building=lambda: nullcontext(progress))
    path = own.to_write(dispatcher.device_for_planning())
    measured = ahead.measured(dispatcher, wanted, how, path, steps)
    dispatcher.read_tables()
    return replace(dispatcher.prepare(wanted, progress=progress), measured=measured)


def expected_us(problems: Iterable[Any], *, device: Device | str | None = None) -> float:
    """How many microseconds calls with these problems take together, by the estimates of the
    kernels that are chosen for them. The vendor's library, which has none, is left out.

    device: the GPU to plan for; by default the first GPU of this machine. A name needs no GPU.
    """
    dispatcher = default_dispatcher() if device is None else Dispatcher(device=device)
    ours = Constraints(only_ours=True)
    plans = [dispatcher.select(problem, ours) for problem in problems]
    return sum(
        ops.family(p.problem.family).estimate(p.config, p.problem, p.device).total_us for p in plans
    )


def _look_for_torch() -> bool:
    """`_repeats_wanted` until torch has been imported, which may happen at any time. The private
    name takes half of the time of the public one, at every call."""
    global _repeats_wanted
    torch = sys.modules.get("torch")
    if not hasattr(torch, "are_deterministic_algorithms_enabled"):  # it is being imported
        return False
    _repeats_wanted = torch._C._get_deterministic_algorithms  # type: ignore[union-attr]
    return _repeats_wanted()


_repeats_wanted: Callable[[], bool] = _look_for_torch


@cache
def _default() -> Dispatcher:
    return Dispatcher(waits=flag(WAITS, False))


@cache
def _repeating(warn_only: bool) -> Dispatcher:
    made = _WarnOnly if warn_only else Dispatcher
    return made(constraints=Constraints(deterministic=True))


class _WarningPlanner(Planner):
    """A planner that warns where no kernel keeps to its constraints, and takes another."""

    def plan(self, problem: Any, target: Device, constraints: Constraints | None = None) -> Plan:
        try:
            return super().plan(problem, target, constraints)
        except NoKernelFound as error:
            if constraints is not None:
                raise
            plan = super().plan(problem, target, Constraints())
            warnings.warn(
                f"{plan.config.name} may give other bits in each run, and "
                f"torch.use_deterministic_algorithms is on with warn_only=True: {error}",
                stacklevel=2,
            )
            return plan


class _WarnOnly(Dispatcher):
    _planner_type = _WarningPlanner
