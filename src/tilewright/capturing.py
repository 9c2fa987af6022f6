"""Capture: the problems that were dispatched, with how often, in a file that tuning reads.

    TILEWRIGHT_CAPTURE=shapes.jsonl python serve.py         # a whole process, and its children

    with tilewright.capture("shapes.jsonl", only="misses"):  # as long as this lasts
        model(batch)

A file has a JSON object a line: a problem, field by field, and a count. Any number of threads,
processes and ranks may append to one; `load` adds up what they say of a problem.

A problem is written when a process first meets it, with a count of 1; what it is met after that is
counted in memory, and written when the capture or the process ends. A process that is killed loses
these counts, never a problem. Launches from a plan that is ready are counted by the compiled
launcher, which counts anyway: a capture costs them nothing.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import itertools
import json
import logging
import os
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from tilewright.checks import MOST_WHOLE
from tilewright.errors import BadArgument, BadFile, shown
from tilewright.jsonfile import parse_json
from tilewright.plan import Plan
from tilewright.reading import text as read_text
from tilewright.tables.row import meant, said

log = logging.getLogger("tilewright")

VARIABLE, ONLY_VARIABLE = "TILEWRIGHT_CAPTURE", "TILEWRIGHT_CAPTURE_ONLY"
"""Environment variables: the file to capture into, and what (`Only`). They are read when a process
makes its first dispatcher."""

ENDING = ".jsonl"
_BEGINS = b'{"problem": '

Only = Literal["all", "misses"]
"""all: every problem. misses: those that a tuned table did not choose the kernel of."""

TUNED = "tuned"
"""The selector whose plans are no misses."""


class Launching(Protocol):
    """What launches, and can forget which launches are ready: a `Dispatcher`."""

    def forget_launches(self) -> None: ...


@dataclass(slots=True)
class _Seen:
    """A problem a capture has met. calls: its `next` for each call that went by way of Python,
    which needs no lock, and for each of `reads`. counters: launchers' counts, each with what it
    stood at; written: how many the file has."""

    problem: Any
    wanted: bool
    plans: list[Plan] = field(default_factory=list)
    calls: Iterator[int] = field(default_factory=itertools.count)
    reads: int = 0
    counters: list[tuple[Callable[[], int], int]] = field(default_factory=list)
    written: int = 0

    def count(self) -> int:
        """How often it was met."""
        calls = next(self.calls) - self.reads
        self.reads += 1
        return calls + sum(count() - before for count, before in self.counters)


class Capture:
    """What one file is told. Thread-safe.

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
        _check(self.path)

    def saw(self, plan: Plan) -> None:
        """A problem was dispatched by way of Python: count it."""
        # By identity: a dispatcher has one plan for a problem, and hashing one takes microseconds.
        seen = self._by_plan.get(id(plan))
        next((self._first(plan) if seen is None else seen).calls)

    def follow(self, plan: Plan, count: Callable[[], int]) -> None:
        """From now on `count` says how often this plan was launched."""
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
        """In a new process: what its parent counted is the parent's to write."""
        self._lock = threading.Lock()
        self._exit_watched = False
        self._by_plan.clear()  # so that the first call looks to the exit
        for seen in self._seen.values():
            seen.calls, seen.reads, seen.written = itertools.count(), 0, 0
            seen.counters = [(count, count()) for count, _ in seen.counters]

    def _first(self, plan: Plan) -> _Seen:
        with self._lock:
            if not self._exit_watched:
                self._watch_exit()
            key = plan.problem, self.only == "all" or plan.selector != TUNED
            seen = self._seen.get(key)
            if seen is None:
                seen = self._seen[key] = _Seen(*key)
                if seen.wanted:
                    self._write(seen, 1)
            if id(plan) not in self._by_plan:
                seen.plans.append(plan)  # kept, so that its identity cannot become another's
                self._by_plan[id(plan)] = seen
            return seen

    def _write(self, seen: _Seen, count: int) -> None:
        seen.written += count
        record = json.dumps({"problem": said(seen.problem), "count": count}) + "\n"
        if self._broken:
            return
        try:
            _append(self.path, record.encode())
        except OSError as error:
            self._broken = True
            log.warning("capture into %s stops: %s", self.path, error.strerror)

    def _watch_exit(self) -> None:
        self._exit_watched = True
        atexit.register(self.flush)
        # multiprocessing's children end without `atexit`.
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, self.flush, exitpriority=0)

    def close(self) -> None:
        """Write what is left, and keep nothing."""
        self.flush()
        atexit.unregister(self.flush)
        self._by_plan.clear()
        self._seen.clear()


