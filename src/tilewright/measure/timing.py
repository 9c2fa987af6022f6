"""Samples of several calls that take turns, until each one's median is known well enough.

A round calls each once, in an order drawn anew each time. Going to and fro is not enough: samples
of small calls follow a rhythm, and with a fixed order one of them keeps the worse beats (5 to 7 %
of 8 µs, on an H200; see `compare`). All calls of a round are in one of their places, with operands,
output and code that lie somewhere else than in the next round. Rounds are queued in blocks, so that
the GPU seldom waits for the host, and the device is read (`watch`) while a block runs. A sample
within which the GPU did wait is taken again (`Events`).

L2 is flushed before a sample by *reading* several times what it holds. A flush that writes leaves
lines that must go back to memory while the call reads: on an H200 4 to 8 µs of a call that reads
33 MB and more, as benchmarks/harness.py found. Each time another stretch of memory is read. That it
matters is not shown: what seemed so was a kernel that has two speeds, 8 % apart, each for seconds
at a time, whatever is done before a sample; another beside it was known to 1 % all the while, with
one stretch as with many (benchmarks/repeatability.py).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from tilewright.measure.measurement import Settings
from tilewright.measure.statistics import median_interval, ratios

Call = Callable[[], object]

BLOCK_SECONDS = 0.05
STEADY = 0.02
"""Clocks are steady when a block's medians, summed, differ by less than this from the last's."""
_LONGEST_WARM_UP = 5
"""Times `warm_up_seconds`, for clocks that do not get steady."""

GRAPH_CALLS = 20
FLUSHES = 3
"""How many times L2's size is read to flush it, of `STRETCHES` times its size."""
STRETCHES = 12
PAUSE_CYCLES = 50_000
"""20 to 30 µs."""
LONGEST_PAUSE = PAUSE_CYCLES << 7
TRIES = 12
"""Of a sample, until the host is there before the GPU."""
LATE = 0.05
"""Share of its samples that may be late without a mark."""
COPIES = 256
"""Most copies that operands are rotated through: with these, operands of under 1/64 of L2 stay
in it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one call, in microseconds, in the order taken; their median's confidence
    interval; whether that got as narrow as asked; and whether more than a share of `LATE` of the
    samples, however often they were taken, have the host's time in them."""

    samples_us: tuple[float, ...]
    interval_us: tuple[float, float]
    settled: bool
    late: bool = False


class Timer(Protocol):
    """A way of timing a call."""

    def queue(self, call: Call) -> Any:
        """Have one sample taken."""

    def read(self, queued: Sequence[Any]) -> list[float]:
        """Wait for these samples; microseconds of each."""

    def late(self, queued: Sequence[Any]) -> int:
        """How many of these samples have the host's time in them."""


def measure(
    calls: Mapping[str, Sequence[Call]],
    timer: Timer,
    settings: Settings,
    *,
    beside: Collection[str] = (),
    watch: Call = lambda: None,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Series]:
    """Time every call, in turns, as `settings` say; a round's time is shared out evenly. One that
    has what it needs leaves the rounds to the others; in a race, who is beaten does, and the others
    end together. calls: of each, the same in each of its places, equally many of all; rounds go
    through the places in orders drawn anew. beside: calls that are in no race, and none of which
    leaves before it ended."""
    rounds = _Rounds(calls, timer, watch, now)
    rounds.warm_up(settings)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    unsettled = list(calls)
    in_race = set(calls) - set(beside) if settings.race else set()
    settled: set[str] = set()
    spent = 0.0  # on each that is left
    while unsettled:
        taken = len(samples[unsettled[0]])  # all that are left have as many
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
        if racing.keys() <= slow | ended:  # what is beside a race sees all of it
            settled |= {n for n in unsettled if n not in racing and is_tight(samples[n], settings)}
        unsettled = [n for n in unsettled if n not in slow and n not in settled]
    return {
        name: Series(
            tuple(taken),
            median_interval(taken, settings.confidence),
            name in settled or is_tight(taken, settings),
            rounds.late[name] > LATE * len(taken),
        )
        for name, taken in samples.items()
    }


def is_tight(samples: Sequence[float], settings: Settings) -> bool:
    """Whether the median's interval is within `settings.precision` of it either way."""
    median = statistics.median(samples)
    low, high = median_interval(samples, settings.confidence)
    return max(median - low, high - median) <= settings.precision * median


