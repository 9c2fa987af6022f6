"""A code object (hsaco): its machine code, and what its metadata says of its kernels.

The metadata is the MessagePack document in the note NT_AMDGPU_METADATA, from which HIP's runtime
reads how a kernel's parameters are placed (LLVM, "User Guide for AMDGPU Backend", *Code Object V5
Metadata*).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from tilewright.errors import BadFile

_HEADER = struct.Struct("<4x12xHHIQQQIHHHHHH")
"""The header of a 64-bit ELF file, behind its magic number."""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
HEADER_BYTES = _HEADER.size
_MAGIC = b"\x7fELF\x02\x01"
_NOTES, _METADATA = 7, 32  # SHT_NOTE, NT_AMDGPU_METADATA
_MOST_NAME = 256
"""Bytes of a section's name."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


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
    *_, at, _flags, _size, _phsize, _phcount, each, count, _names = _unpacked(_HEADER, header, 0)
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
    found = next(filter(None, map(_metadata, _sections(image))), None)
    if found is None:
        raise BadFile("the binary has no metadata of AMD's code objects")
    entries = [_entry(each) for each in found.kernels]
    return CodeObject(section(image, ".text"), {entry.name: entry for entry in entries})


def _sections(image: bytes) -> Iterator[tuple[str, int, bytes]]:
    """(name, type, content) of each section."""
    image_bytes(image[:HEADER_BYTES])
    *_, at, _flags, _size, _phsize, _phcount, each, count, names = _unpacked(_HEADER, image, 0)
    headers = [_unpacked(_SECTION, image, at + each * i) for i in range(count)]
    if names >= count:
        raise BadFile(f"the binary has no section {names}, where the names of sections are said")
    strings = headers[names][4]
    for name, kind, _flags, _address, offset, size, *_ in headers:
        called, ended, _ = image[strings + name :][:_MOST_NAME].partition(b"\0")
        if not ended:
            raise BadFile("the binary has a section whose name does not end")
        yield called.decode(errors="replace"), kind, image[offset : offset + size]


def _unpacked(layout: struct.Struct, image: bytes, at: int) -> tuple[Any, ...]:
    """A record of the binary. Raises `BadFile` where the binary ends before."""
    if at + layout.size > len(image):
        raise BadFile(f"the binary is cut short: it has {len(image)} bytes, and a record at {at}")
    return layout.unpack_from(image, at)


def _metadata(section: tuple[str, int, bytes]) -> _Metadata | None:
    _, kind, content = section
    at = 0
    while kind == _NOTES and at < len(content):
        name_bytes, size, note = _unpacked(_NOTE, content, at)
        start = at + _NOTE.size + _padded(name_bytes)
        if note == _METADATA:
            try:
                return msgspec.msgpack.decode(content[start : start + size], type=_Metadata)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadFile(f"the binary's metadata is not AMD's: {error}") from None
        at = start + _padded(size)
    return None


def _padded(size: int) -> int:
    return size + -size % 4


def _entry(said: _Kernel) -> Entry:
    return Entry(
        said.name,
        tuple(Argument(one.offset, one.size, one.kind) for one in said.arguments),
        said.argument_bytes,
        said.static_shared,
        said.most_threads,
        said.wave,
    )


# --- the metadata's own names -------------------------------------------------------------------


class _Parameter(msgspec.Struct):
    offset: _Count = msgspec.field(name=".offset")
    size: _Count = msgspec.field(name=".size")
    kind: str = msgspec.field(name=".value_kind")


class _Kernel(msgspec.Struct):
    name: str = msgspec.field(name=".name")
    argument_bytes: _Count = msgspec.field(name=".kernarg_segment_size")
    static_shared: _Count = msgspec.field(name=".group_segment_fixed_size")
    most_threads: _Count = msgspec.field(name=".max_flat_workgroup_size")
    wave: _Count = msgspec.field(name=".wavefront_size")
    arguments: list[_Parameter] = msgspec.field(name=".args", default_factory=list)


class _Metadata(msgspec.Struct):
    kernels: list[_Kernel] = msgspec.field(name="amdhsa.kernels")
