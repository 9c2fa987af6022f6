"""Capture: the dispatched problems with their counts, in a file that tuning reads.

    TILEWRIGHT_CAPTURE=shapes.jsonl python serve.py         # a whole process, and its children

    with tilewright.capture("shapes.jsonl", only="misses"):  # for the time of this block
        model(batch)

Each line of the file is a JSON object: a problem, field by field, and a count (`capture_file`). Any
number of threads, processes and ranks may append to one file; `load` adds up the counts of each
problem.

A process writes a problem when it first meets it, with a count of 1. It counts later meetings in
memory, and writes the counts when the capture or the process ends. A process that is killed loses
these counts, but no problem. The compiled launcher counts the launches of a ready plan anyway, so a
capture costs them nothing.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from tilewright import capture_file, variables
from tilewright.capture_file import ENDING, load
from tilewright.errors import BadArgument
from tilewright.plan import Plan

__all__ = ["ENDING", "VARIABLE", "Capture", "Only", "active", "capture", "load", "saw", "watch"]

log = logging.getLogger("tilewright")

VARIABLE, ONLY_VARIABLE = variables.CAPTURE, variables.CAPTURE_ONLY
"""Environment variables: the file to capture into, and which problems (`Only`). They are read when
a process makes its first dispatcher."""

Only = Literal["all", "misses"]
"""all: every problem. misses: problems whose kernel did not come from a tuned table."""

TUNED = "tuned"
"""The selector whose plans are not misses."""


class Launching(Protocol):
    """An object that launches, and can forget its ready launches: a `Dispatcher`."""

    def forget_launches(self) -> None: ...


@dataclass(slots=True)
class _Seen:
    """A problem that a capture has met.

    calls: counts each call that went through Python, and each of `reads`; `next` on it needs no
    lock.
    counters: the counts of launchers, each with its value when the capture found it.
    written: the count that the file holds.
    """

    problem: Any
    wanted: bool
    plans: list[Plan] = field(default_factory=list)
    calls: Iterator[int] = field(default_factory=itertools.count)
    reads: int = 0
    counters: list[tuple[Callable[[], int], int]] = field(default_factory=list)
    written: int = 0

    def count(self) -> int:
        """How often the problem was met."""
        calls = next(self.calls) - self.reads
        self.reads += 1
        return calls + sum(count() - before for count, before in self.counters)


class Capture:
    """The capture into one file. Thread-safe.

    Raises `BadArgument` for a file that cannot be appended to, or is no capture.
    """

    def __init__(self, path: str | os.PathLike[str], only: Only = "all") -> None:
        if only not in get_args(Only):
            raise BadArgument(f"capture '{only}' is not one of {', '.join(get_args(Only))}")
        self.path = Path(path)
        self.only = only
        self._lock = threading.Lock()
        self._by_plan: dict[int, _Seen] = {}
        self._seen: dict[tuple[Any, bool], _Seen] = {}
        self._broken = self._exit_watched = False
        capture_file.check(self.path)

    def saw(self, plan: Plan) -> None:
        """Count a problem that was dispatched through Python."""
        # Look up by identity: a dispatcher has one plan for a problem, and hashing a plan takes
        # microseconds.
        seen = self._by_plan.get(id(plan))
        next((self._first(plan) if seen is None else seen).calls)

    def follow(self, plan: Plan, count: Callable[[], int]) -> None:
        """From now on, `count` returns how often this plan was launched."""
        seen = self._first(plan)
        with self._lock:
            seen.counters.append((count, count()))

    def flush(self) -> None:
        """Write the counts that the file does not have yet."""
        with self._lock:
            for seen in self._seen.values():
                count = seen.count()
                if seen.wanted and count > seen.written:
                    self._write(seen, count - seen.written)

    def forked(self) -> None:
        """In a new process: drop the counts of the parent, which writes them itself."""
        self._lock = threading.Lock()
        self._exit_watched = False
        self._by_plan.clear()  # so that the first call registers the write at exit
        for seen in self._seen.values():
            seen.calls, seen.reads, seen.written = itertools.count(), 0, 0
            seen.counters = [(count, count()) for count, _ in seen.counters]

    def _first(self, plan: Plan) -> _Seen:
        with self._lock:
            if not self._exit_watched:
                self._exit_watched = True
                capture_file.at_exit(self.flush)
            key = plan.problem, self.only == "all" or plan.selector != TUNED
            seen = self._seen.get(key)
            if seen is None:
                seen = self._seen[key] = _Seen(*key)
                if seen.wanted:
                    self._write(seen, 1)
            if id(plan) not in self._by_plan:
                seen.plans.append(plan)  # kept, so that no other plan can get its identity
                self._by_plan[id(plan)] = seen
            return seen

    def _write(self, seen: _Seen, count: int) -> None:
        seen.written += count
        if self._broken:
            return
        try:
            capture_file.append(self.path, capture_file.Record(seen.problem, count))
        except OSError as error:
            self._broken = True
            log.warning("capture into %s stops: %s", self.path, error.strerror)

    def close(self) -> None:
        """Write the remaining counts, and drop everything."""
        self.flush()
        atexit.unregister(self.flush)
        self._by_plan.clear()
        self._seen.clear()


active: tuple[Capture, ...] = ()
"""The active captures. A dispatcher reports to each of them."""


def saw(plan: Plan) -> None:
    """Report a plan that was chosen for a call to the active captures."""
    for one in active:
        one.saw(plan)


_changing = threading.Lock()
_dispatchers: weakref.WeakSet[Any] = weakref.WeakSet()


@contextmanager
def capture(path: str | os.PathLike[str], only: Only = "all") -> Iterator[None]:
    """Append the problems that this process dispatches, in any thread, to `path` (``.jsonl``) until
    the context ends.

    only: ``"misses"`` captures only problems that no tuned table answered.

    Calls that name their kernel are not dispatched. A CUDA graph counts once, when it is captured.
    Raises `BadArgument` for a file that cannot be appended to or is no capture. If the disk fills
    up later, the capture ends with a warning.
    """
    this = Capture(path, only)
    _start(this)
    try:
        yield
    finally:
        _stop(this)


def watch(dispatcher: Launching) -> None:
    """Note a new dispatcher. The first one starts the environment's capture."""
    with _changing:
        _dispatchers.add(dispatcher)
    _of_environment()


@cache
def _of_environment() -> None:
    path = os.environ.get(VARIABLE, "")
    if path:
        only: Any = os.environ.get(ONLY_VARIABLE) or "all"
        try:
            _start(Capture(path, only))
        except BadArgument as error:
            raise BadArgument(f"{VARIABLE}: {error}") from None


def _start(this: Capture) -> None:
    global active
    with _changing:
        active = (*active, this)
        # Ready launches bypass Python: each must go through it once to be counted.
        for dispatcher in list(_dispatchers):
            dispatcher.forget_launches()


def _stop(this: Capture) -> None:
    global active
    with _changing:
        active = tuple(one for one in active if one is not this)
    this.close()


def _forked() -> None:
    global _changing
    _changing = threading.Lock()
    for one in active:
        one.forked()


os.register_at_fork(after_in_child=_forked)
