"""Summarises the results of a sweep: the best kernel of each problem, how the other measurements
ended, how much was covered, which rules refused pairs, and which builds took long.

Measurements from different devices, environments or settings are never compared. Each combination
is a setup, with its own summary.
"""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.measure.measurement import Status
from tilewright.measure.results import Build, Results, Seconds, Us, read_problem
from tilewright.measure.statistics import indistinguishable, reach
from tilewright.measure.vendor import is_vendor
from tilewright.throughput import gb_per_s, tflops

SECONDS_FROM = 1000
"""Number of recent measurements from which the time of the next is estimated."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Where and how measurements were made: the device's name and architecture, and digests of its
    fingerprint, the environment and the settings."""

    device: str
    arch: str
    fingerprint: str
    environment: str
    settings: str


@dataclass(frozen=True, slots=True)
class Best:
    """The kernel with the least median for `problem`.

    median_us, interval_us: that median and its confidence interval, in microseconds.
    ties: the other kernels that cannot be told from it, fastest first.
    vendor_us: the median of the vendor's library, the least over its versions; None if it was not
        measured.
    """

    setup: Setup
    problem: Any
    kernel: str
    median_us: float
    interval_us: tuple[float, float]
    tflops: float
    gb_per_s: float
    ties: tuple[str, ...]
    vendor_us: float | None = None

    @property
    def vendor_ratio(self) -> float | None:
        """The vendor's time over the best kernel's: above 1, the kernel is faster."""
        return None if self.vendor_us is None else self.vendor_us / self.median_us


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a setup's table of kernels × problems has results.

    statuses: number of measurements by status, without the vendor's library.
    vendor: the same for the vendor's library.
    without: problems that no kernel computed correctly.
    """

    setup: Setup
    kernels: int
    problems: int
    statuses: dict[str, int]
    vendor: dict[str, int]
    without: tuple[Any, ...]

    @property
    def measured(self) -> int:
        return sum(self.statuses.values())

    @property
    def share(self) -> float:
        """Share of all pairs that have a result of any kind."""
        return self.measured / (self.kernels * self.problems) if self.kernels else 0.0


_SETUP = "device, environment, settings"

_OF_ONE = """
SELECT kernel, median_us, low_us, high_us FROM measurement INDEXED BY ranked WHERE status = 'ok'
    AND (problem, device, environment, settings) = (?, ?, ?, ?) AND low_us IS NOT NULL
    ORDER BY low_us
"""


def best(results: Results) -> list[Best]:
    """The best kernel for each problem on each setup, in the order in which problems were first
    measured."""
    setups = _setups(results)
    listed = results.rows("SELECT id, name FROM kernel", tuple[int, str])
    names = results.numbered_in("kernel", listed)
    vendors = _vendors(results)
    found = []
    for number, said, flops, moved in results.rows(
        "SELECT id, text, flops, min_bytes FROM problem ORDER BY id",
        tuple[int, str, int | float, int | float],
    ):
        for setup in setups:
            candidates = _candidates(results, number, setup, vendors)
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
                    tflops(flops, median),
                    gb_per_s(moved, median),
                    tuple(names[kernel] for kernel in ties[1:]),
                    _vendor_us(results, number, setup, vendors),
                )
            )
    return found


def _candidates(
    results: Results, problem: int, setup: tuple[int, int, int], vendors: Collection[int]
) -> dict[int, tuple[float, tuple[float, float]]]:
    """The medians and intervals of the best kernel, its ties, and some others. Kernels are read by
    lower ends of their intervals, until one is beyond the reach of the best so far: no later kernel
    can be a tie."""
    found: dict[int, tuple[float, tuple[float, float]]] = {}
    least, limit = math.inf, math.inf
    for kernel, median, low, high in results.rows(
        _OF_ONE, tuple[int, Us, Us, Us], (problem, *setup)
    ):
        if low > limit:
            break
        if kernel in vendors:
            continue
        found[kernel] = (median, (low, high))
        if median < least:
            least, limit = median, reach((low, high))
    return found


def _vendors(results: Results) -> set[int]:
    """The numbers of the entries that are the vendor's library, not kernels."""
    listed = results.rows("SELECT id, name FROM kernel", tuple[int, str])
    return {i for i, name in listed if is_vendor(name)}


_VENDOR_US = """
SELECT median_us FROM measurement WHERE status = 'ok'
    AND (problem, kernel, device, environment, settings) = (?, ?, ?, ?, ?)
"""


def _vendor_us(
    results: Results, problem: int, setup: tuple[int, int, int], vendors: Iterable[int]
) -> float | None:
    """The least median of the vendor's library."""
    rows = [
        row for v in vendors for row in results.rows(_VENDOR_US, tuple[Us], (problem, v, *setup))
    ]
    return min((median for (median,) in rows), default=None)


