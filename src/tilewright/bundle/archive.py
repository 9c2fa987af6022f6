"""The container of a bundle: a zip file whose entries are stored uncompressed.

One file is easy to copy, to name and to replace whole. A zip has a directory, so one kernel of a
thousand can be read alone. Entries are not compressed, for three reasons: the bytes do not depend
on a compression library, nothing can unpack to more than the file's own size, and an entry is one
read at a known place. A wheel or a transport compresses the whole file to about a third.

Nothing is unpacked to disk, so an entry's name is a key, never a path.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tilewright.errors import BadFile, StoreError

MOST_ENTRIES = 1 << 20
_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date of a zip: a bundle's bytes must not depend on when it was made."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""An entry's magic number, and the lengths of its name and of its extra field."""


def packed(first: str, entries: Mapping[str, bytes]) -> bytes:
    """A zip of `entries`: `first`, then the others by name. The same entries give the same
    bytes."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        for name in [first, *sorted(entries.keys() - {first})]:
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system = 3  # Unix, wherever this runs
            info.external_attr = 0o644 << 16
            file.writestr(info, entries[name])
    return target.getvalue()


class Archive:
    """A zip file that is open for reading. Thread-safe, and safe across forks: reads name their
    place, so there is no position to share.

    Raises `BadFile` for a file that is no zip, is cut short, or has compressed, encrypted or
    repeated entries, and `StoreError` if the system refuses to read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _opened(path)
        self._size = os.fstat(self._file.fileno()).st_size
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for info in self._directory():
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise BadFile(f"{path}: {info.filename!r} is compressed or encrypted")
            if info.filename in self._entries:
                raise BadFile(f"{path}: {info.filename!r} stands in it twice")
            self._entries[info.filename] = info

    def _directory(self) -> list[zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(io.BufferedReader(_Unclosed(self._file.fileno()))) as file:
                listed = file.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError) as e:
            raise BadFile(f"{self.path} is no bundle, or is cut short: {e}; copy it anew") from None
        if len(listed) > MOST_ENTRIES:
            raise BadFile(f"{self.path} has {len(listed)} entries where {MOST_ENTRIES} are allowed")
        return listed

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def read(self, name: str, limit: int) -> bytes:
        """An entry of at most `limit` bytes. Raises `BadFile`, and `StoreError` if the system
        refuses."""
        if name not in self._entries:
            raise BadFile(f"{self.path} has no {name}")
        info = self._entries[name]
        offset, size = info.header_offset, info.file_size
        if size > min(limit, self._size):
            raise BadFile(f"{self.path}: {name} has {size} bytes where at most {limit} are allowed")
        magic, *lengths = _LOCAL_HEADER.unpack(self._bytes(name, offset, _LOCAL_HEADER.size))
        if magic != b"PK\3\4":
            raise BadFile(f"{self.path}: {name} does not stand where its directory says")
        content = self._bytes(name, offset + _LOCAL_HEADER.size + sum(lengths), size)
        # Digests cover all but the first entry, whose damage might be another manifest.
        if zlib.crc32(content) != info.CRC:
            raise BadFile(f"{self.path}: {name} is damaged; copy the file anew")
        return content

    def _bytes(self, name: str, offset: int, size: int) -> bytes:
        try:
            found = os.pread(self._file.fileno(), size, offset)
        except (OSError, ValueError, OverflowError) as error:
            raise StoreError(f"cannot read {name} of {self.path}: {error}") from error
        if len(found) != size:
            raise BadFile(f"{self.path}: {name} is cut short; copy the file anew")
        return found


class _Unclosed(io.FileIO):
    """A reader of a file that stays open when the reader is closed."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, closefd=False)


def _opened(path: Path) -> io.FileIO:
    try:
        # O_NONBLOCK: opening a pipe that somebody put there must not hang.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"cannot read the bundle {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadFile(f"{path} is not a regular file")
    return io.FileIO(fd)
