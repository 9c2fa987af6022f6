"""Which of two is faster: samples in pairs, in one process, who goes first by the flip of a coin.

What disturbs a GPU (its clocks, its heat, its neighbours) disturbs both calls of a pair about
alike, so the ratio of a pair says more than either time. The median of the ratios has a
confidence interval from order statistics (see `statistics`), and as many pairs are taken as were
asked for, never "until it is significant", which would find differences that are not there.

The coin is what makes the interval's confidence hold: samples of small kernels follow a rhythm
(see `timing`), and with a fixed order, AB BA AB BA too, one side keeps its better beats. On an H200
4 of 25 comparisons of an 8 µs kernel with itself came out 5 to 7 % "faster" or "slower" that way.
With the coin, two calls that are alike are exchangeable in every pair, whatever the rhythm.
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
"""Of the interval: higher than a measurement's, since a comparison is made to be acted on."""

MARGIN = 0.01
"""Differences below this share do not matter: two calls that surely differ by less are the same."""

WARM_UP_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of it. `ratio`: the second's time over the first's, so above 1 the first is faster;
    `interval` is the ratio's. `answer` is about the first. Times in microseconds."""

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
    """What paired samples say. same: the ratio's interval lies within `margin` of 1. faster,
    slower: else, if it lies on one side of 1. undecided: else; more pairs would tell. Raises
    `BadArgument` unless there are equally many of each, six at least."""
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
    """Time both in `rounds` pairs, and judge. The first rounds, in which clocks settle, are not
    counted."""
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
