"""Files from outside, read with suspicion: only regular ones, only so large, only UTF-8.

Every reader of JSON, CSV, JSON lines, tables, registries and manifests begins here, so a pipe, an
endless device, a huge file or a path that cannot be gives one kind of error, at once.
"""

from __future__ import annotations

import csv
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator

from tilewright.errors import BadFile, shown

PathLike = str | os.PathLike[str]

MOST_BYTES = 256 << 20
"""The largest file that is read whole: a table of a million rows as JSON."""


def content(path: PathLike, limit: int = MOST_BYTES) -> bytes:
    """The bytes of the regular file at `path`.

    Raises `BadFile`, which begins with the path: there is no such file, it may not be read, it is
    no regular file (a folder, a pipe, a device), or it has over `limit` bytes.
    """
    try:
        return regular(path, limit)
    except OSError as error:
        raise BadFile(f"{os.fspath(path)}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        if isinstance(error, BadFile):
            raise
        # A NUL or half a surrogate pair in the path.
        raise BadFile(f"{shown(os.fspath(path))}: cannot be read: {error}") from error


def regular(
    path: PathLike,
    limit: int,
    flags: int = 0,
    judge: Callable[[os.stat_result], None] | None = None,
) -> bytes:
    """As `content`, but `OSError` and `ValueError` are the caller's to explain. flags: for
    `os.open`, beside the usual. judge: is asked about the open file before it is read."""
    # O_NONBLOCK: opening a pipe that somebody put there must not hang.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(f"{os.fspath(path)}: cannot be read: not a regular file")
        if judge is not None:
            judge(status)
        if status.st_size > limit:
            raise BadFile(
                f"{os.fspath(path)}: has {status.st_size} bytes where at most {limit} are expected"
            )
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(limit + 1)  # one more, so that a file that grows is not cut
    finally:
        os.close(fd)


def text(path: PathLike, *, marked: bool = False) -> str:
    """The text of the UTF-8 file at `path`; `marked`: it may begin with a byte order mark, as
    spreadsheets write it. Line ends stay as they are. Raises `BadFile`."""
    return decoded(content(path), os.fspath(path), marked=marked)


def decoded(data: bytes, where: str, *, marked: bool = False) -> str:
    """`data` as UTF-8. Raises `BadFile`, which begins with `where`."""
    try:
        return data.decode("utf-8-sig" if marked else "utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{where}: not UTF-8 at byte {error.start}") from error


def csv_rows(
    source: str | Iterable[str], where: str, *, strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """The lines of a CSV with their numbers, cells stripped. Raises `BadFile`, which begins with
    `where` and the line."""
    lines = io.StringIO(source, newline="") if isinstance(source, str) else source
    reader = csv.reader(lines, strict=strict)
    try:
        for cells in reader:
            yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise BadFile(f"{where}: line {reader.line_num}: {error}") from error
