"""Tuning: for each problem the proven kernel, as rows of a table.

    search: steps of candidates, the present choice and the analytical best first (`search`)
    finals: those near the best once more, together in one batch, longer
    row: of those that the finals do not tell apart, the one that a fixed rule takes (`tables.row`)

Everything is measured by sweeps into one directory, so that a tuning that was stopped goes on where
it was. Rows are saved after every few problems, first as the search leaves them; since the present
choice is measured in a problem's first step, such a row is no worse than it, up to noise. The
finals decide, because medians of different batches and workers differ by more than their intervals
say (`statistics.REPEATABILITY`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.build import Store, build_keys
from tilewright.build.report import Progress as BuildProgress
from tilewright.plan import Planner
from tilewright.select.configured import configured
from tilewright.tables.row import Row, choose
from tilewright.tables.table import Table
from tilewright.tune.crew import Crew
from tilewright.tune.measurement import Settings, digest, problem_text, text
from tilewright.tune.results import Results
from tilewright.tune.search import Effort, next_step
from tilewright.tune.statistics import indistinguishable
from tilewright.tune.sweep import Group, Progress, plan_some, settings_on, sweep

FINAL = Settings(precision=0.005, min_samples=40, max_samples=400, budget_seconds=2.0)
"""How the finals measure: longer than a search, whose medians only have to say who is near."""

NEAR = 0.04
"""Share by which a median may be over the best of the search for a place in the finals."""
FINALISTS = 12

TOGETHER = 16
"""Problems that are measured, and saved, before the next ones."""


@dataclass(frozen=True)
class Job:
    """What to tune: a problem on devices that are alike, and the configs to choose from, in the
    order in which they are tried. present: the kernel that is chosen today, one of them. proven: it
    comes from a table's row of this device, and gives way only to what is surely faster.
    """

    group: Group
    problem: Any
    candidates: tuple[Any, ...]
    present: str = ""
    proven: bool = False

    @cached_property
    def names(self) -> list[str]:
        return [config.name for config in self.candidates]

    @cached_property
    def builds(self) -> dict[str, str]:
        """The key of each candidate's binary today."""
        keys = build_keys(self.candidates, self.group.device.arch, self.group.interpreted)
        return dict(zip(self.names, keys, strict=True))


@dataclass(frozen=True, slots=True)
class Tried:
    """What a measurement of a kernel on a problem came to. error: the worst, as a multiple of what
    is allowed; None if it was not verified."""

    status: str
    median_us: float
    interval_us: tuple[float, float]
    error: float | None
    measured_at: str


@dataclass(slots=True)
class Tuned:
    """What a tuning came to, by the numbers of its jobs: rows, and which of them the finals
    decided; jobs for which nothing came out right; whether the time ran out."""

    rows: dict[int, Row] = field(default_factory=dict)
    final: set[int] = field(default_factory=set)
    without: list[int] = field(default_factory=list)
    measured: int = 0
    out_of_time: bool = False


Context = Callable[[], AbstractContextManager[Any]]


def jobs_of(
    group: Group, problems: Iterable[Any], table: Table | None, configs: Sequence[Any] = ()
) -> list[Job]:
    """A job for each problem: of `configs`, or of its family's default space if there are none,
    those that support it, as the analytical selector ranks them, after the present choice (the
    planner's, with `table`). Raises `UnsupportedProblem` for one that nothing supports.
    """
    device, this = group.device, arch(group.device.arch)
    planner = Planner(device=device, selector=configured(None, table))
    found = []
    for problem in problems:
        family = ops.family(problem.family)
        pool = configs or family.default_space(problem, this).expand(this).configs
        fit = [c for c in pool if c.family == family.name and family.supports(c, problem, this)]
        present = planner.select(problem)
        row = None if table is None else table.get(problem, device)
        ranked = [c for c in family.rank(problem, fit, device) if c != present.config]
        proven = row is not None and row.kernel == present.config.name
        found.append(Job(group, problem, (present.config, *ranked), present.config.name, proven))
    return found