_WITHOUT = """
SELECT text FROM problem WHERE EXISTS (
    SELECT 1 FROM measurement WHERE problem = problem.id
    AND (device, environment, settings) = (?, ?, ?))
AND NOT EXISTS (
    SELECT 1 FROM measurement INDEXED BY ranked WHERE status = 'ok' AND problem = problem.id
    AND (device, environment, settings) = (?, ?, ?)
    AND kernel NOT IN (SELECT value FROM json_each(?)))
AND NOT EXISTS (
    SELECT 1 FROM measurement WHERE status = 'executed' AND problem = problem.id
    AND (device, environment, settings) = (?, ?, ?))
ORDER BY id
"""


def coverage(results: Results) -> list[Coverage]:
    """How much was measured, for each setup."""
    vendors = json.dumps(sorted(_vendors(results)))
    counted = f"SELECT {_SETUP}, status, count(*) FROM measurement GROUP BY 1, 2, 3, 4"
    kind = tuple[int, int, int, Status, int]
    all_statuses = _statuses(results.rows(counted, kind))
    vendor = _statuses(results.rows(_OF_VENDORS, kind, (vendors,)))
    kernels, problems = (_distinct(results, column, vendors) for column in ("kernel", "problem"))
    where = str(results.path)
    return [
        Coverage(
            setup,
            kernels[key],
            problems[key],
            dict((all_statuses[key] - vendor[key]).most_common()),
            dict(vendor[key].most_common()),
            tuple(
                read_problem(said, where)
                for (said,) in results.rows(_WITHOUT, tuple[str], (*key, *key, vendors, *key))
            ),
        )
        for key, setup in _setups(results).items()
    ]


_OF_VENDORS = f"""
SELECT {_SETUP}, status, count(*) FROM json_each(?) AS vendor CROSS JOIN problem CROSS JOIN
    measurement ON (problem, kernel) = (problem.id, vendor.value) GROUP BY 1, 2, 3, 4
"""
"""Uses the index of (problem, kernel, …), because there are few such kernels."""


def _statuses(rows: Iterable[Sequence[Any]]) -> defaultdict[tuple[int, ...], Counter[str]]:
    """Counts of statuses by setup."""
    found: defaultdict[tuple[int, ...], Counter[str]] = defaultdict(Counter)
    for *key, status, count in rows:
        found[tuple(key)][status] = count
    return found


def _distinct(results: Results, column: str, vendors: str) -> Counter[tuple[int, ...]]:
    """How many different values of `column` each setup has, among measurements of kernels."""
    rows = results.rows(
        f"SELECT DISTINCT {_SETUP}, {column} FROM measurement "
        "WHERE kernel NOT IN (SELECT value FROM json_each(?))",
        tuple[int, int, int, int],
        (vendors,),
    )
    return Counter((d, e, s) for d, e, s, _ in rows)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why pairs have no time: how many, and the reason of one of them.

    rule: what refused them; "" for what a kernel said when it was called.
    """

    rule: str
    count: int
    reason: str


def refusals(results: Results) -> list[Refusal]:
    """What refused pairs of a kernel and a problem, that of most pairs first."""
    rows = results.rows(
        # A verdict is "rule: reason", and a rule is one word; whatever else was said has none.
        "SELECT CASE WHEN instr(reason, ': ') > 1 AND instr(reason, ' ') > instr(reason, ': ') "
        "THEN substr(reason, 1, instr(reason, ': ') - 1) ELSE '' END AS rule, count(*), "
        "min(reason) FROM measurement WHERE status = 'unsupported' "
        "GROUP BY rule ORDER BY 2 DESC, rule",
        tuple[str, int, str],
    )
    return [Refusal(r, count, said.removeprefix(f"{r}: ")) for r, count, said in rows]


def slowest_builds(results: Results, limit: int) -> list[Build]:
    """The kernels that took longest to compile, slowest first."""
    return heapq.nlargest(limit, results.builds(), key=lambda build: build.seconds)


def seconds_each(results: Results) -> tuple[float | None, float | None]:
    """Mean wall-clock seconds of a measurement and of a build; None if there was none."""
    ((measuring,),) = results.rows(
        "SELECT avg(seconds) FROM (SELECT seconds FROM measurement WHERE status NOT IN "
        "('unsupported', 'build_failed') ORDER BY id DESC LIMIT ?)",
        tuple[Seconds | None],
        (SECONDS_FROM,),
    )
    ((building,),) = results.rows("SELECT avg(seconds) FROM build", tuple[Seconds | None])
    return measuring, building


def _setups(results: Results) -> dict[tuple[int, int, int], Setup]:
    """Every setup with measurements, by the numbers of its rows."""
    said = (
        "SELECT device.id, environment.id, settings.id, name, arch, device.digest, "
        "environment.digest, settings.digest FROM device, environment, settings WHERE EXISTS "
        "(SELECT 1 FROM measurement INDEXED BY fate WHERE (device, environment, settings) = "
        "(device.id, environment.id, settings.id)) ORDER BY 1, 2, 3"
    )
    kind = tuple[int, int, int, str, str, str, str, str]
    return {(d, e, s): Setup(*told) for d, e, s, *told in results.rows(said, kind)}
