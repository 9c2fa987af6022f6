"""The file of a capture: a line for each record, in JSON.

    {"problem": {"family": "gemm", …}, "count": 12}
    {"problem": {"family": "gemm", …}, "count": 12, "heard": {"by": "aten.mm", …}}
    {"listening": {"device": "NVIDIA H200", "seconds": 8.1, "steps": 40, …}}

The first kind is what a capture dispatched. The others are of a model that was listened to
(`tilewright.torch.listen`): `Heard` is what is known of a problem's calls, `Run` of a process.
`load` reads the counts alone.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tilewright import checks
from tilewright.checks import MOST_WHOLE
from tilewright.errors import BadArgument, BadFile, shown
from tilewright.jsonfile import convert, parse_json
from tilewright.reading import text as read_text
from tilewright.tables.row import meant, said

log = logging.getLogger("tilewright")

ENDING = ".jsonl"
_PROBLEM, _LISTENING = "problem", "listening"
_BEGINS = tuple(f'{{"{word}": '.encode() for word in (_PROBLEM, _LISTENING))


def _check_numbers(of: Any, *names: str) -> None:
    """Raise `BadArgument` for a field that is less than 0, or no number."""
    for name in names:
        checks.number(name, getattr(of, name))


@dataclass(frozen=True, slots=True)
class Heard:
    """What was heard of a problem's calls by torch's own operations.

    by: the operation (``aten.addmm``).
    timed: calls that were timed while the device was busy. seconds: their sum.
    early: timed calls that may include host time: the first call, and calls that found the GPU
        idle. early_seconds: their sum.
    followed: calls of which it was looked at what is done to their result next.
    seen: operations that took the whole result then, as an epilogue would do them, with how often
        (``bias+gelu``). What else reads the result is not known.
    """

    by: str
    timed: int = 0
    seconds: float = 0.0
    early: int = 0
    early_seconds: float = 0.0
    followed: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_numbers(self, "timed", "seconds", "early", "early_seconds", "followed")

    @property
    def each(self) -> float | None:
        """Seconds of a call, on average; None if none was timed."""
        if self.timed:
            return self.seconds / self.timed
        return self.early_seconds / self.early if self.early else None

    def __add__(self, other: Heard) -> Heard:
        """Both together."""
        names = sorted({*self.by.split(", "), *other.by.split(", ")})
        seen = {**self.seen}
        for chain, count in other.seen.items():
            seen[chain] = seen.get(chain, 0) + count
        return Heard(
            ", ".join(names),
            self.timed + other.timed,
            self.seconds + other.seconds,
            self.early + other.early,
            self.early_seconds + other.early_seconds,
            self.followed + other.followed,
            seen,
        )


@dataclass(frozen=True, slots=True)
class Unstated:
    """Calls that no operation here computes.

    by: the operation. why: a sentence. count, seconds: as of `Heard`, of all timed calls.
    """

    by: str
    why: str
    count: int
    seconds: float = 0.0

    def __post_init__(self) -> None:
        _check_numbers(self, "count", "seconds")


@dataclass(frozen=True, slots=True)
class Run:
    """A process that was listened to.

    device: the GPU's name, or ``cpu``.
    torch: its version.
    seconds: from the first call that was heard to the last.
    steps: how often an optimizer stepped. step_seconds: the median between two steps; 0 if unknown.
    unstated: calls that no operation here computes.
    """

    device: str
    torch: str
    seconds: float
    steps: int = 0
    step_seconds: float = 0.0
    unstated: tuple[Unstated, ...] = ()

    def __post_init__(self) -> None:
        _check_numbers(self, "seconds", "steps", "step_seconds")


@dataclass(frozen=True, slots=True)
class Record:
    """A line about a problem."""

    problem: Any
    count: int
    heard: Heard | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file holds, of all its processes.

    counts: of each problem, most frequent first, then in the order of the file.
    heard: what was heard of each problem that torch's own operations computed.
    heard_counts: how many of the counts were heard, not dispatched.
    processes: those that were listened to.
    """

    counts: Mapping[Any, int]
    heard: Mapping[Any, Heard]
    heard_counts: Mapping[Any, int]
    processes: tuple[Run, ...]