def race(samples: Mapping[str, Sequence[float]], settings: Settings) -> tuple[set[str], set[str]]:
    """Who is beaten (`Settings.race`), and who has ended: all others, once the fastest one's median
    and their times over it are known to `settings.precision`. Times are compared by rounds, in
    which clocks are the same for all (see `finals`); so those that are not beaten have to go on
    until all of them are known."""
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
    """Blocks of rounds, of as many as take `BLOCK_SECONDS`."""

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
        """The samples of at most `most` rounds of the calls named."""
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
        """Blocks whose samples are dropped, until the clocks are steady."""
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
    """Numbers below `count`, all of them in an order drawn anew, again and again."""
    while True:
        yield from order.sample(range(count), count)


class Wall:
    """The wall clock around a call."""

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

    If the GPU comes to the first event before the host has queued the call and the second one, it
    may have waited for the host in between. So such a sample is taken again, after a pause, until
    the host is there first; if that takes more than another try, the pauses of all samples grow.
    On a machine whose other cores were at work, of two tunings on an H200 the medians of a split-K
    kernel, whose launch takes the host longer than others', were 20.2 and 34.1 µs.
    """

    def __init__(self, flush: Call, place: str) -> None:
        import torch

        self._torch: Any = torch
        self._free: list[Any] = []
        self._flush = flush
        # Asking torch for it each time takes the host longer than recording an event.
        self._stream = torch.cuda.current_stream(place)
        self._pause = 0

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
        """One that was read, or a new one, which takes the host longer."""
        return self._free.pop() if self._free else self._torch.cuda.Event(enable_timing=True)


class Graphs:
    """The same around a CUDA graph of `count` calls, divided by `count`: without the host, for
    calls that take less long than their launch. Only the first finds L2 flushed."""

    def __init__(self, flush: Call, place: str, count: int = GRAPH_CALLS) -> None:
        self._events = Events(flush, place)
        self._count = count
        self._graphs: dict[Call, Any] = {}

    def queue(self, call: Call) -> tuple[Any, Any, bool]:
        if call not in self._graphs:
            import torch

            graph: Any = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(self._count):
                    call()
            graph.replay()  # the first replay also uploads it
            self._graphs[call] = graph
        return self._events.queue(self._graphs[call].replay)

    def read(self, queued: Sequence[tuple[Any, Any, bool]]) -> list[float]:
        return [each / self._count for each in self._events.read(queued)]

    def late(self, queued: Sequence[tuple[Any, Any, bool]]) -> int:
        return self._events.late(queued)


def flusher(l2_bytes: int, place: str) -> Call:
    """A call that leaves nothing of the operands in L2, and nothing to be written back."""
    import torch

    each = max(l2_bytes, 16 << 20) // 4
    buffer = torch.zeros(STRETCHES * each, dtype=torch.float32, device=place)
    total = torch.empty((), dtype=torch.float32, device=place)
    starts = random.Random()

    def flush() -> None:
        # By 4 KiB: reading is vectorised, and pages are not split.
        start = starts.randrange((STRETCHES - FLUSHES) * each >> 10) << 10
        torch.sum(buffer[start : start + FLUSHES * each], dim=0, out=total)

    return flush


def pause(cycles: int = PAUSE_CYCLES) -> None:
    """The GPU rests, while the host queues the call: also what stands in the place of a flush where
    there is none. Without that, the time between two events around a short call is the host's: 22
    µs for one of 5 µs, on an H200."""
    import torch

    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def copies_to_rotate(input_bytes: int, l2_bytes: int) -> int:
    """How many sets of inputs it takes for none to be in L2 when its turn comes again, an even
    number: half of them have their turns in between."""
    return min(COPIES, 4 * (l2_bytes // max(1, input_bytes) + 1))


def rotated(calls: Sequence[Call]) -> Call:
    """A call that makes the next of `calls`, which differ in their inputs. Half of them have their
    turns in an order drawn anew, then the other half, so that no sample finds L2 just as the last
    one of its copy did; series of one kernel alone were not nearer to each other for it."""
    order = random.Random()
    half = (len(calls) + 1) // 2
    halves = (calls[:half], calls[half:])

    def turns() -> Iterator[Call]:
        while True:
            for some in halves:
                yield from order.sample(some, len(some))

    following = turns()
    return lambda: next(following)()
