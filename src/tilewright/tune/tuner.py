"""Tuning: for each problem the proven kernel, as rows of a table.

    search: steps of candidates, the present choice and the analytical best first (`search`)
    finals: those near the best once more, together, longer, in takes (`finals`)
    row: of those that the finals do not tell apart, the one preferred by most limits (`finals`)

Everything is measured by sweeps into one directory, so that a tuning that was stopped goes on where
it was, and ends as if it had not been stopped. Rows are saved after every few problems. What a
search finds is saved where the table has nothing proven; since the present choice is measured in
the first step, such a row is no worse than it, up to noise. A proven row gives way in the finals
only, which decide because medians of different batches and workers differ by more than their
intervals say (`statistics.REPEATABILITY`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from tilewright.compile import Store, build_keys
from tilewright.compile.report import Progress as BuildProgress
from tilewright.measure.crew import Crew
from tilewright.measure.measurement import Settings, Status, digest, problem_text, text
from tilewright.measure.results import Results, Us, samples
from tilewright.measure.sweep import Group, Progress, plan_some, settings_on, sweep
from tilewright.tables.row import Row, preference
from tilewright.tune.finals import Take, decided, pooled, ties, winner
from tilewright.tune.jobs import Job
from tilewright.tune.search import Effort, next_step

NEAR = 0.06
"""Share by which a median may be over the best of the search for a place in the finals: what is
surely 4 % behind the best of its batch is out of the race there, and medians of two batches differ
by 2 % for no other reason than the clock (13 %, where one was long enough for a large product to
come to the limit of power; by rounds, then, they are nearer)."""

SEARCH = Settings(warm_up_seconds=0.03, min_samples=6, budget_seconds=0.25, race=0.04)
"""How a search measures, unless said: its medians have to say who is near, and of the others only
that they are not. As sweeps do it, 42 kernels on 16384x26624x16384 took 50 s on an H200, and a
batch of 16 on a small problem 0.22 s, of which 0.1 warm up what is at work without a break."""
FINAL = Settings(
    warm_up_seconds=0.05,
    precision=0.003,
    min_samples=20,
    max_samples=1000,
    budget_seconds=0.15,
    race=0.02,
    places=4,
)
"""How the finals measure, in each take: takes differ by more than this precision. What is out of
the race is beyond what the winner is chosen from (`finals.ties`), however many more samples there
would be."""
FINALISTS = 12
"""At most so many, and the proven kernel: they all take turns (`Settings.interleave`)."""

TOGETHER = 32
"""Problems that are measured, and saved, before the next ones."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a measurement of a kernel on a problem came to. samples_us: by round. error: the worst,
    as a multiple of what is allowed; None if it was not verified."""

    status: str
    samples_us: Sequence[float]
    median_us: float
    interval_us: tuple[float, float]
    error: float | None
    measured_at: str


@dataclass(slots=True)
class Tuned:
    """What a tuning came to, by the numbers of its jobs: rows, and which of them the finals
    decided; jobs for which nothing came out right; those that nothing was measured of; whether the
    time ran out."""

    rows: dict[int, Row] = field(default_factory=dict)
    final: set[int] = field(default_factory=set)
    without: list[int] = field(default_factory=list)
    untried: list[int] = field(default_factory=list)
    measured: int = 0
    out_of_time: bool = False


@dataclass(slots=True)
class Tuner:
    """Tunes `jobs` by sweeps into `results`.

    crew: its workers measure with `settings`, by which it was made; for the finals it gives others
    on the same places (`Crew.measuring`). save: called with all rows there are, each time some are
    new. final: how the finals measure. seconds: after so many no search takes another step; the
    finals follow all the same, in one take. building, measuring:
    contexts that show how far each sweep is (`sweep.sweep`).
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
    building: Callable[[], AbstractContextManager[BuildProgress | None]] = nullcontext
    measuring: Callable[[], AbstractContextManager[Progress | None]] = nullcontext
    _builds: dict[Group, dict[str, str]] = field(init=False, default_factory=dict)
    """The key of each kernel's binary today."""

    def __post_init__(self) -> None:
        configs: dict[Group, dict[str, Any]] = {}
        for job in self.jobs:
            configs.setdefault(job.group, {}).update(job.configs)
        for group, named in configs.items():
            keys = build_keys([*named.values()], group.device.arch, group.interpreted)
            self._builds[group] = dict(zip(named, keys, strict=True))

    def run(self) -> Tuned:
        """Search, then finals. Raises what sweeps raise; what was found until then is saved."""
        tuned, before, begun = Tuned(), len(self.results), time.monotonic()
        with ExitStack() as crews:
            following: Crew | None = None
            for some in _few(range(len(self.jobs))):
                while wanted := self._steps(some):
                    if self.seconds is not None and time.monotonic() - begun > self.seconds:
                        tuned.out_of_time = True
                        break
                    if following is None:
                        following = self._crew(crews, 1)
                    self._sweep(self.crew, wanted, self.settings, vendor=True)
                self._found(tuned, some)
            self.crew.close()
            self._finals(tuned, crews, following)
        tuned.measured = len(self.results) - before
        return tuned

    def tried(self, job: Job, settings: Settings) -> dict[str, Tried]:
        """What the results have of a job's configs, as they are built today."""
        key = (
            problem_text(job.problem),
            digest(job.group.device),
            job.group.environment.digest,
            settings_on(job.group, settings).digest,
        )
        builds, where = self._builds[job.group], str(self.results.path)
        return {
            name: Tried(
                status,
                samples(taken, where),
                median or 0.0,
                (low or 0.0, high or 0.0),
                worst,
                at,
            )
            for name, build, status, taken, median, low, high, worst, at in self.results.rows(
                _TRIED, _TriedRow, key
            )
            if name in job.configs and builds[name] == build
        }

    # --- search -----------------------------------------------------------------------------

    def _steps(self, numbers: Iterable[int]) -> dict[int, Sequence[str]]:
        """The next step of each job whose search is not over."""
        wanted = {}
        for number in numbers:
            job = self.jobs[number]
            known = {
                name: one.median_us if one.status == "ok" else None
                for name, one in self.tried(job, self.settings).items()
            }
            starters = [config.name for config in job.starters]
            if step := next_step(job.names, known, self.effort, starters):
                wanted[number] = step
        return wanted

    def _found(self, tuned: Tuned, numbers: Iterable[int]) -> None:
        """Make rows of what searches found, where nothing is proven, and save."""
        for number in numbers:
            job = self.jobs[number]
            right = self._right(job)
            if not right:
                nothing = not self.tried(job, self.settings)
                (tuned.untried if nothing else tuned.without).append(number)
            elif not self._kept(job):
                tuned.rows[number] = row_of(job, [right], settings_on(job.group, self.settings))
        self.save(tuned.rows.values())

    def _right(self, job: Job) -> dict[str, Tried]:
        """What came out right in the search, and in every take of the finals since."""
        takes = self._begun(job)
        return {
            name: one
            for name, one in self.tried(job, self.settings).items()
            if one.status == "ok" and all(t[name].status == "ok" for t in takes if name in t)
        }

    def _kept(self, job: Job) -> str:
        """The proven kernel: of a row, unless a search left it whose finals were not held; else
        ``""``."""
        if job.row is None or job.row.timed == text(settings_on(job.group, self.settings)):
            return ""
        return job.row.kernel

    # --- finals -----------------------------------------------------------------------------

    def _finals(self, tuned: Tuned, crews: ExitStack, following: Crew | None) -> None:
        """Takes, each by a crew of its own, of the jobs that are not decided. A row is made when
        its job is decided, so that a tuning that is stopped before does not take it for proven.
        following: the crew of the first take, if it is there already: workers import torch while
        what comes before them is measured."""
        without = {*tuned.without, *tuned.untried}
        left: Sequence[int] = [n for n in range(len(self.jobs)) if n not in without]
        most = 1 if tuned.out_of_time else self.effort.takes
        for take in range(1, 1 + most):
            if not left:
                break
            crew = following or self._crew(crews, take)
            following = self._crew(crews, take + 1) if take < most else None
            in_doubt: list[int] = []
            for some in _few(left):
                finalists = {n: self._finalists(self.jobs[n]) for n in some}
                self._sweep(crew, finalists, replace(self.final, take=take), vendor=False)
                told = {n: self._decided(self.jobs[n]) for n in some}
                self._settle(tuned, [n for n in some if told[n]])
                in_doubt += [n for n in some if not told[n]]
            crew.close()
            left = in_doubt
        self._settle(tuned, left)

    def _crew(self, crews: ExitStack, take: int) -> Crew:
        return crews.enter_context(self.crew.measuring(replace(self.final, take=take)))

    def _takes(self, job: Job) -> list[dict[str, Tried]]:
        """What each take of the finals came to, as far as they are complete."""
        finalists = {*self._finalists(job)}
        return [take for take in self._begun(job) if finalists <= take.keys()]

    def _begun(self, job: Job) -> list[dict[str, Tried]]:
        """The same of all takes; of the last, perhaps not all was measured."""
        found = []
        for take in range(1, 1 + self.effort.takes):
            tried = self.tried(job, replace(self.final, take=take))
            if not tried:
                break
            found.append(tried)
        return found

    def _finalists(self, job: Job) -> Sequence[str]:
        """Those near the best of the search, and the proven one, which a row has to better; but
        for those that a take found wrong."""
        found = self.tried(job, self.settings)
        medians = {name: one.median_us for name, one in found.items() if one.status == "ok"}
        # Of two batches, one may have been measured for longer, when the clock was down; or later.
        times = pooled([_right_of(found)])
        least = min(medians.values())
        over = {name: min(medians[name] / least, times[name]) for name in medians}
        near = sorted((n for n in over if over[n] <= 1 + NEAR), key=over.__getitem__)
        chosen = near[:FINALISTS]
        kept = self._kept(job)
        if kept in medians and kept not in chosen:
            chosen.append(kept)
        right = self._right(job)
        return [name for name in chosen if name in right]

    def _decided(self, job: Job) -> bool:
        takes = self._takes(job)
        kept = self._kept(job)
        return len(takes) >= self.effort.takes or decided(
            [_right_of(take) for take in takes], preference(job.problem, job.group.device), kept
        )

    def _settle(self, tuned: Tuned, numbers: Iterable[int]) -> None:
        """Make rows of what the finals say, and save. Where no finalist came out right again, the
        best of the others stands as the search left it."""
        for number in numbers:
            job = self.jobs[number]
            takes = self._takes(job)
            if pooled([_right_of(take) for take in takes]):
                settings = settings_on(job.group, replace(self.final, take=len(takes)))
                tuned.rows[number] = row_of(job, takes, settings, self._kept(job))
                tuned.final.add(number)
            elif right := self._right(job):
                settings = settings_on(job.group, self.settings)
                tuned.rows[number] = row_of(job, [right], settings)
            else:
                tuned.rows.pop(number, None)
                tuned.without.append(number)
        self.save(tuned.rows.values())

    # --- measuring --------------------------------------------------------------------------

    def _sweep(
        self, crew: Crew, wanted: Mapping[int, Sequence[str]], settings: Settings, vendor: bool
    ) -> None:
        by_group: dict[Group, list[tuple[Any, Sequence[Any]]]] = {}
        for number, names in wanted.items():
            job = self.jobs[number]
            chosen = [job.configs[name] for name in names]
            by_group.setdefault(job.group, []).append((job.problem, chosen))
        known = self.results.keys(problems={problem_text(self.jobs[n].problem) for n in wanted})
        sweep(
            plan_some([*by_group.items()], settings, known, vendor),
            self.results,
            self.store,
            lambda: _Lent(crew),
            building=self.building,
            measuring=self.measuring,
        )


