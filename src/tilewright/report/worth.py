"""What tuning would be worth to a model that was listened to: for each problem, the time of torch's
call, as it was heard, beside the time of the kernel that would be chosen.

No time is given without its source. Torch's calls were timed while the model ran. Of a kernel here
the time is measured where a table has this problem on this device, and estimated otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.capture_file import Heard, Recorded, Unstated
from tilewright.errors import BadArgument, NoKernelFound, UnsupportedProblem
from tilewright.ops.library import library_of
from tilewright.plan import Plan, Planner

Source = Literal["measured", "measured early", "estimated", "torch's", "none"]
"""Where a time is from. measured: of torch's calls, while the GPU was busy; of a kernel, by a
tuning. measured early: of torch's first call, or with an idle GPU, so that it may have the host's
time in it. estimated: by the family. torch's: the vendor's library would answer, so nothing
changes."""

STEP, RUN = "step", "run"


@dataclass(frozen=True, slots=True)
class Line:
    """A problem.

    problem: in words. by: torch's operation. count: calls in a step.
    theirs_ms: milliseconds of torch's calls in a step; None if none was timed on this device.
    theirs_from: their source.
    kernel: the one that would be chosen; "" if none serves the problem. chosen_by: the selector, or
        why there is none.
    ours_ms: milliseconds of that kernel in a step; None without one.
    ours_from: their source.
    share: of a step's time that torch's calls take; None if unknown.
    followed, seen: as of `Heard`.
    """

    problem: str
    by: str
    count: float
    theirs_ms: float | None
    theirs_from: Source
    kernel: str
    chosen_by: str
    ours_ms: float | None
    ours_from: Source
    share: float | None
    followed: int
    seen: Mapping[str, int]

    @property
    def saves_ms(self) -> float | None:
        """Milliseconds a step that the kernel takes less than torch's calls; None if a time is
        unknown."""
        if self.theirs_ms is None or self.ours_ms is None:
            return None
        return self.theirs_ms - self.ours_ms


@dataclass(frozen=True, slots=True)
class Worth:
    """All problems, those first that save most.

    device: the GPU that was planned for. heard_on: those that were listened to.
    per: what times are of: a step, or the whole run where no optimizer stepped.
    steps: how many there were.
    step_ms: milliseconds of a step, by the host's clock; None if unknown.
    unstated: calls that no operation here computes.
    """

    device: str
    heard_on: tuple[str, ...]
    per: str
    steps: int
    step_ms: float | None
    lines: tuple[Line, ...]
    unstated: tuple[Unstated, ...]

    @property
    def saves_ms(self) -> float:
        """Milliseconds a step, if each problem had the faster of both. Of those whose two times are
        known."""
        return sum(max(0.0, line.saves_ms or 0.0) for line in self.lines)

    @property
    def untuned(self) -> int:
        """Problems whose kernel no table has measured."""
        return sum(line.ours_from != "measured" for line in self.lines)

    def data(self) -> dict[str, Any]:
        """As JSON has it."""
        lines = [{**asdict(line), "saves_ms": line.saves_ms} for line in self.lines]
        return {
            "device": self.device,
            "heard_on": self.heard_on,
            "per": self.per,
            "steps": self.steps,
            "step_ms": self.step_ms,
            "saves_ms": self.saves_ms,
            "untuned": self.untuned,
            "problems": lines,
            "unstated": [asdict(one) for one in self.unstated],
        }


def worth(recorded: Recorded, planner: Planner, device: Device, steps: int | None = None) -> Worth:
    """What was heard, beside what would be chosen on `device`.

    steps: how many steps the counts are of; by default as often as an optimizer stepped.

    Raises `BadArgument` if nothing was listened to.
    """
    if not recorded.heard:
        raise BadArgument(
            "there are no calls that were listened to: TILEWRIGHT_LISTEN=FILE records them, "
            "TILEWRIGHT_CAPTURE does not"
        )
    counted = sum(run.steps for run in recorded.processes)
    per = STEP if steps or counted else RUN
    number = steps or counted or max(1, len(recorded.processes))
    heard_on = tuple(sorted({run.device for run in recorded.processes}))
    step_s = _step_seconds(recorded, steps)
    lines = []
    for problem, facts in recorded.heard.items():
        count = recorded.heard_counts[problem] / number
        each = facts.each if heard_on == (device.name,) else None
        lines.append(_line(problem, facts, count, each, step_s, planner, device))
    lines.sort(key=lambda line: (-(line.saves_ms or 0.0), -(line.theirs_ms or 0.0), line.problem))
    return Worth(
        device.name,
        heard_on,
        per,
        number,
        None if step_s is None else step_s * 1e3,
        tuple(lines),
        _added_up(recorded),
    )


def _step_seconds(recorded: Recorded, steps: int | None) -> float | None:
    """Seconds of a step: the median between two steps of an optimizer, averaged over processes; or
    the whole time by the number of steps."""
    timed = [run.step_seconds for run in recorded.processes if run.step_seconds]
    if timed and not steps:
        return sum(timed) / len(timed)
    seconds = sum(run.seconds for run in recorded.processes)
    if not seconds:
        return None
    counted = (
        steps or sum(run.steps for run in recorded.processes) or max(1, len(recorded.processes))
    )
    return seconds / counted


def _line(
    problem: Any,
    facts: Heard,
    count: float,
    each: float | None,
    step_s: float | None,
    planner: Planner,
    device: Device,
) -> Line:
    theirs_ms = None if each is None else count * each * 1e3
    theirs_from: Source = "measured" if facts.timed else "measured early"
    kernel, ours_us = "", None
    ours_from: Source = "none"
    try:
        plan = planner.plan(problem, device)
    except (NoKernelFound, UnsupportedProblem) as error:
        chosen_by = str(error)
    else:
        kernel, chosen_by = plan.config.name, plan.selector
        ours_us, ours_from = _time_of(plan)
    ours_ms = None if ours_us is None else count * ours_us / 1e3
    if ours_from == "torch's":
        ours_ms = theirs_ms
    return Line(
        str(problem),
        facts.by,
        count,
        theirs_ms,
        "none" if theirs_ms is None else theirs_from,
        kernel,
        chosen_by,
        ours_ms,
        ours_from,
        None if theirs_ms is None or not step_s else theirs_ms / (step_s * 1e3),
        facts.followed,
        facts.seen,
    )


def _time_of(plan: Plan) -> tuple[float | None, Source]:
    """Microseconds of a call of a plan, and their source."""
    if plan.measured_us:
        return plan.measured_us, "measured"
    if library_of(plan.config):
        return None, "torch's"
    family = ops.family(plan.problem.family)
    return family.estimate(plan.config, plan.problem, plan.device).total_us, "estimated"


def _added_up(recorded: Recorded) -> tuple[Unstated, ...]:
    """The calls without a problem of all processes, those first that took longest."""
    found: dict[tuple[str, str], Unstated] = {}
    for one in (one for run in recorded.processes for one in run.unstated):
        before = found.get((one.by, one.why))
        count, seconds = (before.count, before.seconds) if before else (0, 0.0)
        found[one.by, one.why] = Unstated(one.by, one.why, count + one.count, seconds + one.seconds)
    return tuple(sorted(found.values(), key=lambda one: -one.seconds))


def gathered(files: Sequence[Recorded]) -> Recorded:
    """Several files as one."""
    counts: dict[Any, int] = {}
    heard: dict[Any, Heard] = {}
    heard_counts: dict[Any, int] = {}
    for one in files:
        for problem, count in one.counts.items():
            counts[problem] = counts.get(problem, 0) + count
        for problem, facts in one.heard.items():
            heard[problem] = heard[problem] + facts if problem in heard else facts
            heard_counts[problem] = heard_counts.get(problem, 0) + one.heard_counts[problem]
    processes = tuple(run for one in files for run in one.processes)
    return Recorded(counts, heard, heard_counts, processes)
