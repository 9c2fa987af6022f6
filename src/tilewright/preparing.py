"""Kernels built before the first call, side by side.

Problems → plans → different kernels → built; where one cannot be built, the next choice
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Device
from tilewright.compile import BuildReport, BuildResult
from tilewright.errors import BuildFailed, NoKernelFound, UnsupportedProblem
from tilewright.plan import Plan, Planner

Build = Callable[[Sequence[Any], Device], BuildReport]
"""Has the kernels of configs for a device where calls find them: `Loader.build`."""


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
    """

    device: Device
    plans: tuple[Plan, ...]
    unserved: tuple[tuple[Any, str], ...]
    build: BuildReport
    stopped: str = ""

    @property
    def ok(self) -> bool:
        """Whether all problems were met, a kernel serves each, and every kernel chosen could be
        built."""
        return not self.unserved and not self.build.failures and not self.stopped

    def __str__(self) -> str:
        problems, kernels = len(self.plans) + len(self.unserved), {p.config for p in self.plans}
        text = (
            f"{problems} problems on {self.device.name} take {len(kernels)} kernels: {self.build}"
        )
        if self.unserved:
            text += f"; {len(self.unserved)} problems have no kernel"
        return f"{text}; then the run stopped: {self.stopped}" if self.stopped else text


def prepare(planner: Planner, build: Build, problems: Iterable[Any]) -> Preparation:
    """Plan each problem for the planner's device, and have all kernels of the plans built. Raises
    as `build` does."""
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