def row_of(
    job: Job, takes: Sequence[Mapping[str, Tried]], settings: Settings, kept: str = ""
) -> Row:
    """The row that measurements of one kind give, some kernel being right in all of them. `kept`
    wins if it is not beaten."""
    times = pooled([_right_of(take) for take in takes])
    name = winner(times, preference(job.problem, job.group.device), kept)
    won = [take[name] for take in takes]
    # To the nanosecond, which is finer than any clock here: tables are read by people too.
    low_us, high_us = (round(mean(one.interval_us[end] for one in won), 3) for end in (0, 1))
    errors = [one.error for one in won if one.error is not None]
    return Row(
        job.group.device,
        job.problem,
        name,
        tuple(tied for tied in ties(times) if tied != name),
        round(mean(one.median_us for one in won), 3),
        (low_us, high_us),
        max(errors, default=None),
        max(one.measured_at for one in won),
        job.group.environment.versions,
        job.group.environment.driver,
        text(settings),
    )


def _right_of(take: Mapping[str, Tried]) -> Take:
    return {name: one.samples_us for name, one in take.items() if one.status == "ok"}


_TRIED = """
SELECT kernel.name, kernel.build, status, samples_us, median_us, low_us, high_us, worst, measured_at
FROM measurement JOIN kernel ON kernel.id = measurement.kernel WHERE
    problem = (SELECT id FROM problem WHERE text = ?)
    AND device = (SELECT id FROM device WHERE digest = ?)
    AND environment = (SELECT id FROM environment WHERE digest = ?)
    AND settings = (SELECT id FROM settings WHERE digest = ?)
ORDER BY measurement.id
"""


_TriedRow = tuple[str, str, Status, bytes, Us | None, Us | None, Us | None, float | None, str]


def _few(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for at in range(0, len(numbers), TOGETHER):
        yield numbers[at : at + TOGETHER]


class _Lent:
    """A crew that a sweep may close, and that goes on all the same."""

    def __init__(self, crew: Crew) -> None:
        self.run = crew.run

    def close(self) -> None:
        """Leave the workers where they are."""
