"""Medians, their intervals, and who cannot be told from the best."""

from __future__ import annotations

import math
import random
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.measure.statistics import indistinguishable, median_interval, reach

samples = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60)


@given(samples, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_has_the_median_and_lies_among_the_samples(found, confidence):
    low, high = median_interval(found, confidence)
    assert min(found) <= low <= statistics.median(found) <= high <= max(found)
    assert low in found and high in found


@given(samples)
def test_more_confidence_is_never_narrower(found):
    narrow, wide = median_interval(found, 0.8), median_interval(found, 0.99)
    assert wide[0] <= narrow[0] and narrow[1] <= wide[1]


@given(samples, st.floats(0.01, 100))
def test_it_scales_and_forgets_order(found, factor):
    low, high = median_interval(found, 0.95)
    again = median_interval([x * factor for x in reversed(found)], 0.95)
    assert again == (low * factor, high * factor)


def test_it_covers_the_true_median_as_often_as_it_says():
    """Skewed samples of known median: at 95 %, at least 95 % of the intervals have it, and not
    all."""
    rng = random.Random(5)
    covered = []
    for count in (7, 12, 25, 60):
        for _ in range(1000):
            low, high = median_interval([rng.expovariate(math.log(2)) for _ in range(count)], 0.95)
            covered.append(low <= 1.0 <= high)
        share = statistics.mean(covered[-1000:])
        assert 0.93 < share < 1.0, count


def test_many_samples_take_the_normal_approximation_without_a_jump():
    exact, near = ([float(x) for x in range(n)] for n in (999, 1001))
    widths = [(h - low) / len(s) for s in (exact, near) for low, h in [median_interval(s, 0.95)]]
    assert abs(widths[0] - widths[1]) < 0.004


def test_ties_are_those_whose_interval_reaches_the_bests():
    medians = {"c": 12.0, "a": 10.0, "b": 10.5, "d": 30.0}
    intervals = {"a": (9.5, 10.6), "b": (10.4, 10.7), "c": (10.72, 13.0), "d": (10.6, 50.0)}
    assert indistinguishable(medians, intervals) == ["a", "b", "d"]
    intervals["c"] = (10.69, 13.0)
    assert indistinguishable(medians, intervals) == ["a", "b", "c", "d"], "within what repeats"
    assert indistinguishable({}, {}) == []


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=3), st.floats(1, 100), min_size=1))
def test_the_fastest_comes_first_and_without_spread_only_with_what_repeats_as_fast(medians):
    found = indistinguishable(medians, {k: (v, v) for k, v in medians.items()})
    least = min(medians.values())
    assert medians[found[0]] == least
    assert {*found} == {k for k, v in medians.items() if v <= reach((least, least))}