@dataclass(slots=True)
class Tuner:
    """Tunes `jobs` by sweeps into `results`.

    crew: its workers measure with `settings`, by which it was made; for the finals it gives another
    on the same places (`Crew.measuring`). save: called with all rows there are, each time some are
    new. seconds: after so many no search takes another step; the finals follow all the same.
    building, measuring: contexts that show how far each sweep is (`sweep.sweep`).
    """

    jobs: Sequence[Job]
    results: Results
    store: Store
    crew: Crew
    settings: Settings
    save: Callable[[Iterable[Row]], None]
    effort: Effort = field(default_factory=Effort)
    final: Settings = FINAL
    seconds: float | None = None
    vendor: bool = True
    building: Callable[[], AbstractContextManager[BuildProgress | None]] = nullcontext
    measuring: Callable[[], AbstractContextManager[Progress | None]] = nullcontext
    workers: int | None = None

    def run(self) -> Tuned:
        """Search, then finals. Raises what sweeps raise; what was found until then is saved."""
        tuned, before, begun = Tuned(), len(self.results), time.monotonic()
        for some in _few(range(len(self.jobs))):
            while wanted := self._steps(some):
                if self.seconds is not None and time.monotonic() - begun > self.seconds:
                    tuned.out_of_time = True
                    break
                self._sweep(self.crew, wanted, self.settings, self.vendor)
            self._take(tuned, some, self.settings)
        self.crew.close()
        with self.crew.measuring(self.final) as last:
            for some in _few([*tuned.rows]):
                finalists = {number: self._finalists(self.jobs[number]) for number in some}
                self._sweep(last, finalists, self.final, vendor=False)
                self._take(tuned, some, self.final)
                tuned.final.update(some)
        tuned.measured = len(self.results) - before
        return tuned

    def tried(self, job: Job, settings: Settings) -> dict[str, Tried]:
        """What the results have of a job's candidates, as they are built today."""
        key = (
            problem_text(job.problem),
            digest(job.group.device),
            job.group.environment.digest,
            settings_on(job.group, settings).digest,
        )
        return {
            name: Tried(status, median or 0.0, (low or 0.0, high or 0.0), worst, at)
            for name, build, status, median, low, high, worst, at in self.results.rows(_TRIED, key)
            if job.builds.get(name) == build
        }

    # --- steps ------------------------------------------------------------------------------

    def _steps(self, numbers: Iterable[int]) -> dict[int, Sequence[str]]:
        """The next step of each job whose search is not over."""
        wanted = {}
        for number in numbers:
            job = self.jobs[number]
            known = {
                name: one.median_us if one.status == "ok" else None
                for name, one in self.tried(job, self.settings).items()
            }
            if step := next_step(job.names, known, self.effort):
                wanted[number] = step
        return wanted

    def _finalists(self, job: Job) -> Sequence[str]:
        """Those near the best, and the present choice, which a row has to better."""
        medians = _medians(self.tried(job, self.settings))
        limit = min(medians.values()) * (1 + NEAR)
        near = sorted((n for n in medians if medians[n] <= limit), key=medians.__getitem__)
        chosen = near[:FINALISTS]
        if job.present in medians and job.present not in chosen:
            chosen.append(job.present)
        return chosen

    def _sweep(
        self, crew: Crew, wanted: Mapping[int, Sequence[str]], settings: Settings, vendor: bool
    ) -> None:
        by_group: dict[Group, list[tuple[Any, Sequence[Any]]]] = {}
        for number, names in wanted.items():
            job, chosen = self.jobs[number], {*names}
            configs = [c for c in job.candidates if c.name in chosen]
            by_group.setdefault(job.group, []).append((job.problem, configs))
        sweep(
            plan_some([*by_group.items()], settings, self.results.keys(), vendor),
            self.results,
            self.store,
            lambda: _Lent(crew),
            building=self.building,
            measuring=self.measuring,
            workers=self.workers,
        )

    def _take(self, tuned: Tuned, numbers: Iterable[int], settings: Settings) -> None:
        """Make rows of what was measured so, and save."""
        for number in numbers:
            job = self.jobs[number]
            row = row_of(job, self.tried(job, settings), settings_on(job.group, settings))
            if row is not None:
                tuned.rows[number] = row
            elif number not in tuned.rows and number not in tuned.without:
                tuned.without.append(number)
        self.save(tuned.rows.values())


def row_of(job: Job, tried: Mapping[str, Tried], settings: Settings) -> Row | None:
    """The row that measurements of one kind give; None if none came out right."""
    medians = _medians(tried)
    if not medians:
        return None
    tied = indistinguishable(medians, {name: tried[name].interval_us for name in medians})
    winner, others = choose(tied, job.problem, job.group.device)
    if job.proven and job.present in tied:
        winner, others = job.present, tuple(name for name in tied if name != job.present)
    won = tried[winner]
    return Row(
        job.group.device,
        job.problem,
        winner,
        others,
        won.median_us,
        won.interval_us,
        won.error,
        won.measured_at,
        job.group.environment.versions,
        job.group.environment.driver,
        text(settings),
    )


_TRIED = """
SELECT kernel.name, kernel.build, status, median_us, low_us, high_us, worst, measured_at
FROM measurement JOIN kernel ON kernel.id = measurement.kernel WHERE
    problem = (SELECT id FROM problem WHERE text = ?)
    AND device = (SELECT id FROM device WHERE digest = ?)
    AND environment = (SELECT id FROM environment WHERE digest = ?)
    AND settings = (SELECT id FROM settings WHERE digest = ?)
ORDER BY measurement.id
"""


def _medians(tried: Mapping[str, Tried]) -> dict[str, float]:
    return {name: one.median_us for name, one in tried.items() if one.status == "ok"}


def _few(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(numbers), TOGETHER):
        yield numbers[at : at + TOGETHER]


class _Lent:
    """A crew that a sweep may close, and that goes on all the same."""

    def __init__(self, crew: Crew) -> None:
        self.run = crew.run

    def close(self) -> None:
        """Leave the workers where they are."""
