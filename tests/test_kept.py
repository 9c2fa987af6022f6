"""Plans and ready launches have a bound: of too many, those that were used longest ago go."""

from __future__ import annotations

import itertools
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright import plan, ready
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import GemmProblem
from tilewright.plan import _Plans
from tilewright.ready import Launches
from tilewright.runtime.workspace import Workspaces

KEPT = 8


@pytest.fixture(autouse=True)
def few(monkeypatch):
    for module in (plan, ready):
        monkeypatch.setattr(module, "KEPT", KEPT)


def in_threads(work: Any, count: int = 6) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- plans --------------------------------------------------------------------------------------


def key(number: int) -> Any:
    return number, None, None


def test_the_plan_used_longest_ago_goes_first():
    plans: Any = _Plans()
    for number in range(KEPT):
        plans.add(key(number), number)
    assert plans.get(key(0)) == 0  # and is now the one used last
    plans.add(key(KEPT), KEPT)
    assert plans.get(key(1)) is None and len(plans) == KEPT
    assert [plans.get(key(n)) for n in (0, *range(2, KEPT + 1))] == [0, *range(2, KEPT + 1)]
    plans.add(key(0), "anew")
    assert plans.get(key(0)) == "anew" and len(plans) == KEPT
    plans.clear()
    assert len(plans) == 0


def test_plans_of_several_threads_stay_within_the_bound():
    plans: Any = _Plans()

    def work(number: int) -> None:
        dice = random.Random(number)
        for _ in range(2000):
            one = dice.randrange(4 * KEPT)
            found = plans.get(key(one))
            assert found in (None, one)
            if dice.random() < 0.001:
                plans.clear()
            plans.add(key(one), one)
            assert len(plans) <= KEPT

    in_threads(work)
    assert 0 < len(plans) <= KEPT


def test_a_dispatcher_keeps_the_plans_used_last():
    dispatcher = Dispatcher(device="h200_sxm")
    problems = [GemmProblem(64 * m, 256, 256) for m in range(1, KEPT + 3)]
    first = dispatcher.select(problems[0])
    for problem in problems[1:]:
        dispatcher.select(problem)
        assert dispatcher.select(problems[0]) is first
    assert len(dispatcher.planner._plans) == KEPT
    last = dispatcher.select(problems[-1])
    assert dispatcher.select(problems[-1]) is last
    again = dispatcher.select(problems[1])  # which has gone, and comes to the same
    assert again.config == dispatcher.select(problems[1]).config


# --- ready launches -----------------------------------------------------------------------------


class Clock:
    """Stamps launches when they are used, as the native launcher does."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1)

    def ready(self, name: Any = None) -> Any:
        native = SimpleNamespace(name=name, stamp=next(self._ticks))
        return SimpleNamespace(bound=SimpleNamespace(native=native, last_used=lambda: native.stamp))

    def use(self, ready: Any) -> None:
        ready.bound.native.stamp = next(self._ticks)


def consistent(launches: Launches) -> bool:
    kept = {k: one.bound.native for k, one in launches.ready.items()}
    return launches.known == kept and all(launches.known[k] is kept[k] for k in kept)


def test_launches_used_longest_ago_go_a_quarter_at_a_time():
    launches, clock = Launches(Workspaces()), Clock()
    made = [clock.ready(n) for n in range(KEPT + 1)]
    for number in range(KEPT):
        launches.add(number, made[number])
    assert list(launches.ready) == list(range(KEPT))
    for number in (0, 3):
        clock.use(made[number])
    clock.use(made[KEPT])
    launches.add(KEPT, made[KEPT])
    assert sorted(launches.ready) == [0, 3, 5, 6, 7, KEPT] and consistent(launches)
    assert len(launches.ready) == KEPT * 3 // 4


def test_of_several_launches_with_one_key_the_first_stays():
    launches, clock = Launches(Workspaces()), Clock()
    first, second = clock.ready(), clock.ready()
    launches.add("key", first)
    launches.add("key", second)
    assert launches.ready == {"key": first} and consistent(launches)


def test_layouts_of_outputs_do_not_grow_without_end():
    launches, clock = Launches(Workspaces()), Clock()
    for number in range(10 * KEPT):
        launches.add(number, clock.ready())
        launches.made.setdefault(number, ())
        assert len(launches.ready) <= KEPT and len(launches.made) <= 2 * KEPT


def test_launches_of_several_threads_stay_within_the_bound():
    launches, clock = Launches(Workspaces()), Clock()

    def work(number: int) -> None:
        dice = random.Random(number)
        for _ in range(1000):
            launches.add(dice.randrange(8 * KEPT), clock.ready())

    in_threads(work)
    assert 0 < len(launches.ready) <= KEPT and consistent(launches)
