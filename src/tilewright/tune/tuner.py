"""Tuning: finds the proven kernel for each problem and writes it as a row of a table.

    search: steps of candidates, the present choice and the analytical best first (`search`)
    finals: the kernels near the best again, together, for longer, in takes (`finals`)
    row: of the kernels that the finals do not tell apart, the winner for most limits (`finals`)

Sweeps into one directory make all measurements, so an interrupted tuning continues where it stopped
and ends as if it had not been interrupted. Rows are saved after every few problems. The result of a
search is saved if the table has no proven row. The first step measures the present choice, so such
a row is no worse than it, up to noise. Only finals replace a proven row, because medians of
different batches and workers differ by more than their intervals say (`statistics.REPEATABILITY`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import mean
from typing import Any

from tilewright.compile import Store, build_keys
from tilewright.compile.report import Progress as BuildProgress
from tilewright.measure.crew import Crew
from tilewright.measure.measurement import Settings, Status, digest, problem_text, text
from tilewright.measure.results import Results, Us, samples
from tilewright.measure.sweep import Group, Progress, plan_some, settings_on, sweep
from tilewright.ops.library import library_of
from tilewright.tables.row import Row, preference
from tilewright.tune.coming import Coming
from tilewright.tune.finals import Take, decided, pooled, ties, winner
from tilewright.tune.jobs import Job
from tilewright.tune.search import Effort, next_step

NEAR = 0.06
"""A kernel whose median exceeds the best of the search by at most this share enters the finals. A
kernel that is certainly 4 % behind the best of its batch is out of the race. Medians of two batches
differ by 2 % because of the clock alone (by 13 % where one batch was long enough for a large
product to reach the power limit; by rounds they were then closer)."""

SEARCH = Settings(warm_up_seconds=0.03, min_samples=6, budget_seconds=0.25, race=0.04)
"""How a search measures by default. Its medians must show which kernels are near the best, and of
the others only that they are not. The settings of sweeps take longer (docs/notes/tune.md)."""
FINAL = Settings(
    warm_up_seconds=0.05,
    precision=0.003,
    min_samples=20,
    max_samples=1000,
    budget_seconds=0.15,
    race=0.02,
    places=4,
)
"""How the finals measure in each take. Takes differ by more than this precision. A kernel that is
out of the race is too slow to win (`finals.ties`), whatever more samples would show."""

FINALISTS = 12
"""At most this many, plus the proven kernel; all run in turns (`Settings.interleave`)."""

TOGETHER = 32
"""The usual `Tuner.together`."""


def final_of(search: Settings) -> Settings:
    """How the finals measure behind a search of these settings: by the same timer, with the same
    state of L2, and no longer. Copies of the inputs that rotate are places enough."""
    places = 1 if search.cache == "rotated" else FINAL.places
    budget = min(FINAL.budget_seconds, search.budget_seconds)
    return replace(
        FINAL, timer=search.timer, cache=search.cache, places=places, budget_seconds=budget
    )


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of measuring a kernel on a problem.

    samples_us: by round.
    error: the worst, as a multiple of the tolerance; None if it was not verified.
    """

    status: str
    samples_us: Sequence[float]
    median_us: float
    interval_us: tuple[float, float]
    error: float | None
    measured_at: str


@dataclass(slots=True)
class Tuned:
    """The result of a tuning, by the numbers of its jobs.

    rows: by job.
    final: jobs whose row the finals decided.
    without: jobs for which no kernel was right.
    untried: jobs without a measurement.
    measured: number of new measurements.
    out_of_time: whether the time ran out.
    """

    rows: dict[int, Row] = field(default_factory=dict)
    final: set[int] = field(default_factory=set)
    without: list[int] = field(default_factory=list)
    untried: list[int] = field(default_factory=list)
    measured: int = 0
    out_of_time: bool = False


