"""Takes samples of several calls in turns, until the median of each is known well enough.

A round runs each call once, in a random order. Alternating between two orders is not enough:
samples of small calls follow a rhythm, and with a fixed order one call keeps the worse beats (5 to
7 % of 8 µs, on an H200; see `compare`). All calls of a round use one of their places: operands,
output and code lie elsewhere in the next round. Rounds are queued in blocks, so that the GPU seldom
waits for the host, and the device is read (`watch`) while a block runs. If the GPU did wait within
a sample, the sample is taken again (`Events`).

L2 is flushed before a sample by *reading* several times its size. A flush that writes leaves dirty
lines, which go back to memory while the call reads: on an H200 this costs a call that reads 33 MB
and more 4 to 8 µs, as f1dfe4c6:benchmarks/harness.py found. Each flush reads another stretch of
memory. It is not shown that this matters. An effect that seemed to show it came from a kernel with
two speeds, 8 % apart, each kept for seconds, whatever precedes a sample. Another kernel beside it
was known to 1 % all the while, with one stretch as with many
(f1dfe4c6:benchmarks/repeatability.py).
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from tilewright import garbage
from tilewright.measure.measurement import Settings
from tilewright.measure.statistics import median_interval, ratios

Call = Callable[[], object]

HOPELESS = 8.0
"""A call that takes so many times as long as the fastest leaves a race before it begins. Far more
than a single time is off by."""
BLOCK_SECONDS = 0.05
STEADY = 0.02
"""Clocks are steady when the sum of a block's medians differs from the previous block's by less
than this share."""
_LONGEST_WARM_UP = 5
"""Multiple of `warm_up_seconds` after which the warm-up ends even if clocks are not steady."""

GRAPH_CALLS, GRAPH_US = 20, 1000.0
"""A graph has at most so many calls, or fewer that take so long, in whole turns of the copies: its
start weighs little beside either."""
FLUSHES = 3
"""A flush reads this many times the size of L2, out of a buffer of `STRETCHES` times its size."""
STRETCHES = 12
PAUSE_CYCLES = 50_000
"""20 to 30 µs."""
LONGEST_PAUSE = PAUSE_CYCLES << 7
TRIES = 12
"""Attempts at a sample until the host is ahead of the GPU."""
LATE = 0.05
"""Share of the samples that may be late without a mark."""
COPIES = 256
"""Most copies that operands rotate through. With this many, operands of under 1/64 of L2 stay in
it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one call.

    samples_us: microseconds, in the order taken.
    interval_us: the median's confidence interval.
    settled: whether the interval is as narrow as requested.
    late: whether more than a share of `LATE` of the samples include host time even after retaking.
    """

    samples_us: tuple[float, ...]
    interval_us: tuple[float, float]
    settled: bool
    late: bool = False


class Timer(Protocol):
    """A way of timing a call."""

    def once(self, call: Call) -> float:
        """Run a call by itself; returns microseconds, roughly."""

    def queue(self, call: Call) -> Any:
        """Queue one sample."""

    def read(self, queued: Sequence[Any]) -> list[float]:
        """Wait for these samples; returns microseconds for each."""

    def late(self, queued: Sequence[Any]) -> int:
        """How many of these samples include host time."""


def measure(
    calls: Mapping[str, Sequence[Call]],
    timer: Timer,
    settings: Settings,
    *,
    beside: Collection[str] = (),
    watch: Call = lambda: None,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Series]:
    """Time every call, in turns, as `settings` say.

    calls: for each name, the same call in each of its places; all names have the same number of
        places. Rounds go through the places in random orders.
    beside: calls that are not part of a race. They stay until the race ends.

    In a race, calls that are `HOPELESS` have one sample: their warm-up, and their graphs of many
    calls, would take longer than all that is measured beside them.

    The time of a round is divided evenly among its calls. A call whose median is known well enough
    leaves the rounds. In a race, beaten calls leave and the others end together.
    """
    in_race = set(calls) - set(beside) if settings.race else set()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    samples |= hopeless({name: calls[name][0] for name in calls if name in in_race}, timer)
    left = {name: places for name, places in calls.items() if not samples[name]}
    rounds = _Rounds(left, timer, watch, now)
    rounds.warm_up(settings)
    unsettled = list(left)
    settled: set[str] = set()
    spent = 0.0  # seconds for each call that is left
    while unsettled:
        taken = len(samples[unsettled[0]])  # equal for all calls that are left
        most = settings.min_samples
        if taken < most:
            most -= taken
        most = min(most, settings.max_samples - taken)
        begun = now()
        for name, more in rounds.block(unsettled, most).items():
            samples[name] += more
        spent += (now() - begun) / len(unsettled)
        if len(samples[unsettled[0]]) < settings.min_samples:
            continue
        if spent >= settings.budget_seconds or len(samples[unsettled[0]]) >= settings.max_samples:
            break
        racing = {n: samples[n] for n in unsettled if n in in_race}
        slow, ended = race(racing, settings)
        settled |= ended
        if racing.keys() <= slow | ended:  # calls beside a race stay to its end
            settled |= {n for n in unsettled if n not in racing and is_tight(samples[n], settings)}
        unsettled = [n for n in unsettled if n not in slow and n not in settled]
    return {
        name: Series(
            tuple(taken),
            median_interval(taken, settings.confidence),
            name in settled or (name in left and is_tight(taken, settings)),
            rounds.late.get(name, 0) > LATE * len(taken),
        )
        for name, taken in samples.items()
    }


def hopeless(calls: Mapping[str, Call], timer: Timer) -> dict[str, list[float]]:
    """The calls that take over `HOPELESS` times as long as the fastest, twice in a row, with the
    shorter of both times."""
    once = {name: timer.once(call) for name, call in calls.items()}
    limit = HOPELESS * min(once.values(), default=0.0)
    slow = [name for name in once if once[name] > limit]
    twice = {name: min(once[name], timer.once(calls[name])) for name in slow}
    return {name: [us] for name, us in twice.items() if us > limit}


def is_tight(samples: Sequence[float], settings: Settings) -> bool:
    """Whether the median's interval is within `settings.precision` of the median on either side."""
    median = statistics.median(samples)
    low, high = median_interval(samples, settings.confidence)
    return max(median - low, high - median) <= settings.precision * median


