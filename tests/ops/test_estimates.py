"""Estimates of several kernels: which one comes first, and what is said of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Pool


@dataclass(frozen=True)
class Named:
    name: str


def estimates(*totals: float) -> Estimates:
    total = np.array(totals)
    return Estimates.of(total, {"work": total - 1, "launch": total * 0 + 1}, lambda at: (f"{at}.",))


def test_the_longest_term_is_the_limiter():
    found = estimates(1.5, 3.0)
    assert [found.one(at).limiter for at in (0, 1)] == ["launch", "work"]
    assert str(found.one(1)) == "3.0 µs: 1.; bound by work; work 2.0, launch 1.0 µs"


def test_groups_are_put_together_in_the_order_of_their_places():
    first, second = estimates(4.0, 2.0), Estimates.each([estimates(3.0).one(0)])
    whole = Estimates.joined([(np.array([2, 0]), first), (np.array([1]), second)])
    assert whole.total_us.tolist() == [2.0, 3.0, 4.0]
    assert [whole.one(at).total_us for at in range(3)] == [2.0, 3.0, 4.0]
    assert [whole.one(at).facts for at in range(3)] == [("1.",), ("0.",), ("0.",)]
    assert whole.terms["work"].tolist() == [1.0, 2.0, 3.0]
    only = Estimates.of(np.array([5.0]), {"load": np.array([4.0])}, lambda at: ())
    mixed = Estimates.joined([(np.array([2, 0]), first), (np.array([1]), only)])
    assert {word: us.tolist() for word, us in mixed.terms.items()} == {
        "work": [1.0, 0.0, 3.0],
        "launch": [1.0, 0.0, 1.0],
        "load": [0.0, 4.0, 0.0],
    }
    later = first.later("turning", 2.0)
    assert later.terms["turning"].tolist() == [2.0, 2.0]
    whole = Estimates.joined([(np.array([2, 0]), first), (np.array([1]), estimates(3.0))])
    assert whole.terms["work"].tolist() == [1.0, 2.0, 3.0]


def test_the_least_time_comes_first_and_of_equal_ones_the_first_name():
    pool = Pool([Named(name) for name in ("c", "b", "a")])
    found = estimates(1.0, 2.0, 2.0)
    assert [c.name for c, _ in found.ranking(pool)] == ["c", "a", "b"]
    last = np.array([True, False, False])
    assert [c.name for c, _ in found.ranking(pool, last)] == ["a", "b", "c"]
