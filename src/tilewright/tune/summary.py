"""What the results of a sweep say: the best kernel of each problem, what came of the rest, what
was covered, what took long to build.

Measurements of different devices, environments or settings are never compared: each such setup
has its own answers.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tilewright.tune.results import Build, Results, read_problem
from tilewright.tune.statistics import indistinguishable

SECONDS_FROM = 1000
"""How many of the last measurements the time of another is estimated from."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Where and how measurements were made: the device's name and architecture, and digests of
    its fingerprint, the environment and the settings."""

    device: str
    arch: str
    fingerprint: str
    environment: str
    settings: str


@dataclass(frozen=True, slots=True)
class Best:
    """The kernel of the least median for `problem`, with that median and its confidence interval
    in microseconds. ties: the other kernels that cannot be told from it, fastest first."""

    setup: Setup
    problem: Any
    kernel: str
    median_us: float
    interval_us: tuple[float, float]
    tflops: float
    gb_per_s: float
    ties: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a setup's table of kernels × problems is there. statuses: how many
    measurements ended how. without: problems that no kernel computed rightly."""

    setup: Setup
    kernels: int
    problems: int
    statuses: dict[str, int]
    without: tuple[Any, ...]

    @property
    def measured(self) -> int:
        return sum(self.statuses.values())

    @property
    def share(self) -> float:
        """Of all pairs, those with a result of any kind."""
        return self.measured / (self.kernels * self.problems)


_SETUP = "device, environment, settings"

_OF_ONE = """
SELECT kernel, median_us, low_us, high_us FROM measurement INDEXED BY ranked WHERE status = 'ok'
    AND (problem, device, environment, settings) = (?, ?, ?, ?) AND low_us IS NOT NULL
    ORDER BY low_us
"""


def best(results: Results) -> list[Best]:
    """The best kernel for each problem on each setup, in the order problems were first measured."""
    setups = _setups(results)
    names = dict(results.rows("SELECT id, name FROM kernel"))
    found = []
    for number, said, flops, moved in results.rows(
        "SELECT id, text, flops, min_bytes FROM problem ORDER BY id"
    ):
        for setup in setups:
            candidates = _candidates(results, number, setup)
            if not candidates:
                continue
            ties = indistinguishable(
                {kernel: median for kernel, (median, _) in candidates.items()},
                {kernel: interval for kernel, (_, interval) in candidates.items()},
            )
            median, interval = candidates[ties[0]]
            found.append(
                Best(
                    setups[setup],
                    read_problem(said, str(results.path)),
                    names[ties[0]],
                    median,
                    interval,
                    flops / median / 1e6,
                    moved / median / 1e3,
                    tuple(names[kernel] for kernel in ties[1:]),
                )
            )
    return found


def _candidates(
    results: Results, problem: int, setup: tuple[int, int, int]
) -> dict[int, tuple[float, tuple[float, float]]]:
    """The medians and intervals among which are the best kernel's and its ties': by lower ends,
    until one is over the upper end of the best so far, which no later one can be better than."""
    found: dict[int, tuple[float, tuple[float, float]]] = {}
    least, limit = math.inf, math.inf
    for kernel, median, low, high in results.rows(_OF_ONE, (problem, *setup)):
        if low > limit:
            break
        found[kernel] = (median, (low, high))
        if median < least:
            least, limit = median, high
    return found


_WITHOUT = """
SELECT text FROM problem WHERE EXISTS (
    SELECT 1 FROM measurement WHERE problem = problem.id
    AND (device, environment, settings) = (?, ?, ?))
AND NOT EXISTS (
    SELECT 1 FROM measurement INDEXED BY ranked WHERE status = 'ok' AND problem = problem.id
    AND (device, environment, settings) = (?, ?, ?))
ORDER BY id
"""


def coverage(results: Results) -> list[Coverage]:
    """How much was measured, for each setup."""
    statuses: dict[Any, dict[str, int]] = {}
    counted = f"SELECT {_SETUP}, status, count(*) FROM measurement GROUP BY 1, 2, 3, 4"
    for *key, status, count in results.rows(counted):
        statuses.setdefault(tuple(key), {})[status] = count
    kernels, problems = (_distinct(results, column) for column in ("kernel", "problem"))
    where = str(results.path)
    return [
        Coverage(
            setup,
            kernels[key],
            problems[key],
            dict(sorted(statuses[key].items(), key=lambda one: -one[1])),
            tuple(read_problem(said, where) for (said,) in results.rows(_WITHOUT, (*key, *key))),
        )
        for key, setup in _setups(results).items()
    ]


def _distinct(results: Results, column: str) -> Counter[tuple[int, ...]]:
    """How many different ones each setup has."""
    rows = results.rows(f"SELECT DISTINCT {_SETUP}, {column} FROM measurement")
    return Counter((d, e, s) for d, e, s, _ in rows)


def slowest_builds(results: Results, limit: int) -> list[Build]:
    """The kernels that took longest to compile, slowest first."""
    return heapq.nlargest(limit, results.builds(), key=lambda build: build.seconds)


def seconds_each(results: Results) -> tuple[float | None, float | None]:
    """Mean seconds of wall time that a measurement took, and a build; None where there was none."""
    ((measuring,),) = results.rows(
        "SELECT avg(seconds) FROM (SELECT seconds FROM measurement WHERE status NOT IN "
        "('unsupported', 'build_failed') ORDER BY id DESC LIMIT ?)",
        (SECONDS_FROM,),
    )
    ((building,),) = results.rows("SELECT avg(seconds) FROM build")
    return measuring, building


def _setups(results: Results) -> dict[tuple[int, int, int], Setup]:
    """Every setup that something was measured with, by its rows' numbers."""
    said = (
        "SELECT device.id, environment.id, settings.id, name, arch, device.digest, "
        "environment.digest, settings.digest FROM device, environment, settings WHERE EXISTS "
        "(SELECT 1 FROM measurement INDEXED BY fate WHERE (device, environment, settings) = "
        "(device.id, environment.id, settings.id)) ORDER BY 1, 2, 3"
    )
    return {(d, e, s): Setup(*told) for d, e, s, *told in results.rows(said)}
