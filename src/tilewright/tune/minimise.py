"""Finds few kernels that are near the best on every problem of a sweep, because every binary has a
cost.

A kernel covers the problems on which it is within a share of the best. Covering all problems with
the fewest kernels is set cover, which is NP-hard. The search is greedy: it always takes the kernel
that covers most of the remaining problems, then drops kernels that the others make superfluous.
Greedy needs at most 1 + ln(n) times the minimum for n problems (V. Chvátal, A greedy heuristic for
the set-covering problem, 1979). If there are few enough combinations of fewer kernels, all are
tried, and the answer is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tilewright.errors import BadArgument
from tilewright.measure.results import Results, Us

COMBINATIONS = 300_000
"""At most this many are tried to improve on greedy: a second or two."""

Times = Mapping[tuple[str, str], Mapping[str, float]]
"""Microseconds of each kernel, by (problem, device)."""


@dataclass(frozen=True, slots=True)
class Minimal:
    """A small set of kernels.

    kernels: the set.
    exact: whether it is known that no smaller set exists.
    choice: for each (problem, device), its best kernel of the set, and the share of time that it
        loses.
    """

    kernels: tuple[str, ...]
    exact: bool
    choice: Mapping[tuple[str, str], tuple[str, float]]


def times_of(results: Results) -> Times:
    """The last valid median of each kernel on each problem and device, by `problem_text` and the
    device's name."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for problem, device, kernel, us in results.rows(
        "SELECT problem.text, device.name, kernel.name, median_us FROM measurement "
        "JOIN problem ON problem.id = problem JOIN kernel ON kernel.id = kernel "
        "JOIN device ON device.id = device "
        "WHERE status = 'ok' AND median_us IS NOT NULL AND kernel.name NOT LIKE 'vendor.%' "
        "ORDER BY measurement.id",
        tuple[str, str, str, Us],
    ):
        found.setdefault((problem, device), {})[kernel] = us
    return found


def minimise(times: Times, within: float) -> Minimal:
    """A set of kernels such that, on each problem, one of them is within `within` of the best.
    Deterministic: ties go to the first by name. Raises `BadArgument`."""
    if within < 0:
        raise BadArgument(f"within = {within} is less than 0")
    if not times:
        raise BadArgument("there is no measurement with status ok to choose from")
    covers: dict[str, int] = {}  # problems as bits
    for place, of in enumerate(times.values()):
        limit = min(of.values()) * (1 + within)
        for kernel, us in of.items():
            covers[kernel] = covers.get(kernel, 0) | (us <= limit) << place
    everything = (1 << len(times)) - 1
    chosen = _greedy(covers, everything)
    smaller, exact = _smaller(covers, everything, len(chosen))
    kernels = tuple(sorted(smaller or chosen))
    choice = {}
    for key, of in times.items():
        mine = min((us, kernel) for kernel, us in of.items() if kernel in kernels)
        choice[key] = (mine[1], mine[0] / min(of.values()) - 1)
    return Minimal(kernels, exact, choice)


def _greedy(covers: Mapping[str, int], everything: int) -> list[str]:
    left, chosen = everything, []
    while left:
        best = min(covers, key=lambda name: (-(covers[name] & left).bit_count(), name))
        chosen.append(best)
        left &= ~covers[best]
    for name in chosen[:]:
        others = 0
        for other in chosen:
            others |= covers[other] if other != name else 0
        if others == everything:
            chosen.remove(name)
    return chosen


def _smaller(
    covers: Mapping[str, int], everything: int, most: int
) -> tuple[Sequence[str] | None, bool]:
    """A set of fewer than `most` that covers everything, if one was found, and whether all smaller
    sets were tried."""
    useful = sorted(name for name in covers if not _dominated(name, covers))
    for size in range(1, most):
        if math.comb(len(useful), size) > COMBINATIONS:
            return None, False
        for some in combinations(useful, size):
            union = 0
            for name in some:
                union |= covers[name]
            if union == everything:
                return some, True
    return None, True


def _dominated(name: str, covers: Mapping[str, int]) -> bool:
    """Whether another kernel covers the same problems and more, or the same problems under an
    earlier name."""
    mine = covers[name]
    return any(
        mine & ~theirs == 0 and (theirs != mine or other < name)
        for other, theirs in covers.items()
        if other != name
    )
