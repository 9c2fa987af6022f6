"""Which candidates are measured next, and when a search ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import BadArgument
from tilewright.tune.search import EFFORTS, Effort, next_step

NAMES = [f"k{i:02d}" for i in range(40)]
TIMES = st.lists(
    st.one_of(st.none(), st.floats(1.0, 100.0)), min_size=len(NAMES), max_size=len(NAMES)
)
SOME = st.builds(
    Effort, st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), st.sampled_from([0.0, 0.1])
)


def search(truth, effort, starters=(), ordered=NAMES, most=None):
    """What is known at the end, and each step; `most` measurements at a time."""
    known, steps = {}, []
    while step := next_step(ordered, known, effort, starters):
        steps.append([*step])
        known.update({name: truth[name] for name in [*step][:most]})
    return known, steps


def test_a_small_step_first_and_an_end_when_steps_bring_nothing():
    truth = dict.fromkeys(NAMES, 10.0) | {"k09": 5.0, "k39": 1.0}
    known, steps = search(truth, Effort(8, 10, patience=2))
    assert [len(step) for step in steps] == [8, 10, 10, 10]  # a gain, and two in vain
    assert "k39" not in known
    assert len(search(truth, EFFORTS["exhaustive"])[0]) == len(NAMES)


def test_a_gain_has_to_be_worth_it():
    truth = {name: 100.0 - i * 0.01 for i, name in enumerate(NAMES)}
    assert len(search(truth, Effort(4, 4, patience=2, gain=0.01))[0]) == 12
    assert len(search(truth, Effort(4, 4, patience=2, gain=0.0))[0]) == 40


def test_a_search_goes_on_until_something_comes_out_right():
    truth = dict.fromkeys(NAMES) | {"k35": 7.0}
    known, _ = search(truth, Effort(4, 4, patience=1))
    assert known["k35"] == 7.0


def test_starters_come_with_the_first_step():
    truth = dict.fromkeys(NAMES, 10.0) | {"present": 9.0}
    _, steps = search(truth, Effort(4, 4), ["present", "k01"])
    assert steps[0] == ["present", "k01", "k00", "k02", "k03"]
    assert search(truth, Effort(4, 4), ["present"], ordered=())[1] == [["present"]]
    assert next_step((), {}, Effort()) == ()


@given(TIMES, SOME, st.integers(1, 5))
def test_a_search_that_was_stopped_ends_the_same(times, effort, most):
    truth = dict(zip(NAMES, times, strict=True))
    assert search(truth, effort)[0] == search(truth, effort, most=most)[0]


@given(TIMES, SOME)
def test_nothing_is_asked_for_twice(times, effort):
    known, steps = search(dict(zip(NAMES, times, strict=True)), effort)
    asked = [name for step in steps for name in step]
    assert len(asked) == len({*asked}) == len(known)


@given(TIMES, SOME)
def test_a_search_that_begins_with_the_winner_asks_for_nothing_new(times, effort):
    truth = dict(zip(NAMES, times, strict=True))
    known, _ = search(truth, effort)
    right = {name: us for name, us in known.items() if us is not None}
    winner = min(right, key=right.__getitem__, default="k00")
    again, _ = search(truth, effort, [winner])
    assert again.keys() <= known.keys()


@given(TIMES, st.integers(1, 3))
def test_a_search_of_so_many_steps_takes_no_more(times, steps):
    """Whatever they bring, and the starters beside the first of them."""
    effort = Effort(first=2, step=3, patience=0, steps=steps)
    truth = dict(zip(NAMES, times, strict=True))
    known, taken = search(truth, effort, ["k05"])
    assert len(taken) <= steps
    assert known.keys() == {*NAMES[: 2 + 3 * (steps - 1)], "k05"} & {*NAMES}


@pytest.mark.parametrize(
    "fields",
    [{"first": 0}, {"step": 0}, {"patience": -1}, {"gain": 1.0}, {"takes": 0}, {"steps": -1}],
)
def test_an_effort_that_cannot_be_meant(fields):
    with pytest.raises(BadArgument, match="are at least 1, patience and steps at least 0"):
        Effort(**fields)
