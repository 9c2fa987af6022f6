"""How long calls take: by the host's clock on a CPU, by events on a GPU.

On a GPU a sample of the calls is timed: the first ones of each kind, and then one in `EVERY`. A
pair of events is put around such a call, and is read when the GPU has passed it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

FIRST, EVERY = 10, 16
"""Calls of a kind that are timed on a GPU: the first of this number, then each so many."""
_MOST_WAITING = 256
"""Pairs of events that may wait to be read."""

Add = Callable[[float, bool], None]
"""Takes the seconds of a call, and whether they may have the host's time in them."""


class HostClock:
    """Times each call."""

    def wanted(self, calls: int) -> bool:
        return True

    def begin(self) -> float:
        return perf_counter()

    def end(self, began: float, add: Add, first: bool) -> None:
        add(perf_counter() - began, first)

    def settle(self) -> None:
        pass


class EventClock:
    """Times a sample of the calls, on the current stream. Nothing is timed while a graph is being
    captured."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Any, Any, Add, bool]] = []

    def wanted(self, calls: int) -> bool:
        sample = calls < FIRST or calls % EVERY == 0
        return sample and not torch.cuda.is_current_stream_capturing()

    def begin(self) -> tuple[Any, bool]:
        idle = torch.cuda.current_stream().query()
        began = _event()
        return began, idle

    def end(self, began: tuple[Any, bool], add: Add, first: bool) -> None:
        event, idle = began
        ended = _event()
        with self._lock:
            self._waiting.append((event, ended, add, first or idle))
            full = len(self._waiting) >= _MOST_WAITING
        if full:
            self._read(wait=False)

    def settle(self) -> None:
        """Read all events. Waits for the GPU."""
        self._read(wait=True)

    def _read(self, wait: bool) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        left = []
        for began, ended, add, early in waiting:
            if wait:
                ended.synchronize()
            elif not ended.query():
                left.append((began, ended, add, early))
                continue
            add(began.elapsed_time(ended) / 1e3, early)
        with self._lock:
            self._waiting += left


def _event() -> Any:
    """An event on the current stream."""
    found = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    found.record()
    return found