def race(samples: Mapping[str, Sequence[float]], settings: Settings) -> tuple[set[str], set[str]]:
    """The calls that are beaten (`Settings.race`), and those that have ended. All others end at
    once, when the fastest one's median and their times over it are known to `settings.precision`.
    Times are compared by rounds, in which clocks are the same for all calls (see `finals`).
    Therefore calls that are not beaten must continue until all of them are known."""
    if not samples:
        return set(), set()
    fastest = min(samples, key=lambda name: statistics.median(samples[name]))
    over = {n: ratios(taken, samples[fastest]) for n, taken in samples.items() if n != fastest}
    slow = {
        name
        for name, of_rounds in over.items()
        if median_interval(of_rounds, settings.confidence)[0] > 1 + settings.race
    }
    running = [samples[fastest], *(over[name] for name in over if name not in slow)]
    ended = all(is_tight(of_rounds, settings) for of_rounds in running)
    return slow, set(samples) - slow if ended else set()


class _Rounds:
    """Blocks of rounds; a block has as many rounds as fit into `BLOCK_SECONDS`."""

    def __init__(
        self,
        calls: Mapping[str, Sequence[Call]],
        timer: Timer,
        watch: Call,
        now: Callable[[], float],
    ) -> None:
        self._calls, self._timer, self._watch, self._now = calls, timer, watch, now
        self._order = random.Random()
        self._places = _shuffled(min(map(len, calls.values()), default=1), self._order)
        self._fitting = 1
        self.late = dict.fromkeys(calls, 0)

    def block(self, names: Sequence[str], most: int) -> dict[str, list[float]]:
        """The samples of at most `most` rounds of the named calls."""
        count = max(1, min(self._fitting, most))
        queued: dict[str, list[Any]] = {name: [] for name in names}
        begun = self._now()
        for place in islice(self._places, count):
            for name in self._order.sample(names, len(names)):
                queued[name].append(self._timer.queue(self._calls[name][place]))
        self._watch()
        taken = {name: self._timer.read(handles) for name, handles in queued.items()}
        for name, handles in queued.items():
            self.late[name] += self._timer.late(handles)
        took = self._now() - begun
        self._fitting = int(BLOCK_SECONDS * count / took) if took > 0 else count
        return taken

    def warm_up(self, settings: Settings) -> None:
        """Run blocks and drop their samples until the clocks are steady."""
        if not settings.warm_up_seconds:
            return
        begun, before = self._now(), float("inf")
        while True:
            taken = self.block([*self._calls], settings.max_samples)
            self.late = dict.fromkeys(self._calls, 0)
            total = sum(statistics.median(samples) for samples in taken.values())
            steady = abs(total - before) <= STEADY * total
            before = total
            elapsed = (self._now() - begun) / settings.warm_up_seconds
            if elapsed >= _LONGEST_WARM_UP or (steady and elapsed >= 1):
                return


def _shuffled(count: int, order: random.Random) -> Iterator[int]:
    """The numbers below `count` in random order, again and again."""
    while True:
        yield from order.sample(range(count), count)


class Wall:
    """The wall clock around a call."""

    def once(self, call: Call) -> float:
        return self.queue(call)

    def queue(self, call: Call) -> float:
        begun = time.perf_counter()
        call()
        return (time.perf_counter() - begun) * 1e6

    def read(self, queued: Sequence[float]) -> list[float]:
        return [*queued]

    def late(self, queued: Sequence[float]) -> int:
        return 0


