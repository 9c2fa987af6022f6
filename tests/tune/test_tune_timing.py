"""Sampling, against a clock and a timer that are made up."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import partial

import pytest

from tilewright.measure import timing
from tilewright.measure.measurement import Settings


class Bench:
    """A timer and its clock: `calls` say how long they take, in microseconds, when called."""

    def __init__(self) -> None:
        self.time = 0.0
        self.order: list[str] = []

    def call(self, name: str, durations):
        def taken() -> float:
            self.order.append(name)
            return next(durations)

        return taken

    def once(self, call) -> float:
        return self.queue(call)

    def queue(self, call) -> float:
        taken = call()
        self.time += taken / 1e6
        return taken

    def read(self, queued) -> list[float]:
        return [*queued]

    def late(self, queued) -> int:
        return 0

    def measure(self, settings: Settings, beside=(), **durations):
        calls = {name: [self.call(name, d)] for name, d in durations.items()}
        return timing.measure(calls, self, settings, beside=beside, now=lambda: self.time)


def normal(mean: float, spread: float, seed: int = 0):
    rng = random.Random(seed)
    return iter(lambda: rng.gauss(mean, spread), None)


def test_a_steady_call_takes_the_least_samples_and_no_more():
    bench = Bench()
    got = bench.measure(Settings(warm_up_seconds=0), a=itertools.repeat(5.0))["a"]
    assert got.samples_us == (5.0,) * 12 and got.interval_us == (5.0, 5.0) and got.settled


def test_a_noisy_one_is_sampled_until_its_interval_is_tight_and_no_longer():
    settings = Settings(warm_up_seconds=0, max_samples=10_000)
    got = Bench().measure(settings, a=normal(100, 5))["a"]
    assert got.settled and 100 < len(got.samples_us) < 1000
    low, high = got.interval_us
    assert 98.5 < low < high < 101.5


def test_what_ends_before_that_says_so():
    few = Settings(warm_up_seconds=0, max_samples=40)
    got = Bench().measure(few, a=normal(100, 50))["a"]
    assert len(got.samples_us) == 40 and not got.settled
    bench = Bench()
    short = Settings(warm_up_seconds=0, max_samples=10_000, budget_seconds=0.02)
    got = bench.measure(short, a=normal(100, 50))["a"]
    assert not got.settled and 12 <= len(got.samples_us) < 600 and bench.time < 0.08


def test_the_least_samples_are_taken_whatever_the_budget():
    bench = Bench()
    settings = Settings(warm_up_seconds=0, min_samples=3, budget_seconds=0.1)
    got = bench.measure(settings, slow=itertools.repeat(2e6))["slow"]
    assert len(got.samples_us) == 3 and bench.time == pytest.approx(6.0)


def test_calls_take_turns_in_an_order_drawn_for_each_round():
    bench = Bench()
    settings = Settings(warm_up_seconds=0, min_samples=100)
    bench.measure(settings, **{name: itertools.repeat(1.0) for name in "abc"})
    rounds = ["".join(bench.order[i : i + 3]) for i in range(0, 300, 3)]
    assert {*rounds} == {"abc", "acb", "bac", "bca", "cab", "cba"} and len(bench.order) == 300


def test_one_that_has_enough_leaves_the_rounds_to_the_others():
    settings = Settings(warm_up_seconds=0, max_samples=300)
    got = Bench().measure(settings, still=itertools.repeat(9.0), noisy=normal(9, 3))
    assert len(got["still"].samples_us) == 12 and len(got["noisy"].samples_us) == 300


def test_a_hopeless_call_leaves_a_race_before_it_begins():
    """Nor does it take part in the warm-up. One slow sample of two is no reason."""
    bench = Bench()
    settings = Settings(warm_up_seconds=0.01, min_samples=6, race=0.04)
    jumps = itertools.chain([900.0], itertools.repeat(100.0))
    got = bench.measure(
        settings, beside=["theirs"], good=itertools.repeat(100.0), jumps=jumps,
        hopeless=iter([2e6, 1.9e6]), theirs=itertools.repeat(5e3),
    )  # fmt: skip
    assert got["hopeless"].samples_us == (1.9e6,) and not got["hopeless"].settled
    assert got["good"].settled and len(got["jumps"].samples_us) >= 6
    assert len(got["theirs"].samples_us) >= 6
    without = Bench().measure(
        replace(settings, race=0.0, max_samples=6, warm_up_seconds=0),
        good=itertools.repeat(100.0), slow=itertools.repeat(2e6),
    )  # fmt: skip
    assert len(without["slow"].samples_us) == 6


def test_a_race_spends_nothing_more_on_who_is_surely_slower():
    settings = Settings(warm_up_seconds=0, min_samples=6, max_samples=300, precision=0.001)
    shapes = {"first": (100, 1), "near": (101, 1), "slower": (103, 1), "slow": (150, 3)}

    def counts(race: float) -> dict[str, int]:
        durations = {n: normal(*shape, seed=i) for i, (n, shape) in enumerate(shapes.items())}
        got = Bench().measure(replace(settings, race=race), **durations)
        assert {n for n, series in got.items() if series.settled} == set()
        return {name: len(series.samples_us) for name, series in got.items()}

    assert set(counts(0.0).values()) == {300}
    raced = counts(0.02)
    assert raced["first"] == raced["near"] == 300
    assert raced["slow"] == 6 < raced["slower"] < 100
    assert counts(0.1) == {**raced, "slower": 300}


def test_in_a_race_times_are_compared_by_rounds_and_all_that_are_left_end_together():
    """The clock is another in each round, by up to 10 %: far more than what they differ by."""
    clocks = [random.Random(round).uniform(1, 1.1) for round in range(300)]
    settings = Settings(warm_up_seconds=0, max_samples=300, precision=0.01, race=0.02)
    shapes = {"first": 100, "near": 101, "slow": 104}
    durations = {n: iter([us * clock for clock in clocks]) for n, us in shapes.items()}
    raced = Bench().measure(settings, **durations)
    counts = {name: len(series.samples_us) for name, series in raced.items()}
    assert counts["slow"] == 12 < counts["first"] == counts["near"] < 300
    assert {name for name, series in raced.items() if series.settled} == {"first", "near"}
    # Without one, each that has what it needs leaves by itself.
    steady = {name: itertools.repeat(us) for name, us in shapes.items()}
    durations = {**steady, "first": iter([100 * clock for clock in clocks])}
    counts = Bench().measure(replace(settings, race=0.0), **durations)
    assert len(counts["near"].samples_us) == 12 < len(counts["first"].samples_us)


def test_what_is_in_no_race_drops_nothing_and_is_not_dropped():
    settings = Settings(
        warm_up_seconds=0, min_samples=6, max_samples=100, precision=0.001, race=0.02
    )
    calls = {"kernel": (100, 1), "slow": (150, 3)}
    for vendor in (50, 200):
        durations = {n: normal(*shape) for n, shape in {**calls, "vendor": (vendor, 1)}.items()}
        got = Bench().measure(settings, beside=["vendor"], **durations)
        counts = {name: len(series.samples_us) for name, series in got.items()}
        assert counts == {"kernel": 100, "slow": 6, "vendor": 100}
        alone = Bench().measure(settings, beside=["vendor"], vendor=normal(vendor, 1))
        assert len(alone["vendor"].samples_us) == 100
        durations = {"kernel": normal(100, 1), "vendor": itertools.repeat(float(vendor))}
        steady = Bench().measure(settings, beside=["vendor"], **durations)["vendor"]
        assert len(steady.samples_us) == 100 and steady.settled


def test_the_budget_is_each_calls_own():
    settings = Settings(warm_up_seconds=0, max_samples=10_000, budget_seconds=0.02)
    alone = Bench().measure(settings, a=normal(100, 50))["a"]
    steady = {name: itertools.repeat(9.0) for name in "bcdefgh"}
    beside = Bench().measure(settings, a=normal(100, 50), **steady)["a"]
    assert len(beside.samples_us) < 1.5 * len(alone.samples_us)


def test_samples_are_kept_from_when_the_clocks_are_steady():
    # From 300 to 100 µs within 0.3 s, as a GPU's clocks rise.
    bench = Bench()

    def rising():
        while True:
            yield max(100.0, 300.0 - 700.0 * bench.time)

    got = bench.measure(Settings(warm_up_seconds=0.1), a=rising())["a"]
    assert set(got.samples_us) == {100.0}
    # Never steady: five times as long, then measured as it is.
    bench = Bench()
    bench.measure(Settings(warm_up_seconds=0.1), a=(100.0 * 1.001**n for n in itertools.count()))
    assert 0.5 < bench.time < 2


def test_rounds_take_turns_between_places_and_all_calls_of_one_are_in_the_same():
    bench, seen = Bench(), []

    def called(name: str, place: int):
        seen.append((name, place))
        return 5.0

    calls = {name: [partial(called, name, place) for place in range(3)] for name in "ab"}
    settings = Settings(warm_up_seconds=0, min_samples=60, max_samples=60, places=3)
    timing.measure(calls, bench, settings, now=lambda: bench.time)
    rounds = [{place for _, place in seen[i : i + 2]} for i in range(0, len(seen), 2)]
    assert all(len(places) == 1 for places in rounds)
    turns = [[place for [place] in rounds[i : i + 3]] for i in range(0, len(rounds), 3)]
    assert all(sorted(turn) == [0, 1, 2] for turn in turns) and len({*map(tuple, turns)}) > 1


def test_the_device_is_watched_while_it_works():
    bench, seen = Bench(), []
    calls = {"a": [bench.call("a", normal(100, 10))]}
    settings = Settings(warm_up_seconds=0.1)
    timing.measure(
        calls, bench, settings, watch=lambda: seen.append(bench.time), now=lambda: bench.time
    )
    assert len(seen) >= 3


def test_the_wall_clock_times_the_call():
    wall = timing.Wall()
    assert wall.read([wall.queue(lambda: sum(range(100_000)))])[0] > 100


def test_rotated_inputs_exceed_l2_twice_over():
    l2 = 50 << 20
    for size in (1 << 20, 20 << 20, 60 << 20):
        assert timing.copies_to_rotate(size, l2) // 2 * size >= 2 * l2
    assert timing.copies_to_rotate(100, l2) == timing.COPIES
    assert timing.copies_to_rotate(0, l2) == timing.COPIES


@pytest.mark.parametrize("copies", [1, 2, 5, 12])
def test_between_two_turns_of_a_copy_half_of_them_have_theirs(copies):
    seen = []
    calls = [partial(seen.append, number) for number in range(copies)]
    call = timing.rotated(calls)
    for _ in range(40 * copies):
        call()
    turns = [seen[i : i + copies] for i in range(0, len(seen), copies)]
    assert all(sorted(turn) == [*range(copies)] for turn in turns)
    for number in range(copies):
        at = [i for i, other in enumerate(seen) if other == number]
        assert min(b - a for a, b in itertools.pairwise(at)) > copies // 2 - (copies == 1)
    assert copies < 5 or len({*map(tuple, turns)}) > 1


class Gpu:
    """Torch's part of a GPU, and the host that drives it: `host` is the clock, in microseconds,
    `busy` when the GPU will have done what is queued."""

    def __init__(self) -> None:
        self.host = self.busy = 0.0

    def run(self, microseconds: float, to_queue: float = 2.0) -> None:
        self.host += to_queue
        self.busy = max(self.busy, self.host) + microseconds

    def synchronize(self) -> None:
        self.host = max(self.host, self.busy)

    def patch(self, monkeypatch) -> None:
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = float("inf")

            def record(self, stream) -> None:
                gpu.host += 1
                self.at = max(gpu.busy, gpu.host)

            def query(self) -> bool:
                return self.at <= gpu.host

            def elapsed_time(self, end) -> float:
                return (end.at - self.at) / 1e3

        cuda = pytest.importorskip("torch").cuda
        monkeypatch.setattr(cuda, "Event", Event)
        monkeypatch.setattr(cuda, "current_stream", lambda place: self)
        monkeypatch.setattr(cuda, "_sleep", lambda cycles: self.run(cycles / 2000))


def measured_on(gpu: Gpu, monkeypatch, **calls):
    gpu.patch(monkeypatch)
    timer = timing.Events(lambda: gpu.run(37), "cuda:0")
    settings = Settings(warm_up_seconds=0, min_samples=40, max_samples=40)
    now = lambda: gpu.host / 1e6  # noqa: E731
    of_each = {name: [call] for name, call in calls.items()}
    return timing.measure(of_each, timer, settings, now=now)


def test_a_sample_has_nothing_of_the_hosts_time(monkeypatch):
    """Its launch takes the host longer than the GPU the flush before it."""
    gpu = Gpu()
    got = measured_on(gpu, monkeypatch, a=lambda: gpu.run(20, to_queue=90))["a"]
    assert got.samples_us == pytest.approx((20,) * 40) and not got.late


def test_a_host_that_is_held_up_once_spoils_no_sample_and_delays_no_other(monkeypatch):
    gpu = Gpu()
    drawn = random.Random(0)
    held_up = iter(lambda: 5000 if drawn.random() < 0.1 else 10, None)
    got = measured_on(gpu, monkeypatch, a=lambda: gpu.run(20, next(held_up)))["a"]
    assert got.samples_us == pytest.approx((20,) * 40) and not got.late


def test_a_call_that_waits_for_the_gpu_itself_is_measured_and_marked(monkeypatch):
    gpu = Gpu()

    def waits() -> None:
        gpu.run(20)
        gpu.synchronize()

    got = measured_on(gpu, monkeypatch, waits=waits, b=lambda: gpu.run(10))
    assert got["waits"].late and len(got["waits"].samples_us) == 40
    assert got["b"].samples_us == pytest.approx((10,) * 40) and not got["b"].late
