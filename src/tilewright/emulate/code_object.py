"""A code object (hsaco): its machine code, and what its metadata says of its kernels.

The metadata is the MessagePack document in the note NT_AMDGPU_METADATA, from which HIP's runtime
reads how a kernel's parameters are placed (LLVM, "User Guide for AMDGPU Backend", *Code Object V5
Metadata*).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tilewright.errors import BadFile

_HEADER = struct.Struct("<4x12xHHIQQQIHHHHHH")
"""Of a 64-bit ELF file, behind its magic number."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
HEADER_BYTES = _HEADER.size
_MAGIC = b"\x7fELF\x02\x01"
_NOTES, _METADATA = 7, 32  # SHT_NOTE, NT_AMDGPU_METADATA


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of a kernel: `size` bytes at `offset` of the kernel-argument segment. kind: as
    the metadata calls it; ``hidden_…`` for what the runtime fills in itself."""

    offset: int
    size: int
    kind: str

    @property
    def hidden(self) -> bool:
        """Whether the runtime gives it, and not the caller."""
        return self.kind.startswith("hidden_")


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of a code object.

    arguments: in the order in which a caller passes them, hidden ones included.
    argument_bytes: size of the kernel-argument segment.
    static_shared: bytes of LDS besides what a launch asks for.
    most_threads: threads that a workgroup may have.
    wave: lanes of a wave.
    """

    name: str
    arguments: tuple[Argument, ...]
    argument_bytes: int
    static_shared: int
    most_threads: int
    wave: int


@dataclass(frozen=True, slots=True)
class CodeObject:
    """text: the bytes of the section ``.text``. entries: its kernels by name."""

    text: bytes
    entries: Mapping[str, Entry]


def image_bytes(header: bytes) -> int:
    """The size of an ELF image that begins with `header` (`HEADER_BYTES` bytes): a loader is given
    the address alone. Raises `BadFile` for another file."""
    if not header.startswith(_MAGIC):
        raise BadFile("the binary is no 64-bit ELF file, which a code object of AMD's is")
    *_, at, _flags, _size, _phsize, _phcount, each, count, _names = _HEADER.unpack(header)
    end: int = at + each * count  # the table of sections stands behind them
    return end


def section(image: bytes, name: str) -> bytes:
    """The bytes of an ELF file's section. Raises `BadFile` if there is none."""
    for called, _, content in _sections(image):
        if called == name:
            return content
    raise BadFile(f"the binary has no section '{name}'")


def read(image: bytes) -> CodeObject:
    """A code object. Raises `BadFile` for a file that is none."""
    try:
        found = next(filter(None, map(_metadata, _sections(image))), None)
        if found is None:
            raise BadFile("the binary has no metadata of AMD's code objects")
        entries = [_entry(each) for each in found["amdhsa.kernels"]]
        text = section(image, ".text")
    except (struct.error, msgspec.MsgspecError, KeyError, TypeError, IndexError) as error:
        raise BadFile(f"the binary is no code object of AMD's: {error!r}") from None
    return CodeObject(text, {entry.name: entry for entry in entries})


def _sections(image: bytes) -> Iterator[tuple[str, int, bytes]]:
    """(name, type, content) of each section."""
    image_bytes(image[:HEADER_BYTES])
    *_, at, _flags, _size, _phsize, _phcount, each, count, names = _HEADER.unpack_from(image)
    headers = [_SECTION.unpack_from(image, at + each * i) for i in range(count)]
    strings = headers[names][4]
    for name, kind, _flags, _address, offset, size, *_ in headers:
        start = strings + name
        yield image[start : image.index(b"\0", start)].decode(), kind, image[offset : offset + size]


def _metadata(section: tuple[str, int, bytes]) -> dict[str, Any] | None:
    _, kind, content = section
    at = 0
    while kind == _NOTES and at < len(content):
        name_bytes, size, note = _NOTE.unpack_from(content, at)
        start = at + _NOTE.size + _padded(name_bytes)
        if note == _METADATA:
            return msgspec.msgpack.decode(content[start : start + size], type=dict[str, Any])
        at = start + _padded(size)
    return None


def _padded(size: int) -> int:
    return size + -size % 4


def _entry(said: Mapping[str, Any]) -> Entry:
    arguments = said.get(".args", ())
    return Entry(
        said[".name"],
        tuple(Argument(one[".offset"], one[".size"], one[".value_kind"]) for one in arguments),
        said[".kernarg_segment_size"],
        said[".group_segment_fixed_size"],
        said[".max_flat_workgroup_size"],
        said[".wavefront_size"],
    )
