"""What the results of a sweep say: the best kernel of each problem, what came of the rest, what
was covered, what took long to build.

Measurements of different devices, environments or settings are never compared: each such setup
has its own answers.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
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

_BEST = """
WITH best AS (
    SELECT problem, device, environment, settings, min(median_us) AS median_us, high_us
    FROM measurement INDEXED BY ranked WHERE status = 'ok' GROUP BY 1, 2, 3, 4)
SELECT best.problem, best.device, best.environment, best.settings, kernel.name, m.kernel,
    m.median_us, m.low_us, m.high_us
FROM best CROSS JOIN measurement AS m INDEXED BY ranked
    ON (m.problem, m.device, m.environment, m.settings)
        = (best.problem, best.device, best.environment, best.settings)
    AND m.status = 'ok' AND (m.low_us <= best.high_us OR m.median_us = best.median_us)
CROSS JOIN kernel ON kernel.id = m.kernel
ORDER BY best.problem, best.device, best.environment, best.settings, m.median_us, m.kernel
"""
"""The candidates that `indistinguishable` may find, of every problem and setup."""


def best(results: Results) -> list[Best]:
    """The best kernel for each problem on each setup, in the order problems were first measured."""
    setups = _setups(results)
    problems = {
        row[0]: row[1:]
        for row in results.query("SELECT id, text, flops, min_bytes FROM problem")[1]
    }
    found = []
    for key, rows in itertools.groupby(results.query(_BEST)[1], key=lambda row: row[:4]):
        candidates = {kernel: (name, us, (low, high)) for *_, name, kernel, us, low, high in rows}
        ties = indistinguishable(
            {kernel: us for kernel, (_, us, _) in candidates.items()},
            {kernel: interval for kernel, (_, _, interval) in candidates.items()},
        )
        name, median, interval = candidates[ties[0]]
        said, flops, moved = problems[key[0]]
        found.append(
            Best(
                setups[key[1:]],
                read_problem(said, str(results.path)),
                name,
                median,
                interval,
                flops / median / 1e6,
                moved / median / 1e3,
                tuple(candidates[kernel][0] for kernel in ties[1:]),
            )
        )
    return found


def coverage(results: Results) -> list[Coverage]:
    """How much was measured, for each setup."""
    statuses: dict[Any, dict[str, int]] = {}
    counted = f"SELECT {_SETUP}, status, count(*) FROM measurement GROUP BY 1, 2, 3, 4"
    for *key, status, count in results.query(counted)[1]:
        statuses.setdefault(tuple(key), {})[status] = count
    setups = _setups(results)
    pairs = "count(DISTINCT kernel), count(DISTINCT problem)"
    found = []
    for *key, kernels, problems in results.query(
        f"SELECT {_SETUP}, {pairs} FROM measurement GROUP BY 1, 2, 3 ORDER BY min(id)"
    )[1]:
        without = results.query(
            "SELECT text FROM problem WHERE id IN (SELECT problem FROM measurement WHERE "
            "(device, environment, settings) = (?, ?, ?)) AND NOT EXISTS (SELECT 1 FROM "
            "measurement WHERE problem = problem.id AND "
            "(device, environment, settings) = (?, ?, ?) AND status = 'ok') ORDER BY id",
            (*key, *key),
        )[1]
        found.append(
            Coverage(
                setups[tuple(key)],
                kernels,
                problems,
                dict(sorted(statuses[tuple(key)].items(), key=lambda one: -one[1])),
                tuple(read_problem(said, str(results.path)) for (said,) in without),
            )
        )
    return found


def slowest_builds(results: Results, limit: int) -> list[Build]:
    """The kernels that took longest to compile, slowest first."""
    return heapq.nlargest(limit, results.builds(), key=lambda build: build.seconds)


def seconds_each(results: Results) -> tuple[float | None, float | None]:
    """Mean seconds of wall time that a measurement took, and a build; None where there was none."""
    ((measuring,),) = results.query(
        "SELECT avg(seconds) FROM (SELECT seconds FROM measurement WHERE status NOT IN "
        "('unsupported', 'build_failed') ORDER BY id DESC LIMIT ?)",
        (SECONDS_FROM,),
    )[1]
    ((building,),) = results.query("SELECT avg(seconds) FROM build")[1]
    return measuring, building


def _setups(results: Results) -> dict[tuple[int, int, int], Setup]:
    """Every setup there may be, by its rows' numbers."""
    tables: list[list[tuple[Any, ...]]] = [
        results.query(f"SELECT {columns} FROM {table} ORDER BY id")[1]
        for table, columns in (
            ("device", "id, name, arch, digest"),
            ("environment", "id, digest"),
            ("settings", "id, digest"),
        )
    ]
    return dict(_products(tables))


def _products(
    tables: list[list[tuple[Any, ...]]],
) -> Iterator[tuple[tuple[int, int, int], Setup]]:
    for device, environment, settings in itertools.product(*tables):
        number, name, arch, fingerprint = device
        setup = Setup(name, arch, fingerprint, environment[1], settings[1])
        yield (number, environment[0], settings[0]), setup
