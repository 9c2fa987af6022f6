"""Comparison of two calls: samples in pairs, in one process, in random order within each pair.

Disturbances of a GPU (clocks, heat, neighbours) affect both calls of a pair about equally, so the
ratio of a pair says more than either time. The median of the ratios has a confidence interval from
order statistics (see `statistics`). The number of pairs is fixed before: sampling "until it is
significant" would find differences that do not exist.

The random order makes the interval's confidence hold: samples of small kernels follow a rhythm (see
`timing`), and with a fixed order, AB BA AB BA included, one side keeps its better beats. On an
H200, 4 of 25 comparisons of an 8 µs kernel with itself then came out 5 to 7 % "faster" or "slower".
With random order, two equal calls are exchangeable in every pair, whatever the rhythm.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.errors import BadArgument
from tilewright.measure.statistics import median_interval, ratios
from tilewright.measure.timing import Timer

Answer = Literal["faster", "slower", "same", "undecided"]

ROUNDS = 60
CONFIDENCE = 0.99
"""Confidence of the interval: higher than a measurement's, since people act on a comparison."""

MARGIN = 0.01
"""Relative difference that counts as none: two calls whose ratio surely lies within it are the
same."""

WARM_UP_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    ratio: the second's time over the first's: above 1, the first is faster.
    interval: confidence interval of the ratio.
    answer: about the first.

    Times are in microseconds.
    """

    ratio: float
    interval: tuple[float, float]
    answer: Answer
    confidence: float
    margin: float
    first_us: tuple[float, ...]
    second_us: tuple[float, ...]

    @property
    def medians_us(self) -> tuple[float, float]:
        """The median time of each."""
        return statistics.median(self.first_us), statistics.median(self.second_us)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.answer}: {self.ratio:.4f} times as fast, between {low:.4f} and {high:.4f} at "
            f"{self.confidence:.0%} confidence"
        )


def judge(
    first_us: Sequence[float],
    second_us: Sequence[float],
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
) -> Comparison:
    """The comparison of paired samples.

    same: the ratio's interval lies within `margin` of 1.
    faster, slower: otherwise, the interval lies on one side of 1.
    undecided: otherwise; more pairs would decide.

    Raises `BadArgument` unless both have the same number of samples, six at least.
    """
    if len(first_us) != len(second_us) or len(first_us) < 6:
        raise BadArgument(
            f"{len(first_us)} and {len(second_us)} samples: a comparison takes pairs, six at least"
        )
    of_pairs = ratios(second_us, first_us)
    low, high = median_interval(of_pairs, confidence)
    answer: Answer = "undecided"
    if 1 / (1 + margin) <= low and high <= 1 + margin:
        answer = "same"
    elif low > 1:
        answer = "faster"
    elif high < 1:
        answer = "slower"
    return Comparison(
        statistics.median(of_pairs),
        (low, high),
        answer,
        confidence,
        margin,
        tuple(first_us),
        tuple(second_us),
    )


def compare(
    first: Callable[[], object],
    second: Callable[[], object],
    timer: Timer,
    rounds: int = ROUNDS,
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
) -> Comparison:
    """Time both in `rounds` pairs, and judge. The first rounds do not count, because clocks settle
    in them."""
    queued: tuple[list[Any], list[Any]] = ([], [])
    coin = random.Random()
    for number in range(WARM_UP_ROUNDS + rounds):
        if number == WARM_UP_ROUNDS:
            for handles in queued:
                timer.read(handles)
                handles.clear()
        first_goes = coin.randrange(2)
        for which in (first_goes, 1 - first_goes):
            queued[which].append(timer.queue((first, second)[which]))
    return judge(timer.read(queued[0]), timer.read(queued[1]), confidence, margin)