def load(path: str | os.PathLike[str]) -> dict[Any, int]:
    """The problems of a capture file with their counts, most frequent first, then in the order of
    the file.

    An incomplete record of a killed process is skipped with a warning. Raises `BadFile`, with the
    line's number, for any other bad record.
    """
    return dict(read(path).counts)


def read(path: str | os.PathLike[str]) -> Recorded:
    """All that a capture file holds. As `load` does otherwise."""
    text, where = read_text(path), os.fspath(path)
    counts: dict[Any, int] = {}
    heard: dict[Any, Heard] = {}
    heard_counts: dict[Any, int] = {}
    processes: list[Run] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        if line.startswith("{") and not line.endswith("}"):
            log.warning("%s: line %d is incomplete (its writer was killed): skipped", where, number)
            continue
        found = _line(line, f"{where}: line {number}")
        if isinstance(found, Run):
            processes.append(found)
            continue
        problem, count = found.problem, found.count
        counts[problem] = counts.get(problem, 0) + count
        if found.heard is not None:
            before = heard.get(problem)
            heard[problem] = found.heard if before is None else before + found.heard
            heard_counts[problem] = heard_counts.get(problem, 0) + count
    most_first = dict(sorted(counts.items(), key=lambda item: -item[1]))
    return Recorded(most_first, heard, heard_counts, tuple(processes))


def _line(line: str, where: str) -> Record | Run:
    data = parse_json(line, where)
    if isinstance(data, dict) and set(data) == {_LISTENING}:
        return convert(data[_LISTENING], Run, f"{where}: {_LISTENING}")
    count = data.get("count") if isinstance(data, dict) else None
    of_heard = isinstance(data, dict) and "heard" in data
    least = 0 if of_heard else 1  # facts may come behind the counts
    known = {_PROBLEM, "count"} | ({"heard"} if of_heard else set())
    if type(count) is not int or not least <= count <= MOST_WHOLE or set(data) != known:
        raise BadFile(f"{where}: a record has a problem, and a count from {least}")
    heard = convert(data["heard"], Heard, f"{where}: heard") if of_heard else None
    return Record(meant(data["problem"], f"{where}: problem"), count, heard)


def check(path: Path) -> None:
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
        begins = file.read(max(map(len, _BEGINS)))
    if not any(begins[: len(word)] == word[: len(begins)] for word in _BEGINS):
        raise BadArgument(f"cannot capture into {path}, which is no capture; choose a new file")


def append(path: Path, *records: Record | Run) -> None:
    """Append records, whole or not at all, beside any other writers. Raises `OSError`."""
    _append(path, "".join(json.dumps(_as_data(one)) + "\n" for one in records).encode())


def _as_data(one: Record | Run) -> dict[str, Any]:
    if isinstance(one, Run):
        return {_LISTENING: _told(one)}
    heard = {} if one.heard is None else {"heard": _told(one.heard)}
    return {_PROBLEM: said(one.problem), "count": one.count, **heard}


def _told(one: Heard | Run) -> dict[str, Any]:
    """The fields that say something."""
    needed: Iterable[str] = (
        ("by", "device", "torch", "seconds") if isinstance(one, Run) else ("by",)
    )
    names = (f.name for f in fields(one))
    values = asdict(one)
    return {name: values[name] for name in names if values[name] or name in needed}


def at_exit(call: Callable[[], None]) -> None:
    """Have `call` made when this process ends."""
    atexit.register(call)
    # multiprocessing's children end without `atexit`.
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, call, exitpriority=0)


def _open(path: Path) -> int:
    # Through a link, records would land in a file that nobody named; opening a pipe would wait.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o666)


def _append(path: Path, lines: bytes) -> None:
    fd = _open(path)
    try:
        # O_APPEND separates the records of one machine. The lock separates those of several
        # machines on one file system, and the check of the file's end.
        fcntl.flock(fd, fcntl.LOCK_EX)
        end = os.fstat(fd).st_size
        if end and os.pread(fd, 1, end - 1) != b"\n":  # its writer was killed
            lines = b"\n" + lines
        if os.write(fd, lines) < len(lines):
            os.ftruncate(fd, end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)
