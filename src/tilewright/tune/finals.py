"""Who wins, from several takes of the kernels near the best; pure.

In a take kernels take turns, and are compared by rounds: what disturbs a GPU disturbs the samples
of one round about alike. Large products run at the limit of power, where the clock goes to and fro
by a step of 1 % or two for a tenth of a second and more: of 2048×59136×8192 in bf16, on an H200,
the medians of two kernels were 2.3 % apart in one take and -2.2 % in the next, one having been
sampled for longer; by rounds, 2.16 and 2.18 %.

What one process says of two kernels is off by a share of its own, however many samples it takes:
where operands, buffers and code lie in memory is drawn once (benchmarks/places.py). From take to
take what rounds say moves by 0.4 % (rms) over 150 µs, 0.5 % to 150 µs and 0.7 % to 15 µs
(benchmarks/tuning.py), though a take has its operands in several places (`Settings.places`). So
between two kernels nothing is decided before `LEAST_TAKES`, each of new workers.

Two tunings of one GPU are to choose the same kernel. Those that cannot be told from the best, up to
some limit, are settled by a fixed order (`tables.row.preference`); with another limit, another
kernel might be the first. No limit is right for all problems: some have a kernel so near to it that
two tunings disagree. So the winner is who would win by most of the limits up to
`TOLD_APART`. Where that is in doubt, as far as takes scatter, there is one more take, until
`TAKES`.

Simulated on the times of 50 problems (benchmarks/tune_search.py), a take being off by 0.1 % of a
kernel, two tunings choose the same kernel for 98.5 %, in 5.5 takes on average; of one take, 93 %.
What the rule costs is 0.05 % of time on average.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.measure.statistics import midmean, ratios

TAKES = 24
"""At most so many, whether the winner is beyond doubt or not."""
LEAST_TAKES = 4
"""So many say how far takes scatter, and one of them may be far off."""

TOLD_APART = 0.01
"""Share by which a kernel's time is over the best's, at most, if it cannot be told from it."""

SCATTER, SCATTER_WEIGHT = 0.004, 3
"""What ratios scatter by from take to take, as far as a problem's own do not say: as if that had
been seen in so many."""
DOUBT = 2.0
"""Scatters of a mean by which it may be wrong."""

Take = Mapping[str, Sequence[float]]
"""Samples of each kernel, in microseconds, by round."""

Prefer = Callable[[str], Any]
"""A sort key of names: of kernels that cannot be told apart, the first is taken."""


def pooled(takes: Sequence[Take]) -> dict[str, float]:
    """Times as multiples of the least, of the kernels that are in every take, fastest first: means
    over the takes in the middle of what `_logs` says."""
    return _times(_logs(takes))


def _times(logs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    means = {name: midmean(of_one) for name, of_one in logs.items()}
    least = min(means.values(), default=0.0)
    ordered = sorted(means, key=lambda name: means[name])
    return {name: math.exp(means[name] - least) for name in ordered}


def ties(times: Mapping[str, float]) -> list[str]:
    """Those that cannot be told from the fastest, which comes first. `times` as of `pooled`."""
    return [n for i, n in enumerate(times) if i == 0 or times[n] <= 1 + TOLD_APART]


def winner(times: Mapping[str, float], prefer: Prefer, kept: str = "") -> str:
    """Of the `ties`, who is taken by most of the limits. `kept` wins if it is one of them, so that
    it gives way only to what is better beyond doubt."""
    if kept in ties(times):
        return kept
    shares = _shares(times, prefer)
    return max(shares, key=lambda name: shares[name])


def decided(takes: Sequence[Take], prefer: Prefer, kept: str = "") -> bool:
    """Whether the winner is beyond doubt. With less than two kernels there is nothing to decide,
    once they were measured."""
    logs = _logs(takes)
    if len(logs) < 2:
        return len(takes) > 0
    if len(takes) < LEAST_TAKES:
        return False
    times = _times(logs)
    doubt = DOUBT * _scatter(logs.values()) / math.sqrt(len(takes))
    over = times.get(kept, math.inf) - 1 - TOLD_APART
    if abs(over) <= doubt:
        return False
    most, second = sorted([*_shares(times, prefer).values(), -math.inf], reverse=True)[:2]
    return over < 0 or most - second > 2 * doubt


def _shares(times: Mapping[str, float], prefer: Prefer) -> dict[str, float]:
    """By how much of the limits from 0 to `TOLD_APART` each kernel is taken that is by some, the
    first of those within the limit; and less than nothing, by how far it is from it, of the first
    that would be by a wider one."""
    limit = 1 + TOLD_APART
    first, *others = times
    shares, since = {}, 1.0
    for name in others:
        if prefer(name) < prefer(first):
            shares[first] = min(times[name], limit) - since
            first, since = name, times[name]
            if since > limit:
                break
    return {**shares, first: limit - since}


def _logs(takes: Sequence[Take]) -> dict[str, list[float]]:
    """Of each kernel that is in every take: by take, the logarithm of its time over that of one of
    them, the mean over the rounds in the middle."""
    if not takes:
        return {}
    names = [name for name in takes[0] if all(name in take for take in takes)]
    if not names:
        return {}
    base = min(names, key=lambda name: statistics.median(takes[0][name]))
    return {
        name: [math.log(midmean(ratios(take[name], take[base]))) for take in takes]
        for name in names
    }


def _scatter(logs: Iterable[Sequence[float]]) -> float:
    """The standard deviation from take to take, of all kernels and of what is taken for granted."""
    squares, degrees = SCATTER_WEIGHT * SCATTER**2, SCATTER_WEIGHT
    for of_one in logs:
        if any(of_one):  # else it is the base
            squares += statistics.pvariance(of_one) * len(of_one)
            degrees += len(of_one) - 1
    return math.sqrt(squares / degrees)
