"""Python's garbage collector beside graphs that are being captured.

While a thread captures a CUDA graph, calls that free or destroy something are forbidden to it, and
in torch's mode of captures (``global``) to all threads. One such call invalidates the capture.
Python collects garbage on whatever thread makes objects, and the garbage may be a graph, an event
or a library's plan, whose destructor makes such a call.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOCK = threading.RLock()
_holders = 0
_was_on = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside the context, on any thread."""
    global _holders, _was_on
    with _LOCK:
        if not _holders:
            _was_on = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _LOCK:
            _holders -= 1
            if not _holders and _was_on:
                gc.enable()


_FIRST: list[Callable[[], object]] = []


def first_in_threads(call: Callable[[], object]) -> None:
    """Have each thread of the library's own call this before its work. A driver has them allowed,
    once and for all, what captures forbid: they touch no stream, and only garbage that is collected
    on them makes such calls."""
    _FIRST.append(call)


def begin_thread() -> None:
    """What a thread of the library's own does first."""
    for call in _FIRST:
        call()