@dataclass(slots=True)
class Tuner:
    """Tunes `jobs` by sweeps into `results`.

    crew: its workers measure with `settings`. For the finals it makes other crews on the same
        places (`Crew.measuring`).
    save: is called with all rows, each time there are new ones.
    final: how the finals measure.
    seconds: after this time no search takes another step; the finals still follow, in one take.
    together: number of problems that are measured and saved before the next ones.
    building, measuring: contexts that show the progress of each sweep (`sweep.sweep`).
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
    together: int = TOGETHER
    building: Callable[[], AbstractContextManager[BuildProgress | None]] = nullcontext
    measuring: Callable[[], AbstractContextManager[Progress | None]] = nullcontext
    _builds: dict[tuple[Group, str], str] = field(init=False, default_factory=dict)
    """Keys of present binaries, by the kernel's name: of those that were measured, which are few of
    the candidates."""

    def run(self) -> Tuned:
        """Search, then hold the finals. Raises the errors of sweeps; rows found before an error are
        saved."""
        tuned, before, begun = Tuned(), len(self.results), time.monotonic()
        with ExitStack() as crews:
            following: Crew | None = None
            coming = crews.enter_context(Coming(self.store, self.results))
            batches = [*_few(range(len(self.jobs)), self.together)]
            for some, after in zip_longest(batches, batches[1:], fillvalue=()):
                coming.finish()
                if not tuned.out_of_time:
                    coming.begin(self._requests(self._steps(after)))
                while wanted := self._steps(some):
                    if self.seconds is not None and time.monotonic() - begun > self.seconds:
                        tuned.out_of_time = True
                        break
                    if following is None:
                        following = self._crew(crews, 1)
                    self._sweep(self.crew, wanted, self.settings, self.effort.beside)
                self._found(tuned, some)
            self.crew.close()
            self._finals(tuned, crews, following)
        tuned.measured = len(self.results) - before
        return tuned

    def tried(self, job: Job, settings: Settings) -> dict[str, Tried]:
        """The results for a job's configs with their present binaries."""
        key = (
            problem_text(job.problem),
            digest(job.group.device),
            job.group.environment.digest,
            settings_on(job.group, settings).digest,
        )
        where = str(self.results.path)
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
            if name in job.configs and self._build(job, name) == build
        }

    def _build(self, job: Job, name: str) -> str:
        """The key of a kernel's present binary."""
        group = job.group
        if (group, name) not in self._builds:
            keys = build_keys([job.configs[name]], group.device.arch, group.interpreted)
            self._builds[group, name] = keys[0]
        return self._builds[group, name]

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
            starters = [config.name for config in (*job.starters, *job.algorithms)]
            if step := next_step(job.names, known, self.effort, starters):
                wanted[number] = step
        return wanted

    def _requests(self, wanted: Mapping[int, Sequence[str]]) -> list[tuple[Any, str]]:
        """What must be built before the kernels of these steps are measured."""
        jobs = ((self.jobs[number], names) for number, names in wanted.items())
        return [
            (job.configs[name], job.group.device.arch)
            for job, names in jobs
            if not job.group.interpreted
            for name in names
            if not _librarys(job, name)
        ]

    def _found(self, tuned: Tuned, numbers: Iterable[int]) -> None:
        """Make rows of what searches found, unless a kernel is proven, and save."""
        for number in numbers:
            job = self.jobs[number]
            right = self._right(job)
            if not right:
                nothing = not self.tried(job, self.settings)
                (tuned.untried if nothing else tuned.without).append(number)
            elif not self._kept(job):
                settings = settings_on(job.group, self.settings)
                tuned.rows[number] = row_of(job, [right], right, settings)
        self.save(tuned.rows.values())

    def _right(self, job: Job) -> dict[str, Tried]:
        """The kernels that were right in the search and in every take of the finals since."""
        takes = self._begun(job)
        return {
            name: one
            for name, one in self.tried(job, self.settings).items()
            if one.status == "ok" and all(t[name].status == "ok" for t in takes if name in t)
        }

    def _kept(self, job: Job) -> str:
        """The proven kernel: the row's, unless the row was left by a search without finals. ``""``
        if there is none."""
        if job.row is None or job.row.timed == text(settings_on(job.group, self.settings)):
            return ""
        return job.row.kernel

    # --- finals -----------------------------------------------------------------------------

    def _finals(self, tuned: Tuned, crews: ExitStack, following: Crew | None) -> None:
        """Hold takes, each with a new crew, of the jobs that are not decided. A row is made when
        its job is decided: a tuning that was interrupted before would otherwise take the row for
        proven.

        following: the crew of the first take if it exists already. Its workers import torch during
            the measurements before.
        """
        without = {*tuned.without, *tuned.untried}
        left: Sequence[int] = [n for n in range(len(self.jobs)) if n not in without]
        most = 1 if tuned.out_of_time else self.effort.takes
        for take in range(1, 1 + most):
            if not left:
                break
            crew = following or self._crew(crews, take)
            following = self._crew(crews, take + 1) if take < most else None
            in_doubt: list[int] = []
            for some in _few(left, self.together):
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
        """The results of each complete take of the finals."""
        finalists = {*self._finalists(job)}
        return [take for take in self._begun(job) if finalists <= take.keys()]

    def _begun(self, job: Job) -> list[dict[str, Tried]]:
        """The results of each take; the last take may be incomplete."""
        found = []
        for take in range(1, 1 + self.effort.takes):
            tried = self.tried(job, replace(self.final, take=take))
            if not tried:
                break
            found.append(tried)
        return found

    def _finalists(self, job: Job) -> Sequence[str]:
        """The kernels near the best of the search, and the proven kernel, which a new row must
        beat. Kernels that were wrong in a take are left out."""
        found = self.tried(job, self.settings)
        medians = {name: one.median_us for name, one in found.items() if one.status == "ok"}
        # One of two batches may have been measured for longer, at a lower clock; or later.
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
        """Make rows of the finals' results, and save. If no finalist was right again, the best of
        the other kernels stays as the search found it."""
        for number in numbers:
            job = self.jobs[number]
            takes = self._takes(job)
            if pooled([_right_of(take) for take in takes]):
                settings = settings_on(job.group, replace(self.final, take=len(takes)))
                kept = self._kept(job)
                tuned.rows[number] = row_of(job, takes, self._right(job), settings, kept)
                tuned.final.add(number)
            elif right := self._right(job):
                settings = settings_on(job.group, self.settings)
                tuned.rows[number] = row_of(job, [right], right, settings)
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
    job: Job,
    takes: Sequence[Mapping[str, Tried]],
    searched: Mapping[str, Tried],
    settings: Settings,
    kept: str = "",
) -> Row:
    """The row from measurements of one kind. At least one kernel is right in all of them. `kept`
    wins if it is not beaten. The best kernel that is built here may be known from `searched`, the
    search's results, alone."""
    times = pooled([_right_of(take) for take in takes])
    name = winner(times, preference(job.problem, job.group.device), kept)
    best = (name, *(tied for tied in ties(times) if tied != name))
    ours = [one for one in times | pooled([_right_of(searched)]) if not _librarys(job, one)]
    won = [take[name] for take in takes]
    # Round to the nanosecond, finer than any clock here, because people read tables too.
    low_us, high_us = (round(mean(one.interval_us[end] for one in won), 3) for end in (0, 1))
    errors = [one.error for one in won if one.error is not None]
    return Row(
        job.group.device,
        job.problem,
        name,
        best[1:],
        round(mean(one.median_us for one in won), 3),
        (low_us, high_us),
        max(errors, default=None),
        max(one.measured_at for one in won),
        job.group.environment.versions,
        job.group.environment.driver,
        text(settings),
        ours[0] if ours and all(_librarys(job, one) for one in best) else "",
    )


def _librarys(job: Job, name: str) -> bool:
    """Whether a kernel is an algorithm of a library, for which nothing is built."""
    return bool(library_of(job.configs[name]))


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


def _few(numbers: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    for at in range(0, len(numbers), count):
        yield numbers[at : at + count]


class _Lent:
    """A crew that a sweep may close without ending its workers."""

    def __init__(self, crew: Crew) -> None:
        self.run = crew.run

    def close(self) -> None:
        """Keep the workers running."""
