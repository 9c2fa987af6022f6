"""Picking on one half of the samples and reporting on the other, and the flow of one problem."""

from __future__ import annotations

import pytest

import comparison
from comparison import Field, NothingToCompare, VendorWrong, compared, judged, rounds_of, summed


def rounds(picking: float, reporting: float, count: int = 20) -> list[float]:
    """Samples whose even rounds are of one time, and whose odd ones are of another."""
    return [picking, reporting] * (count // 2)


def test_the_winner_is_picked_by_the_rounds_that_are_not_reported():
    # `lucky` is the fastest where it is picked, and slow where it is reported.
    samples = {"lucky": rounds(8, 20), "steady": rounds(9, 9), "vendor": rounds(10, 10)}
    found = judged(samples, ["lucky", "steady"], ["vendor"])
    assert found.kernel == "lucky"
    assert (found.us, found.vendor_us) == (20, 10)
    assert found.ratio == pytest.approx(0.5)


def test_the_vendor_is_picked_in_the_same_way():
    samples = {"ours": rounds(10, 10), "first": rounds(9, 30), "second": rounds(12, 12)}
    found = judged(samples, ["ours"], ["first", "second"])
    assert (found.vendor, found.ratio) == ("first", pytest.approx(3.0))


def test_a_ratio_is_by_rounds_so_that_the_clock_cancels():
    clock = [1 + 0.5 * (i % 7) for i in range(40)]
    samples = {"ours": [10 * c for c in clock], "vendor": [12 * c for c in clock]}
    assert judged(samples, ["ours"], ["vendor"]).ratio == pytest.approx(1.2)


def test_nothing_is_compared_with_nothing():
    with pytest.raises(NothingToCompare, match="vendor"):
        judged({"ours": [1.0] * 4}, ["ours"], ["vendor"])


def test_rounds_are_even_and_bounded():
    assert rounds_of(1.0) == comparison.MOST_ROUNDS
    assert rounds_of(1e9) == comparison.LEAST_ROUNDS
    assert rounds_of(1e5, 1.5) == 14
    middle = rounds_of(comparison.SECONDS * 1e6 / 31)
    assert middle == 30


class Fake:
    """Contenders with times of their own.

    us: the time of each contender. vain: contenders whose results are wrong. uncaptured: contenders
        that a graph cannot hold.
    """

    def __init__(self, field: Field, us: dict[str, float], vain=(), uncaptured=()) -> None:
        self.field, self.us = field, us
        self.wrong = {}
        self.late = set()
        self.asked: list[list[str]] = []
        self.finals: dict[str, list[str]] = {}
        self._vain, self._uncaptured = vain, uncaptured

    def tried(self, names):
        self.asked.append(list(names))
        self.wrong |= {name: "outside tolerance" for name in names if name in self._vain}
        return {name: None if name in self._vain else self.us[name] for name in names}

    def timed(self, names, way):
        self.finals[way] = list(names)
        factor = 0.5 if way == "graphs" else 1.0
        left_out = self._uncaptured if way == "graphs" else ()
        return {name: [factor * self.us[name]] * 20 for name in names if name not in left_out}


OURS = tuple(f"k{i}" for i in range(60))
TIMES = {name: 20.0 + i for i, name in enumerate(OURS)} | {"mm": 22.0, "a1": 19.0, "a2": 30.0}


def test_the_search_stops_without_gain_and_keeps_the_few_fastest():
    stage = Fake(Field(OURS, ("k50",), (), ("mm",)), TIMES)
    row = compared("problem", stage)
    first = stage.asked[0]
    assert first[0] == "k50"
    assert first[1:] == list(OURS[: comparison.EFFORT.first])
    assert row.tried < len(OURS)
    assert row.ours == OURS[: comparison.FINALISTS]
    assert row.ratio("calls", "ours").ratio == pytest.approx(22 / 20)
    assert row.ratio("graphs", "ours").ratio == pytest.approx(22 / 20)
    assert row.with_library == ()
    assert row.ratio("calls", "with_library") is None


def test_a_gain_late_in_the_order_is_found():
    times = TIMES | {name: 30.0 - i for i, name in enumerate(OURS)}
    row = compared("problem", Fake(Field(OURS, (), (), ("mm",)), times))
    assert row.tried == len(OURS)
    assert row.ours[0] == OURS[-1]


def test_algorithms_are_candidates_of_one_side_and_rivals_of_both():
    field = Field(OURS, (), ("a1", "a2"), ("mm",), rivals=True)
    row = compared("problem", Fake(field, TIMES))
    ours, both = (row.ratio("calls", side) for side in ("ours", "with_library"))
    assert (ours.kernel, ours.vendor) == ("k0", "a1")
    assert ours.ratio == pytest.approx(19 / 20)
    assert (both.kernel, both.ratio) == ("a1", pytest.approx(1.0))
    assert row.ratio("calls", "ours", ("mm",)).ratio == pytest.approx(22 / 20)


def test_a_dispatchers_answer_stands_alone():
    field = Field(("ours",), (), ("chosen",), ("mm",), answered=True)
    row = compared("problem", Fake(field, {"ours": 10.0, "chosen": 20.0, "mm": 15.0}))
    assert row.ratio("calls", "ours").ratio == pytest.approx(1.5)
    assert row.ratio("calls", "with_library").ratio == pytest.approx(0.75)


def test_what_is_wrong_is_told_and_not_timed():
    stage = Fake(Field(OURS, (), (), ("mm", "bmm")), TIMES | {"bmm": 1.0}, vain=("k0", "bmm"))
    row = compared("problem", stage)
    assert set(row.wrong) == {"k0", "bmm"}
    assert all("k0" not in names and "bmm" not in names for names in stage.finals.values())
    assert row.ratio("calls", "ours").kernel == "k1"


@pytest.mark.parametrize(("vain", "word"), [(OURS, "kernel"), (("mm",), "call of the vendor")])
def test_a_problem_without_a_side_says_why(vain, word):
    with pytest.raises(NothingToCompare, match=f"no {word} is right: .*outside tolerance") as error:
        compared("problem", Fake(Field(OURS, (), (), ("mm",)), TIMES, vain=vain))
    assert isinstance(error.value, VendorWrong) == (vain == ("mm",))


def test_a_vendor_that_no_graph_holds_leaves_single_calls():
    row = compared("problem", Fake(Field(OURS, (), (), ("mm",)), TIMES, uncaptured=("mm",)))
    assert row.ratio("graphs", "ours") is None
    assert row.ratio("calls", "ours").ratio == pytest.approx(1.1)


def test_sums_need_every_problem():
    field = Field(OURS, (), (), ("mm",))
    good = compared("one", Fake(field, TIMES))
    slow = compared("two", Fake(field, TIMES | {"mm": 10.0}))
    single = compared("three", Fake(field, TIMES, uncaptured=("mm",)))
    found = summed([good, slow], "calls", "ours")
    assert (found.mean, found.least) == (pytest.approx((1.1 * 0.5) ** 0.5), pytest.approx(0.5))
    assert summed([good, single], "graphs", "ours") is None
    assert summed([good, single], "calls", "ours").least == pytest.approx(1.1)
    assert summed([good, slow], "calls", "with_library") is None
    assert summed([], "calls", "ours") is None
