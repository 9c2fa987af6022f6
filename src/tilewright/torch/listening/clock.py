"""How long calls take: by the host's clock on a CPU, by events on a GPU.

A sample of the calls is timed: every second of the first ones of each kind, and then one in
`EVERY`. On a GPU a pair of events is put around such a call, and is read when the GPU has passed
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, ClassVar, Protocol

import torch

FIRST, EVERY = 20, 16
"""Calls of a kind that are timed: every second of this number, then each so many. Timing costs the
host, which is hardly ahead of the GPU when a program begins: so the first are spread."""
_MOST_WAITING = 256
"""Pairs of events that may wait to be read."""

Add = Callable[[float, bool], None]
"""Takes the seconds of a call, and whether they may have the host's time in them."""


class Clock(Protocol):
    """Times calls on one kind of device. gpu: whether on a GPU."""

    gpu: ClassVar[bool]

    def begin(self, calls: int) -> Any:
        """Begin to time a call, if it is of the sample; else None. calls: how many there were
        before."""

    def end(self, began: Any, add: Add, first: bool) -> None:
        """The call returned. first: it is the first of its kind."""


class HostClock:
    """Times calls by the host's clock."""

    gpu: ClassVar[bool] = False

    def begin(self, calls: int) -> float | None:
        """See `Clock`."""
        return perf_counter() if _sampled(calls) else None

    def end(self, began: float, add: Add, first: bool) -> None:
        """See `Clock`."""
        add(perf_counter() - began, first)


class EventClock:
    """Times calls on the current stream. Nothing is timed while a graph is being captured."""

    gpu: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Any, Any, Add, bool]] = []

    def begin(self, calls: int) -> tuple[Any, bool] | None:
        """See `Clock`."""
        if not _sampled(calls) or torch.cuda.is_current_stream_capturing():
            return None
        idle = torch.cuda.current_stream().query()
        return _event(), idle

    def end(self, began: tuple[Any, bool], add: Add, first: bool) -> None:
        """See `Clock`."""
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


def _sampled(calls: int) -> bool:
    return calls % (2 if calls < FIRST else EVERY) == 0


def _event() -> Any:
    """An event on the current stream."""
    found = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    found.record()
    return found
