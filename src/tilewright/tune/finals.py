"""Chooses the winner from several takes of the kernels near the best; pure functions.

In a take, kernels run in turns and are compared by rounds: a disturbance of the GPU affects all
samples of one round about equally. Large products run at the power limit, where the clock
alternates by a step of 1 % or two for a tenth of a second and more, so medians mislead.

Each process has an error of its own when it compares two kernels, however many samples it takes,
because the places of operands, buffers and code in memory are drawn once. So two kernels need
`LEAST_TAKES` takes, each with new workers, before anything is decided.

Two tunings of one GPU should choose the same kernel. Kernels that cannot be told from the best, up
to some limit, are tied, and a fixed order settles ties (`tables.row.preference`). Another limit may
give another winner. No single limit suits all problems: on some, a kernel lies so near the limit
that two tunings disagree. So the winner is the kernel that wins for most of the limits up to
`TOLD_APART`. While the scatter of takes leaves that in doubt, there is one more take, up to
`TAKES`.

Measurements and simulations: docs/notes/tune.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.measure.statistics import midmean, ratios

TAKES = 24
"""Most takes, whether or not the winner is still in doubt."""
LEAST_TAKES = 4
"""This many takes are needed to estimate their scatter, since one of them may be far off."""

TOLD_APART = 0.01
"""A kernel whose time exceeds the best by more than this share can be told from it."""

SCATTER, SCATTER_WEIGHT = 0.004, 3
"""Prior for the scatter of ratios from take to take. It counts as if it had been observed in
`SCATTER_WEIGHT` takes."""
DOUBT = 2.0
"""A mean may be wrong by this many standard errors."""

Take = Mapping[str, Sequence[float]]
"""Samples of each kernel, in microseconds, by round."""

Prefer = Callable[[str], Any]
"""A sort key of names: among kernels that cannot be told apart, the first wins."""


def pooled(takes: Sequence[Take]) -> dict[str, float]:
    """Times as multiples of the least, for the kernels that are in every take, fastest first. Each
    is a mean over the middle takes of `_logs`."""
    return _times(_logs(takes))


def _times(logs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    means = {name: midmean(of_one) for name, of_one in logs.items()}
    least = min(means.values(), default=0.0)
    ordered = sorted(means, key=lambda name: means[name])
    return {name: math.exp(means[name] - least) for name in ordered}


def ties(times: Mapping[str, float]) -> list[str]:
    """The kernels that cannot be told from the fastest, which comes first.

    times: as from `pooled`.
    """
    return [n for i, n in enumerate(times) if i == 0 or times[n] <= 1 + TOLD_APART]


def winner(times: Mapping[str, float], prefer: Prefer, kept: str = "") -> str:
    """The kernel among the `ties` that wins for most of the limits. `kept` wins if it is among the
    ties, so that only a certainly better kernel replaces it."""
    if kept in ties(times):
        return kept
    shares = _shares(times, prefer)
    return max(shares, key=lambda name: shares[name])


def decided(takes: Sequence[Take], prefer: Prefer, kept: str = "") -> bool:
    """Whether the winner is beyond doubt. With fewer than two kernels nothing needs deciding once
    they were measured."""
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
    """How much of the range of limits from 0 to `TOLD_APART` each kernel wins; for a limit, the
    first kernel in the order of preference among those within it wins. The next kernel, which would
    win only for a wider limit, has a negative share: its distance from the range."""
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
    """For each kernel that is in every take: the logarithm of its time over that of one common
    kernel, the mean over the middle rounds, by take."""
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
    """The standard deviation from take to take, over all kernels and the prior."""
    squares, degrees = SCATTER_WEIGHT * SCATTER**2, SCATTER_WEIGHT
    for of_one in logs:
        if any(of_one):  # else it is the base
            squares += statistics.pvariance(of_one) * len(of_one)
            degrees += len(of_one) - 1
    return math.sqrt(squares / degrees)
