"""Reads files of unknown origin: only regular files, only up to a size, only UTF-8.

Every reader of JSON, CSV, JSON lines, tables, registries and manifests uses these functions. So a
pipe, an endless device, a huge file or an impossible path gives the same kind of error, at once.
"""

from __future__ import annotations

import csv
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator

from tilewright.errors import BadArgument, BadFile, shown

PathLike = str | os.PathLike[str]

MOST_BYTES = 256 << 20
"""The largest file that is read whole: a table of a million rows as JSON."""


def located(path: PathLike) -> str:
    """The path as text. Raises `BadArgument` for anything that is no path."""
    if isinstance(path, str | os.PathLike):
        found = os.fspath(path)
        if isinstance(found, str):
            return found
    raise BadArgument(f"{shown(path)} is not the path of a file or a folder")


def content(path: PathLike, limit: int = MOST_BYTES) -> bytes:
    """The bytes of the regular file at `path`.

    Raises `BadFile`, which begins with the path, if the file does not exist, may not be read, is
    not a regular file (a folder, a pipe, a device), or has over `limit` bytes; and `BadArgument`
    for anything that is no path.
    """
    path = located(path)
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
    """As `content`, but the caller explains `OSError` and `ValueError`.

    flags: for `os.open`, added to the usual ones.
    judge: is called with the status of the open file before it is read, and may raise.
    """
    # O_NONBLOCK: opening must not hang if somebody put a pipe there.
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
            return file.read(
                limit + 1
            )  # one byte more, so that a growing file is not cut unnoticed
    finally:
        os.close(fd)


def text(path: PathLike, *, marked: bool = False) -> str:
    """The text of the UTF-8 file at `path`. Line ends stay as they are. Raises `BadFile`.

    marked: the file may begin with a byte order mark, as spreadsheets write it.
    """
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
