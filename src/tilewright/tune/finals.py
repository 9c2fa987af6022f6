"""Who wins, from several takes of the kernels near the best; pure.

Two tunings of one GPU are to choose the same kernel. Those that cannot be told from the best are
settled by a fixed rule (`tables.row.choose`), so the choice depends on noise only where a kernel is
about as far from the best as decides whether it can be told from it. No rule has no such place: it
takes more measurements there. A problem whose winner would be another if that limit were moved by
what the takes leave in doubt is measured in one more take, by new workers, until `TAKES`. Limit and
intervals do not narrow with more takes: what is measured better stays where it is.

Simulated on an H200's times of 50 shapes (benchmarks/tune_search.py), samples with 1 % noise and a
worker's medians off by 0.05, 0.1 or 0.2 %: two tunings choose the same kernel for 99.96, 99.86 and
99.4 % of shapes, with 2.5 takes on average. With one take it is 98, 97 and 94 %; with the fastest
of one take, 98, 96 and 93 %. What the rule costs is 0.15 % of time on average, 1.3 % at worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from tilewright.tune.statistics import REPEATABILITY, indistinguishable

TAKES = 16
"""At most so many, whether the winner is beyond doubt or not."""

Timed = tuple[float, tuple[float, float]]
"""A median and its interval."""

Rule = Callable[[Sequence[str]], str]
"""Which of kernels that cannot be told apart is the winner."""


def pooled(takes: Sequence[Mapping[str, Timed]]) -> dict[str, Timed]:
    """The means of the medians, and of the ends of the intervals, of the kernels that came out
    right in every take."""
    if not takes:
        return {}
    found = {}
    for name in takes[0]:
        if all(name in take for take in takes):
            mine = [take[name] for take in takes]
            low, high = mean(i[0] for _, i in mine), mean(i[1] for _, i in mine)
            found[name] = (mean(median for median, _ in mine), (low, high))
    return found


def ties(timed: Mapping[str, Timed], moved: float = 0.0) -> list[str]:
    """Those that cannot be told from the fastest, fastest first, if the limit is moved by this
    share."""
    medians = {name: median for name, (median, _) in timed.items()}
    intervals = {name: interval for name, (_, interval) in timed.items()}
    return indistinguishable(medians, intervals, moved)


def decided(timed: Mapping[str, Timed], takes: int, rule: Rule) -> bool:
    """Whether the winner is the same wherever the limit is, within what so many takes leave in
    doubt: that both of two medians move by `REPEATABILITY` from one worker to the next. With less
    than two kernels there is nothing to decide, once they were measured."""
    if takes == 0 or len(timed) < 2:
        return takes > 0
    doubt = REPEATABILITY * math.sqrt(2 / takes)
    return rule(ties(timed, -doubt)) == rule(ties(timed, doubt))
