"""`Job`: a problem to tune on devices that are alike, and the kernels to choose from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Arch
from tilewright.errors import EmptySpace, NoKernelFound, UnsupportedProblem
from tilewright.measure.sweep import Group
from tilewright.ops.estimate import Estimate
from tilewright.plan import Planner
from tilewright.select.configured import NAMES
from tilewright.select.constraints import Constraints
from tilewright.tables.row import Row
from tilewright.tables.table import Table

NO_CONSTRAINTS = Constraints()

PER_VARIANT = 1.05
"""For the order in which candidates are tried: the factor on a kernel's estimate for each better
one of the same tile (`Family.tile`). Estimates of tiles are off by 10 to 30 %, so another
tile is worth more than the same once more (docs/notes/tune.md)."""

OF_PIPELINE = 1.5
"""The best candidate of every pipeline is tried first if its estimate is at most this times the
least: estimates of two pipelines share less than those of two tiles, so their errors do too."""


@dataclass(frozen=True)
class Job:
    """A problem to tune on devices that are alike.

    candidates: the configs to choose from, in the order in which they are tried.
    starters: configs tried together with the first candidates; the present choice comes first.
    row: the table's row, if its kernel is the present choice.
    algorithms: those that the vendor's library offers, tried together with the first candidates.
    """

    group: Group
    problem: Any
    candidates: tuple[Any, ...]
    starters: tuple[Any, ...] = ()
    row: Row | None = None
    algorithms: tuple[Any, ...] = ()

    @property
    def present(self) -> str:
        """The kernel that is chosen today; ``""`` if there is none."""
        return self.starters[0].name if self.starters else ""

    @cached_property
    def names(self) -> list[str]:
        return [config.name for config in self.candidates]

    @cached_property
    def configs(self) -> dict[str, Any]:
        """All configs that may be measured, by name."""
        found = (*self.starters, *self.algorithms, *self.candidates)
        return {config.name: config for config in found}


def jobs_of(
    group: Group,
    problems: Iterable[Any],
    table: Table | None,
    configs: Sequence[Any] = (),
    algorithms: Callable[[], Mapping[Any, Sequence[Any]]] = dict,
    constraints: Constraints = NO_CONSTRAINTS,
) -> tuple[list[Job], list[tuple[Any, str]]]:
    """A job for each problem, and the problems that nothing supports, with the reason. Among
    problems that share a row (`Family.tuning_key`), only the first has a job.

    Candidates are the configs that support the problem: of `configs`, or by default of the family's
    tuning spaces. They are ordered by estimate, variants of one tile later (`PER_VARIANT`).
    Starters are the kernels chosen today, by `table` and the shipped tables. If `configs` are
    given, the first choice of the estimate alone is a starter too, because `configs` may lack it.

    algorithms: says, by problem, what the vendor's library offers. It is asked at the end, so that
        the library may be asked meanwhile.
    constraints: what every candidate and starter keeps to.
    """
    device, this = group.device, arch(group.device.arch)
    # Use only the given table, never the files that the environment names.
    without = {"learned"} if table is not None else {"learned", "tuned"}
    chain = tuple(name for name in NAMES if name not in without)
    planners = [
        Planner(device=device, selector=chain, tables=table, constraints=constraints),
        *([Planner(device=device, selector="analytical", constraints=constraints)] * bool(configs)),
    ]
    pools = _Pools(this)
    every: list[tuple[Job, str]] = []
    for problem in _one_for_each_row(problems):
        family = ops.family(problem.family)
        starters, reason = [], ""
        try:
            starters += [planner.select(problem).config for planner in planners]
        except (UnsupportedProblem, NoKernelFound) as error:
            reason = str(error)
        row = None if table is None else table.get(problem, device)
        if row is not None and not (starters and starters[0].name == row.kernel):
            row = None  # its kernel is not chosen; perhaps it no longer exists
        pool = configs or pools.of(problem)
        fit = [c for c in pool if c.family == family.name and family.supports(c, problem, this)]
        if constraints != NO_CONSTRAINTS:
            fit = [c for c in fit if constraints.allows(c, problem, device)]
        ranked = _tiles_first(family.rank(problem, fit, device), family.tile) if fit else ()
        first = tuple(dict.fromkeys(starters))
        every.append((Job(group, problem, ranked, first, row, ()), reason))
    offered = algorithms()
    found: list[Job] = []
    refused: list[tuple[Any, str]] = []
    for job, reason in every:
        theirs = offered.get(job.problem, ())
        allowed = [c for c in theirs if constraints.allows(c, job.problem, device)]
        if job.candidates or job.starters or allowed:
            found.append(replace(job, algorithms=tuple(allowed)))
        else:
            refused.append((job.problem, reason or "none of the given kernels supports it"))
    return found, refused


def _tiles_first(
    ranked: Sequence[tuple[Any, Estimate]], tile: Callable[[Any], Hashable]
) -> tuple[Any, ...]:
    """Configs by their estimates: the best of each pipeline first, variants of better ones
    later."""
    better: Counter[Hashable] = Counter()
    pipelines: set[str] = set()
    least_us = min((estimate.total_us for _, estimate in ranked), default=0.0)
    found = []
    for config, estimate in ranked:
        of, us = tile(config), estimate.total_us
        early = config.pipeline not in pipelines and us <= OF_PIPELINE * least_us
        found.append((least_us if early else us * PER_VARIANT ** better[of], config))
        pipelines.add(config.pipeline)
        better[of] += 1
    return tuple(config for _, config in sorted(found, key=lambda one: one[0]))


def _one_for_each_row(problems: Iterable[Any]) -> Iterable[Any]:
    first: dict[Any, Any] = {}
    for problem in problems:
        first.setdefault(ops.family(problem.family).tuning_key(problem), problem)
    return first.values()


class _Pools:
    """The kernels of tuning spaces on one architecture. Problems with equal spaces share an
    expansion."""

    def __init__(self, this: Arch) -> None:
        self._arch = this
        self._expanded: dict[Any, Sequence[Any]] = {}

    def of(self, problem: Any) -> Sequence[Any]:
        found: dict[Any, None] = {}
        for space in ops.family(problem.family).tuning_spaces(problem, self._arch):
            if space.key not in self._expanded:
                try:
                    self._expanded[space.key] = space.expand(self._arch).configs
                except EmptySpace:  # this architecture supports none of its kernels
                    self._expanded[space.key] = ()
            found |= dict.fromkeys(self._expanded[space.key])
        return [*found]