class Events:
    """Device time between two events on the GPU `place`, after `flush`.

    If the GPU reaches the first event before the host has queued the call and the second event, it
    may have waited for the host in between. Such a sample is taken again after a pause. If one more
    try is not enough, the pauses of all samples grow, until the host is first. On an H200 whose
    machine had other work for its cores, two tunings gave medians of 20.2 and 34.1 µs for a split-K
    kernel, whose launch takes the host longer than those of other kernels.
    """

    def __init__(self, flush: Call, place: str) -> None:
        import torch

        self._torch: Any = torch
        self._free: list[Any] = []
        self._flush = flush
        # Kept, because asking torch for it takes the host longer than recording an event.
        self._stream = torch.cuda.current_stream(place)
        self._pause = 0

    def once(self, call: Call) -> float:
        return self.read([self.queue(call)])[0]

    def queue(self, call: Call) -> tuple[Any, Any, bool]:
        start, end = self._event(), self._event()
        late = True
        for tried in range(TRIES):
            if self._pause or tried:
                pause(max(self._pause, PAUSE_CYCLES))
            self._flush()
            start.record(self._stream)
            call()
            end.record(self._stream)
            late = start.query()
            if not late:
                break
            if tried:
                self._pause = min(max(2 * self._pause, PAUSE_CYCLES), LONGEST_PAUSE)
        return start, end, late

    def read(self, queued: Sequence[tuple[Any, Any, bool]]) -> list[float]:
        self._stream.synchronize()
        taken = [start.elapsed_time(end) * 1e3 for start, end, _ in queued]
        self._free += [event for start, end, _ in queued for event in (start, end)]
        return taken

    def late(self, queued: Sequence[tuple[Any, Any, bool]]) -> int:
        return sum(late for _, _, late in queued)

    def _event(self) -> Any:
        """An event whose sample was read, or else a new event, which takes the host longer."""
        return self._free.pop() if self._free else self._torch.cuda.Event(enable_timing=True)


class Graphs:
    """Device time of a CUDA graph of several calls, divided by their number. It excludes the host,
    for calls that are shorter than their launch. Only the first call finds L2 flushed. Calls ran
    before: what they prepare once cannot be captured.

    copies: operands through which calls rotate; a graph has whole turns of them.
    """

    def __init__(self, flush: Call, place: str, copies: int = 1) -> None:
        self._events = Events(flush, place)
        self._copies = copies
        self._graphs: dict[Call, tuple[Any, int]] = {}

    def once(self, call: Call) -> float:
        return self._events.once(call)

    def queue(self, call: Call) -> tuple[tuple[Any, Any, bool], int]:
        graph, count = self._graphs.get(call) or self._captured(call)
        return self._events.queue(graph.replay), count

    def _captured(self, call: Call) -> tuple[Any, int]:
        import torch

        count, graph = calls_of_graph(self._copies, self.once(call)), torch.cuda.CUDAGraph()
        with garbage.uncollected(), torch.cuda.graph(graph):
            for _ in range(count):
                call()
        graph.replay()  # the first replay also uploads it
        self._graphs[call] = graph, count
        return graph, count

    def read(self, queued: Sequence[tuple[tuple[Any, Any, bool], int]]) -> list[float]:
        taken = self._events.read([handles for handles, _ in queued])
        return [each / count for each, (_, count) in zip(taken, queued, strict=True)]

    def late(self, queued: Sequence[tuple[tuple[Any, Any, bool], int]]) -> int:
        return self._events.late([handles for handles, _ in queued])


def flusher(l2_bytes: int, place: str) -> Call:
    """A call that removes all operands from L2 and leaves nothing to be written back."""
    import torch

    each = max(l2_bytes, 16 << 20) // 4
    buffer = torch.zeros(STRETCHES * each, dtype=torch.float32, device=place)
    total = torch.empty((), dtype=torch.float32, device=place)
    starts = random.Random()

    def flush() -> None:
        # In steps of 4 KiB, so that reads are vectorised and pages are not split.
        start = starts.randrange((STRETCHES - FLUSHES) * each >> 10) << 10
        torch.sum(buffer[start : start + FLUSHES * each], dim=0, out=total)

    return flush


def pause(cycles: int = PAUSE_CYCLES) -> None:
    """Let the GPU rest while the host queues the call. Where there is no flush, a pause takes its
    place: otherwise the time between two events around a short call is the host's, 22 µs for a call
    of 5 µs on an H200."""
    import torch

    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def copies_to_rotate(input_bytes: int, l2_bytes: int) -> int:
    """The number of sets of inputs that guarantees that none is in L2 when its turn comes again: an
    even number, because half of them have their turns in between."""
    return min(COPIES, 4 * (l2_bytes // max(1, input_bytes) + 1))


def calls_of_graph(copies: int, us: float) -> int:
    """How many calls of so many microseconds a graph has that rotate through so many copies: whole
    turns. Otherwise its replays would find some copies in L2."""
    return copies * math.ceil(min(GRAPH_CALLS, math.ceil(GRAPH_US / us)) / copies)


def rotated(calls: Sequence[Call]) -> Call:
    """A call that makes the next of `calls`, which differ in their inputs. One half of them runs in
    a random order, then the other half, so that samples of one copy do not find L2 in a repeated
    state. In series of one kernel alone this did not bring medians closer to each other."""
    order = random.Random()
    half = (len(calls) + 1) // 2
    halves = (calls[:half], calls[half:])

    def turns() -> Iterator[Call]:
        while True:
            for some in halves:
                yield from order.sample(some, len(some))

    following = turns()
    return lambda: next(following)()
