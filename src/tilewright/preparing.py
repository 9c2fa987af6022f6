"""Kernels built before the first call, side by side.

Problems → plans → different kernels → built; where one cannot be built, the next choice
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Device
from tilewright.compile import BuildReport, BuildResult
from tilewright.errors import BadArgument, BuildFailed, NoKernelFound, UnsupportedProblem, shown
from tilewright.plan import Plan, Planner

Build = Callable[[Sequence[Any], Device], BuildReport]
"""Has the kernels of configs for a device where calls find them: `Loader.build`."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """How a preparation measures what no row of this device answers.

    candidates: how many of the best kernels by estimate are measured for each problem, beside the
        present choice and the algorithms that the vendor's library offers.
    seconds: after which no further problems are begun; None for no limit.

    Raises `BadArgument` for less than one candidate, and for negative times.
    """

    candidates: int = 4
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.candidates < 1 or (self.seconds is not None and self.seconds < 0):
            raise BadArgument(f"{self}: candidates is at least 1, seconds at least 0")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a preparation measured.

    table: the file that has the rows.
    rows: how many problems have a row now that had none.
    changed: of these, how many have another kernel than they would have had without.
    wrong: the problems for which no kernel gave a right result.
    left: other problems that were not measured, each with the reason.
    seconds: that it took, kernels built included.
    """

    table: str
    rows: int = 0
    changed: int = 0
    wrong: tuple[Any, ...] = ()
    left: tuple[tuple[Any, str], ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        text = (
            f"{self.rows} problems measured in {self.seconds:.0f} s, {self.changed} of them choose "
            f"another kernel by it; rows in {self.table}"
        )
        if self.wrong:
            text += f"; no kernel was right for {len(self.wrong)}"
        return f"{text}; {len(self.left)} were not measured" if self.left else text


@dataclass(frozen=True, slots=True)
class Preparation:
    """What became of the kernels of several problems on one device.

    device: the GPU that was planned for.
    plans: for each problem that a kernel serves, without repeats, what a call launches.
    unserved: the problems that no kernel serves, each with the reason.
    build: what became of each kernel. A kernel that could not be built is among the results, and
        another was chosen in its place.
    stopped: why the run of a module that stated the problems ended early (`torch.prepare`); "" if
        it did not.
    measured: what was measured before the plans were made; None if nothing was to be.
    """

    device: Device
    plans: tuple[Plan, ...]
    unserved: tuple[tuple[Any, str], ...]
    build: BuildReport
    stopped: str = ""
    measured: Measured | None = None

    @property
    def ok(self) -> bool:
        """Whether all problems were met, a kernel serves each, every kernel chosen could be built,
        and every problem measured has a kernel that is right."""
        wrong = self.measured is not None and self.measured.wrong
        return not (self.unserved or self.build.failures or self.stopped or wrong)

    def __str__(self) -> str:
        problems, kernels = len(self.plans) + len(self.unserved), {p.config for p in self.plans}
        text = (
            f"{problems} problems on {self.device.name} take {len(kernels)} kernels: {self.build}"
        )
        if self.unserved:
            text += f"; {len(self.unserved)} problems have no kernel"
        if self.measured:
            text += f"; {self.measured}"
        return f"{text}; then the run stopped: {self.stopped}" if self.stopped else text


def prepare(planner: Planner, build: Build, problems: Iterable[Any]) -> Preparation:
    """Plan each problem for the planner's device, and have all kernels of the plans built. Raises
    as `build` does."""
    if hasattr(problems, "family") or not isinstance(problems, Iterable):
        raise BadArgument(f"problems are several, in a list for example, not {shown(problems)}")
    device = planner.device_for_planning()
    wanted = tuple(dict.fromkeys(problems))
    plans: dict[Any, Plan] = {}
    unserved: dict[Any, str] = {}
    results: list[BuildResult] = []
    asked: set[Any] = set()
    seconds, left = 0.0, wanted
    while left:
        for problem in left:
            try:
                plans[problem] = planner.plan(problem, device)
            except (NoKernelFound, UnsupportedProblem) as error:  # noqa: PERF203
                plans.pop(problem, None)
                unserved[problem] = str(error)
        fresh = dict.fromkeys(p.config for p in plans.values() if p.config not in asked)
        asked.update(fresh)
        report = build(tuple(fresh), device)
        results += report.results
        seconds += report.seconds
        failed = {result.config: BuildFailed(str(result)) for result in report.failures}
        left = tuple(problem for problem, plan in plans.items() if plan.config in failed)
        for plan in [plans[problem] for problem in left]:
            planner.avoid(plan, failed[plan.config])
    return Preparation(
        device,
        tuple(plans[problem] for problem in wanted if problem in plans),
        tuple((problem, unserved[problem]) for problem in wanted if problem in unserved),
        BuildReport(tuple(results), seconds),
    )
