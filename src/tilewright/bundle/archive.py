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

from tilewright.errors import BadFile, StoreError, shown

_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date of a zip: a bundle's bytes must not depend on when it was made."""
_LOCAL_HEADER = struct.Struct("<4s2xHH4xIIIHH")
"""An entry's magic number, flags, compression, CRC, size in the file, size, and the lengths of its
name and of its extra field."""
_END = struct.Struct("<4s8xI4xH")
"""Parts of the last record: its magic number, the directory's bytes, the length of a comment."""
_END_64 = struct.Struct("<4s36xQ8x20x")
"""Parts of the record for a directory of more than 65,535 entries: its magic number and the
directory's bytes. The 20 bytes behind it say where it is."""
_ENTRY_BYTES = 1 << 10
"""The most bytes of the directory that an entry takes."""
_SIZES_BEHIND, _ENCRYPTED = 8, 1
"""Flags of an entry."""


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

    Its first entry can be read by itself; `open_directory` makes the others known.

    Raises `BadFile` for a file that is no zip, is cut short, or has compressed, encrypted or
    repeated entries, and `StoreError` if the system refuses to read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _opened(path)
        self._size = os.fstat(self._file.fileno()).st_size
        self._entries: dict[str, zipfile.ZipInfo] = {}

    def first(self, name: str, limit: int) -> bytes:
        """The first entry, which is called `name` and has at most `limit` bytes."""
        if self._size < _LOCAL_HEADER.size:
            raise self._no_bundle("it has no entry")
        begins = self._bytes(name, 0, _LOCAL_HEADER.size)
        magic, flags, compression, crc, stored, size, *lengths = _LOCAL_HEADER.unpack(begins)
        if magic != b"PK\3\4" or lengths[0] != len(name.encode()):
            raise self._no_bundle(f"it does not begin with {name}")
        called = self._bytes(name, _LOCAL_HEADER.size, lengths[0])
        if called != name.encode():
            raise self._no_bundle(f"it does not begin with {name}")
        if compression != zipfile.ZIP_STORED or flags & (_ENCRYPTED | _SIZES_BEHIND):
            raise BadFile(f"{self.path}: {name!r} is compressed or encrypted")
        self._check_size(name, max(size, stored), limit)
        content = self._bytes(name, _LOCAL_HEADER.size + sum(lengths), size)
        return self._intact(name, content, crc)

    def open_directory(self, most: int) -> None:
        """Read which entries there are: at most `most`."""
        if self._directory_bytes() > most * _ENTRY_BYTES:
            raise BadFile(f"{self.path} has a directory of more than {most} entries")
        for info in self._directory():
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
                raise BadFile(f"{self.path}: {info.filename!r} is compressed or encrypted")
            if info.filename in self._entries:
                raise BadFile(f"{self.path}: {info.filename!r} stands in it twice")
            self._entries[info.filename] = info

    def _directory_bytes(self) -> int:
        """The size of the directory, by the records that `zipfile` goes by."""
        if self._size < _END.size:
            raise self._no_bundle("it has no directory")
        end = self._size - _END.size
        magic, size, comment = _END.unpack(self._bytes("the end", end, _END.size))
        if magic != b"PK\5\6" or comment:
            raise self._no_bundle("it does not end with a directory")
        if end >= _END_64.size:
            magic, size_64 = _END_64.unpack(
                self._bytes("the end", end - _END_64.size, _END_64.size)
            )
            size = max(size, size_64) if magic == b"PK\6\6" else size
        return int(size)

    def _directory(self) -> list[zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(io.BufferedReader(_Unclosed(self._file.fileno()))) as file:
                return file.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError) as e:
            raise self._no_bundle(str(e)) from None

    def _no_bundle(self, why: str) -> BadFile:
        return BadFile(f"{self.path} is no bundle, or is cut short: {why}; copy it anew")

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
        self._check_size(name, info.file_size, limit)
        header = self._bytes(name, info.header_offset, _LOCAL_HEADER.size)
        magic, *_, of_name, of_extra = _LOCAL_HEADER.unpack(header)
        if magic != b"PK\3\4":
            raise BadFile(f"{self.path}: {name} does not stand where its directory says")
        begin = info.header_offset + _LOCAL_HEADER.size + of_name + of_extra
        return self._intact(name, self._bytes(name, begin, info.file_size), info.CRC)

    def _check_size(self, name: str, size: int, limit: int) -> None:
        if size > min(limit, self._size):
            raise BadFile(f"{self.path}: {name} has {size} bytes where at most {limit} are allowed")

    def _intact(self, name: str, content: bytes, crc: int) -> bytes:
        # Digests cover all but the first entry, whose damage might be another manifest.
        if zlib.crc32(content) != crc:
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
    except ValueError as error:  # a NUL or half a surrogate pair in the path
        raise StoreError(f"cannot read the bundle {shown(str(path))}: {error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadFile(f"{path} is not a regular file")
    return io.FileIO(fd)
