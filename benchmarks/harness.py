"""Timing contenders against each other on one GPU, in one run.

Every sample: flush L2, record an event, one call, record an event. Contenders take turns within
a round, and every other round goes backwards, so that clocks and neighbours treat them alike.
Medians of the samples are compared. Inputs are random (zeros run faster on an H200).

A flush that writes leaves L2 full of lines that must go back to memory while the call reads: on
an H200 4 µs for a call that reads 33 MB, 8 µs for one that reads 100 MB or more, whoever's the
kernel. What runs between layers leaves weights behind, which need no writing back; `clean` flushes
like that, by reading another buffer after the writes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.registry import Registry

WARM_UP_SECONDS = 0.5
"""Enough for the clocks to settle: three calls are not."""

TRIES, REST_CYCLES = 10, 1_000_000
"""Of a sample that the GPU came to before the host had queued it all, which may have the host's
time in it: taken again, after a rest of half a millisecond, in which the host gets ahead."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of one contender, in microseconds of device time."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        low, _, high = statistics.quantiles(self.samples, n=4)
        return low, high


def warm_up(call: Callable[[], object]) -> None:
    """Keep the GPU busy until its clocks have settled."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    while True:
        for _ in range(20):
            call()
        end.record()
        end.synchronize()
        if start.elapsed_time(end) > WARM_UP_SECONDS * 1e3:
            return


def compare(
    contenders: Mapping[str, Callable[[], object]], rounds: int, clean: bool = False
) -> dict[str, Timing]:
    """Time every contender `rounds` times, interleaved; `clean`: with nothing in L2 to write."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    read = torch.zeros(64 << 20, dtype=torch.float32, device="cuda") if clean else None
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in contenders}
    order = list(contenders.items())
    for round_number in range(rounds):
        for name, call in order if round_number % 2 else reversed(order):
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            for _ in range(TRIES):
                flush.zero_()
                if read is not None:
                    read.sum()
                start.record()
                call()
                end.record()
                if not start.query():
                    break
                torch.cuda._sleep(REST_CYCLES)
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: Timing(tuple(start.elapsed_time(end) * 1e3 for start, end in pairs))
        for name, pairs in events.items()
    }


def bound(store: Store, config: Any, *operands: Any, **call: Any) -> Callable[[], Any]:
    """A call of one kernel with its plan kept, as a dispatcher that had chosen it would make; made
    once already."""
    only = Dispatcher(Registry("one").register_all([config]), store=store)
    only.run(config.family, *operands, **call)
    return lambda: only.run(config.family, *operands, **call)