active: tuple[Capture, ...] = ()
"""The captures that are on. A dispatcher tells each of them."""

_changing = threading.Lock()
_dispatchers: weakref.WeakSet[Any] = weakref.WeakSet()


@contextmanager
def capture(path: str | os.PathLike[str], only: Only = "all") -> Iterator[None]:
    """Append the problems that this process dispatches to `path` (``.jsonl``), in any thread, until
    the context ends; only those that no tuned table answered, with ``only="misses"``.

    Calls that name their kernel are not dispatched. A CUDA graph counts once, when it is captured.
    Raises `BadArgument` for a file that cannot be appended to or is no capture; a disk that is full
    later ends the capture with a warning.
    """
    this = Capture(path, only)
    _start(this)
    try:
        yield
    finally:
        _stop(this)


def watch(dispatcher: Launching) -> None:
    """A dispatcher was made; start the environment's capture if this is the first."""
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
        # Launches that are ready pass Python by: each has to be met once.
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


# --- the file ---------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> dict[Any, int]:
    """The problems of a capture file with their counts, most frequent first, then as first written.

    A record that a killed process left incomplete is skipped with a warning. Raises `BadFile`,
    naming the line, for anything else that is no record.
    """
    where, text = os.fspath(path), read_text(path)
    counts: dict[Any, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if not line.endswith("}"):
            log.warning("%s: line %d is incomplete (its writer was killed): skipped", where, number)
            continue
        problem, count = _record(line, f"{where}: line {number}")
        counts[problem] = counts.get(problem, 0) + count
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _record(line: str, where: str) -> tuple[Any, int]:
    data = parse_json(line, where)
    count = data.get("count") if isinstance(data, dict) else None
    if type(count) is not int or not 1 <= count <= MOST_WHOLE or set(data) != {"problem", "count"}:
        raise BadFile(f"{where}: a record has a problem, and a count from 1")
    return meant(data["problem"], f"{where}: problem"), count


def _check(path: Path) -> None:
    """Raise `BadArgument` unless `path` can be appended to, and is empty, new, or a capture."""
    if path.suffix != ENDING:
        raise BadArgument(f"cannot capture into {path}: a capture's file ends in {ENDING}")
    try:
        fd = _open(path)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise BadArgument(f"cannot capture into {path}: {why}") from None
    except ValueError as error:  # a NUL or half a surrogate pair in the path
        raise BadArgument(f"cannot capture into {shown(str(path))}: {error}") from None
    with os.fdopen(fd, "rb", buffering=0) as file:  # a pipe cannot be buffered
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadArgument(f"cannot capture into {path}, which is no capture: not a file")
        begins = file.read(len(_BEGINS))
    if not _BEGINS.startswith(begins):
        raise BadArgument(f"cannot capture into {path}, which is no capture; choose a new file")


def _open(path: Path) -> int:
    # Through a link, records would land in a file that nobody named; a pipe would be waited for.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o666)


def _append(path: Path, record: bytes) -> None:
    """Append one line, whole or not at all, whoever else is appending. Raises `OSError`."""
    fd = _open(path)
    try:
        # O_APPEND keeps records of one machine apart; the lock, those of several that share a file
        # system, and whoever looks at the end of the file.
        fcntl.flock(fd, fcntl.LOCK_EX)
        end = os.fstat(fd).st_size
        if end and os.pread(fd, 1, end - 1) != b"\n":  # its writer was killed
            record = b"\n" + record
        if os.write(fd, record) < len(record):
            os.ftruncate(fd, end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)
