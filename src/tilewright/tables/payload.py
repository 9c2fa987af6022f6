"""The parts of a compact table, and the check that they fit together.

Anybody can write a file with the right digest, so a digest says that a file is whole, not that its
content is right. `decode` checks every number that indexes another part before any of them is used.
Problems and rows check themselves when they are made.
"""

from __future__ import annotations

import itertools
import operator
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec

from tilewright.arch.model import Device
from tilewright.checks import LEAST_US, MOST_ERROR, MOST_US
from tilewright.errors import BadFile
from tilewright.jsonfile import convert

TIMES = struct.Struct("<4d")  # median, both ends of its interval, error
REFERENCES = struct.Struct("<4I")  # kernel, when, origin, past the last tie
NUMBER = struct.Struct("<I")
UNVERIFIED = -1.0
"""Stands for an error of None."""

Index = Annotated[int, msgspec.Meta(ge=0)]


class Column(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One field of a family's problems: the values it has, sorted."""

    field: str
    values: list[Any]


class Family(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    columns: list[Column]


class Block(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The rows of one device and family, one after another: how many, and their keys."""

    device: Index
    family: Index
    rows: Annotated[int, msgspec.Meta(ge=1)]
    keys: bytes


class Origin(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    versions: tuple[tuple[str, str], ...]
    driver: str
    timed: str


class Payload(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    devices: list[dict[str, Any]]
    families: list[Family]
    origins: list[Origin]
    blocks: list[Block]
    texts: bytes
    text_ends: bytes
    ties: bytes
    times: bytes
    references: bytes
    ours: bytes = b""

    def encoded(self) -> bytes:
        """Without `ours` where no row has one."""
        parts = [getattr(self, name) for name in self.__struct_fields__]
        return msgspec.msgpack.encode(parts if self.ours else parts[:-1])


def decode(data: bytes, where: str) -> tuple[Payload, tuple[Device, ...]]:
    """The parts of a table, and its devices. Raises `BadFile`, which begins with `where`, unless
    every number points to something that is there and every time is valid. `check_keys` checks
    the keys of blocks."""
    try:
        found = msgspec.msgpack.decode(data, type=Payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFile(f"{where}: is no table: {error}") from None
    devices = tuple(convert(d, Device, f"{where}: device") for d in found.devices)
    inside = [b.device < len(devices) and b.family < len(found.families) for b in found.blocks]
    owners = [(block.device, block.family) for block in found.blocks]
    checks: Sequence[tuple[Callable[[], bool], str]] = (
        (lambda: _distinct(devices), "a device stands there twice"),
        (lambda: _distinct([f.name for f in found.families]), "a family stands there twice"),
        (lambda: _distinct(owners), "two blocks are of the same"),
        (lambda: all(inside), "a block is of a device or a family that is not there"),
        (lambda: _texts_fit(found), "its texts do not end where it says"),
        (lambda: _rows_fit(found), "its columns are of different lengths, or point outside"),
        (lambda: _times_fit(found), "a row's times or error are none"),
    )
    for sound, what in checks:
        if not sound():
            raise BadFile(f"{where}: is no table: {what}")
    return found, devices


def check_keys(block: Block, widths: Sequence[int], counts: Sequence[int], where: str) -> None:
    """Raise `BadFile` unless the block has a key for each row, in order and each once.

    widths, counts: of the numbers that make a key, their bytes and what they stay below.
    """
    width, keys = sum(widths), block.keys
    if len(keys) != block.rows * width or (width == 0 and block.rows > 1):
        raise BadFile(f"{where}: is no table: its columns are of different lengths")
    if width == 0:
        return
    listed = [keys[i : i + width] for i in range(0, len(keys), width)]
    if not _ascending(listed, operator.lt):
        raise BadFile(f"{where}: is no table: keys are out of order, or stand there twice")
    at = 0
    for each, count in zip(widths, counts, strict=True):
        digits = [keys[at + i :: width] for i in range(each)]
        if each and int.from_bytes(bytes(max(zip(*digits, strict=True))), "big") >= count:
            raise BadFile(f"{where}: is no table: a key says a value that is not there")
        at += each


def _texts_fit(found: Payload) -> bool:
    if len(found.text_ends) % NUMBER.size:
        return False
    ends = _u32(found.text_ends)
    if not _ascending(ends, operator.le) or (ends[-1] if ends else 0) != len(found.texts):
        return False
    if found.texts.isascii():
        return True
    try:
        for begin, end in itertools.pairwise([0, *ends]):
            found.texts[begin:end].decode()
    except UnicodeDecodeError:
        return False
    return True


def _rows_fit(found: Payload) -> bool:
    rows = sum(block.rows for block in found.blocks)
    sizes = (len(found.times), len(found.references), len(found.ties) % NUMBER.size)
    if sizes != (rows * TIMES.size, rows * REFERENCES.size, 0):
        return False
    if len(found.ours) not in (0, rows * NUMBER.size):
        return False
    texts = len(found.text_ends) // NUMBER.size
    ties, references = _u32(found.ties), _u32(found.references)
    kernels, whens, origins, pasts = (references[i::4] for i in range(4))
    return (
        max(max(numbers, default=-1) for numbers in (kernels, whens, ties)) < texts
        and max(_u32(found.ours), default=0) <= texts
        and max(origins, default=-1) < len(found.origins)
        and _ascending(pasts, operator.le)
        and (pasts[-1] if pasts else 0) == len(ties)
    )


def _times_fit(found: Payload) -> bool:
    times = _native(array("d", found.times))
    medians, lows, highs, errors = (times[i::4] for i in range(4))
    return (
        all(map(operator.le, lows, medians))  # NaN is in no order
        and all(map(operator.le, medians, highs))
        and min(lows, default=LEAST_US) >= LEAST_US
        and max(highs, default=MOST_US) <= MOST_US
        and all(error == UNVERIFIED or 0 <= error <= MOST_ERROR for error in errors)
    )


def _distinct(values: Sequence[Any]) -> bool:
    return len(set(values)) == len(values)


def _ascending(values: Sequence[Any], before: Any) -> bool:
    return all(map(before, values, itertools.islice(values, 1, None)))


def _u32(data: bytes) -> array[int]:
    return _native(array("I", data))


def _native(numbers: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def u32(numbers: Iterable[int]) -> bytes:
    """The numbers as a table holds them: 32 bits each, little-endian."""
    found = [*numbers]
    return struct.pack(f"<{len(found)}I", *found)
