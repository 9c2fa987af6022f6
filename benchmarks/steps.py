"""Steps that are timed in turns: in graphs, as parts of whole programs, and the host's time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from comparison import Samples, rounds_of
from tilewright.measure import timing
from tilewright.measure.measurement import Settings

GPU = "cuda:0"
ONCE = Settings(warm_up_seconds=0, min_samples=2, max_samples=2)
REPLAY_SECONDS = 1.0
"""Of the samples of steps in graphs."""
STEPS = Settings(min_samples=20, max_samples=100, precision=0.005, budget_seconds=5)
HOST_BATCHES, HOST_CALLS = 60, 200


def fixed(rounds: int) -> Settings:
    """So many rounds of every contender, whatever they say."""
    return Settings(
        warm_up_seconds=0.1, min_samples=rounds, max_samples=rounds, precision=1e-9,
        budget_seconds=3600,
    )  # fmt: skip


def replayed(calls: Mapping[str, timing.Call], count: int) -> tuple[Samples, list[str]]:
    """Microseconds on the device of one of the `count` calls of each step, in graphs that are
    replayed in turns; and whose times have the host's in them. Each step ran before."""
    made = {name: [graph] for name, graph in in_graphs(calls).items()}
    timer = timing.Events(timing.pause, GPU)
    once = timing.measure(made, timer, ONCE)
    total = sum(statistics.median(series.samples_us) for series in once.values())
    taken = timing.measure(made, timer, fixed(rounds_of(total, REPLAY_SECONDS)))
    samples = {name: [us / count for us in series.samples_us] for name, series in taken.items()}
    return samples, [name for name, series in taken.items() if series.late]


def in_graphs(calls: Mapping[str, timing.Call]) -> dict[str, timing.Call]:
    """What replays each call. All share memory: no two run at once, and nobody reads a result."""
    import torch

    torch.cuda.empty_cache()
    pool = torch.cuda.graph_pool_handle()
    made: dict[str, timing.Call] = {}
    for name, call in calls.items():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            call()
        graph.replay()  # the first replay also uploads it
        made[name] = graph.replay
    torch.cuda.synchronize()
    return made


def stepped(calls: Mapping[str, timing.Call]) -> Samples:
    """Times of steps of programs, from their calls to the end of their work, in turns; the same
    number of each. The host is part of a step: it may be what a program waits for."""
    ended = {name: [partial(_to_the_end, call)] for name, call in calls.items()}
    taken = timing.measure(ended, Host(calls=1), STEPS)
    least = min(len(series.samples_us) for series in taken.values())
    return {name: series.samples_us[:least] for name, series in taken.items()}


class Host:
    """The host's time for a call: a batch of calls that nothing waits for, by the wall clock."""

    def __init__(self, calls: int = HOST_CALLS, wait: Callable[[], object] | None = None) -> None:
        self._calls, self._wait = calls, wait or synchronize

    def once(self, call: timing.Call) -> float:
        return self.queue(call)

    def queue(self, call: timing.Call) -> float:
        self._wait()
        begun = time.perf_counter()
        for _ in range(self._calls):
            call()
        return (time.perf_counter() - begun) / self._calls * 1e6

    def read(self, queued: Sequence[float]) -> list[float]:
        return [*queued]

    def late(self, queued: Sequence[float]) -> int:
        return 0


def _to_the_end(call: timing.Call) -> None:
    call()
    synchronize()


def synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def host_times(calls: Mapping[str, timing.Call], batch: int = HOST_CALLS) -> Samples:
    """Microseconds of the host for a call, in batches of so many, in turns."""
    taken = timing.measure({n: [c] for n, c in calls.items()}, Host(batch), fixed(HOST_BATCHES))
    return {name: series.samples_us for name, series in taken.items()}
