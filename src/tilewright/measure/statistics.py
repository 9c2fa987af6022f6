"""Medians with confidence intervals, and which kernels cannot be told from the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import mean
from typing import TypeVar

K = TypeVar("K")

REPEATABILITY = 0.005
"""The share by which a median moves from one worker to the next, beyond its interval: it depends on
where code was loaded and how warm the device is. 50 problems ran on two H200s. By the intervals
alone, the best kernel of one was among the ties of the other for 46 problems; with this share,
which was chosen in view of them, for 50 (f1dfe4c6:benchmarks/sweep_again.py)."""


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float]:
    """A confidence interval of the median, from order statistics. Its coverage is at least
    `confidence` for any distribution of the samples (H. A. David and H. N. Nagaraja, Order
    Statistics, section 7.1). With too few samples, the interval is their whole range."""
    ordered = sorted(samples)
    rank = _rank(len(ordered), confidence)
    return ordered[rank], ordered[len(ordered) - 1 - rank]


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Ratios of samples of the same rounds, up to the shorter length."""
    return [a / b for a, b in zip(over, under, strict=False)]


def midmean(values: Sequence[float]) -> float:
    """The mean of the middle half. It resists outliers as well as a median needs to, and unlike a
    median it is finer than the resolution of the clock."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return mean(ordered[quarter : len(ordered) - quarter])


@lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int:
    """The largest r for which the interval from the r-th smallest to the r-th largest sample
    (counted from 0) contains the median with `confidence`: with binomial (count, 1/2), at most r
    samples are on one side with probability (1 - confidence) / 2."""
    limit = (1 - confidence) / 2 * 2.0**count if count < 1000 else math.inf
    if math.isinf(limit):  # the normal approximation; its error is at most one rank here
        from statistics import NormalDist

        spread = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(count) / 2
        return max(0, math.floor(count / 2 - spread) - 1)
    below, rank = 0, -1
    while rank + 1 < (count + 1) // 2 and below + math.comb(count, rank + 1) <= limit:
        rank += 1
        below += math.comb(count, rank)
    return max(rank, 0)


def indistinguishable(
    medians: Mapping[K, float], intervals: Mapping[K, tuple[float, float]]
) -> list[K]:
    """The candidates that cannot be told from the fastest: their interval, widened by
    `REPEATABILITY` at each end, overlaps the interval with the least median. Fastest first, equal
    ones in the mapping's order."""
    if not medians:
        return []
    ordered = sorted(medians, key=lambda name: medians[name])
    limit = reach(intervals[ordered[0]])
    return [name for name in ordered if name == ordered[0] or intervals[name][0] <= limit]


def reach(interval: tuple[float, float]) -> float:
    """The largest lower end of an interval that cannot be told from a best kernel with this
    interval."""
    return interval[1] * (1 + REPEATABILITY) / (1 - REPEATABILITY)
