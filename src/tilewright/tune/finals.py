"""Who wins, from several takes of the kernels near the best; pure.

In a take kernels take turns, and are compared by rounds: what disturbs a GPU disturbs the samples
of one round about alike. Large products run at the limit of power, where the clock goes to and fro
by a step of 1 % or two for a tenth of a second and more: of 2048×59136×8192 in bf16, on an H200,
the medians of two kernels were 2.3 % apart in one take and -2.2 % in the next, one having been
sampled for longer; by rounds, 2.16 and 2.18 %. From take to take, in problems that were in doubt,
what medians say moved by 2.0 % (rms) over 150 µs, 0.5 % to 150 µs and 0.9 % to 15 µs, what rounds
say by 0.5, 0.3 and 0.7 %, of as few as 20 rounds then (benchmarks/tuning.py).

Two tunings of one GPU are to choose the same kernel. Those that cannot be told from the best are
settled by a fixed rule (`tables.row.choose`), so the choice depends on noise only where a kernel is
about as far from the best as decides whether it can be told from it. No rule has no such place: it
takes more measurements there. A problem whose winner would be another if that limit were moved by
what the takes leave in doubt is measured in one more take, by new workers, until `TAKES`. The limit
itself does not narrow with more takes: what is measured better stays where it is.

Simulated on an H200's times of 50 shapes, with which in view the limit was chosen
(benchmarks/tune_search.py): what rounds say being off by 0.1, 0.2 or 0.5 % from worker to worker,
two tunings choose the same kernel for 100, 100 and 95 % of shapes, with 1.7 to 3.1 takes; with one
take 99, 95 and 81 %, with the fastest of one take 95, 91 and 80 %. What the rule costs is 0.12 % of
time on average.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewright.tune.statistics import midmean, ratios

TAKES = 16
"""At most so many, whether the winner is beyond doubt or not."""

TOLD_APART = 0.01
"""Share by which a kernel's time is over the best's, at most, if it cannot be told from it: beyond
a kernel's near twins, so that the limit does not lie among them."""

SCATTER, SCATTER_WEIGHT = 0.004, 3
"""What ratios scatter by from take to take, as far as a problem's own do not say: as if that had
been seen in so many."""
DOUBT = 2.0
"""Scatters of a mean by which it may be wrong."""

Take = Mapping[str, Sequence[float]]
"""Samples of each kernel, in microseconds, by round."""

Rule = Callable[[Sequence[str]], str]
"""Which of kernels that cannot be told apart is the winner."""


def pooled(takes: Sequence[Take]) -> dict[str, float]:
    """Times as multiples of the least, of the kernels that are in every take, fastest first: means
    over the takes of what `_logs` says."""
    means = {name: statistics.mean(logs) for name, logs in _logs(takes).items()}
    least = min(means.values(), default=0.0)
    ordered = sorted(means, key=lambda name: means[name])
    return {name: math.exp(means[name] - least) for name in ordered}


def ties(times: Mapping[str, float], moved: float = 0.0) -> list[str]:
    """Those that cannot be told from the fastest, which comes first, if the limit is moved by this
    share. `times` as of `pooled`."""
    limit = (1 + TOLD_APART) * (1 + moved)
    return [name for number, name in enumerate(times) if number == 0 or times[name] <= limit]


def decided(takes: Sequence[Take], rule: Rule) -> bool:
    """Whether the winner is the same wherever the limit is, within what these takes leave in doubt.
    With less than two kernels there is nothing to decide, once they were measured."""
    times = pooled(takes)
    if len(times) < 2:
        return len(takes) > 0
    doubt = DOUBT * _scatter(_logs(takes).values()) / math.sqrt(len(takes))
    return rule(ties(times, -doubt)) == rule(ties(times, doubt))


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
