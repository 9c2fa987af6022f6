"""The bytes of an operand that go to the interpreter's process and back.

An operand whose elements lie close together goes whole, from its lowest to its highest byte. An
operand with wide gaps (a view of a few rows of a large array) goes as blocks around its elements.
The other process reserves addresses for the gaps too, so that a kernel computes the same addresses,
but no memory stands behind them.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.child import Message

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 16
"""Operands have the same address modulo this number in both processes."""

DENSE = 16 << 20
"""Bytes up to which a span goes whole, with what lies between the elements."""

MOST = 8 << 30
"""Bytes that the operands of a launch may take in the other process."""

_PAGE = 4096
_NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python's `mmap` does not name in every release."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of bytes at regular distances.

    counts: how many there are along each dimension; none for a single block.
    steps: bytes from one to the next.
    size: bytes of each.
    """

    counts: tuple[int, ...]
    steps: tuple[int, ...]
    size: int

    def within(self, memory: Any) -> Array:
        """The blocks as an array [*counts, size] of bytes of `memory`, which begins with the
        first."""
        return np.ndarray((*self.counts, self.size), np.uint8, memory, 0, (*self.steps, 1))

    @property
    def resident(self) -> int:
        """Bytes of the pages that they touch."""
        count = 1
        for n in self.counts:
            count *= n
        return count * (self.size + _PAGE) if self.counts else self.size


class Span:
    """The bytes from an array's lowest element to its highest, seen in place.

    `described` tells of the array within them; `origin` is its first element's offset. `image` is
    what goes to the other process.
    """

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory alive
        steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        low = sum(s for s in steps if s < 0) if array.size else 0
        high = sum(s for s in steps if s > 0) + array.itemsize if array.size else 0
        address = array.__array_interface__["data"][0] + low
        self.memory = memoryview((ctypes.c_ubyte * (high - low)).from_address(address)).cast("B")
        outer = _outer(array) if high - low > DENSE else []
        self.blocks: Blocks | None = None
        self._strides = array.strides
        if outer:
            self.blocks, self._strides = _apart(array, outer)
        self.described: Message = {
            "address": address,
            "origin": -low,
            "shape": array.shape,
            "strides": array.strides,
            "itemsize": array.itemsize,
            "bytes": high - low,
            "blocks": self.blocks and [self.blocks.counts, self.blocks.steps, self.blocks.size],
        }

    @property
    def image(self) -> memoryview:
        """The bytes that go."""
        if self.blocks is None:
            return self.memory
        return np.ascontiguousarray(self.blocks.within(self.memory)).reshape(-1).data

    @property
    def resident(self) -> int:
        """Bytes that they take in the other process."""
        return self.memory.nbytes if self.blocks is None else self.blocks.resident

    def write_back(self, blob: Any) -> None:
        """Copy the elements, and only them, from a changed image."""
        bits = np.dtype(f"u{self.array.itemsize}")  # moves NaN payloads untouched
        steps = zip(self.array.shape, self._strides, strict=True)
        origin = -sum((n - 1) * s for n, s in steps if s < 0)
        changed: Array = np.ndarray(self.array.shape, bits, blob, origin, self._strides)
        np.copyto(self.array.view(bits), changed)


def _outer(array: Array) -> list[int]:
    """The dimensions of an array along which blocks lie apart, the widest step first."""
    steps = [(abs(s), i) for i, s in enumerate(array.strides) if s and array.shape[i] > 1]
    reach, outer = array.itemsize, list[int]()
    for step, i in sorted(steps):
        if step < reach:  # interleaved with what is apart so far: all of it is one block
            outer.clear()
        elif outer or step > reach + _PAGE:
            outer.insert(0, i)
        reach += (array.shape[i] - 1) * step
    return outer


def _apart(array: Array, outer: Sequence[int]) -> tuple[Blocks, tuple[int, ...]]:
    """The blocks of an array, and its strides where these lie one behind another."""
    counts = tuple(array.shape[i] for i in outer)
    steps = tuple(abs(array.strides[i]) for i in outer)
    inner = [i for i in range(array.ndim) if i not in outer]
    size = array.itemsize + sum((array.shape[i] - 1) * abs(array.strides[i]) for i in inner)
    strides, behind = list(array.strides), size
    for i in reversed(outer):
        strides[i] = behind if array.strides[i] > 0 else -behind
        behind *= array.shape[i]
    return Blocks(counts, steps, size), tuple(strides)


# --- in the interpreter's process ---------------------------------------------------------------


def blocks_of(operand: Message) -> Blocks | None:
    """The blocks that `Span.described` tells of; None of a whole span."""
    told = operand["blocks"]
    return None if told is None else Blocks(tuple(told[0]), tuple(told[1]), told[2])


def placed(operand: Message, blob: bytes) -> Array:
    """The span of an operand as writable memory with the image in it, with the alignment that the
    operand has in the other process."""
    blocks = blocks_of(operand)
    size = operand["bytes"]
    room = reserved(size + 2 * ALIGNMENT) if blocks else np.empty(size + 2 * ALIGNMENT, np.uint8)
    skip = (operand["address"] - room.ctypes.data) % ALIGNMENT
    memory = room[skip : skip + size]
    image: Array = np.frombuffer(blob, np.uint8)
    if blocks is None:
        memory[:] = image
    else:
        target = blocks.within(memory)
        target[...] = image.reshape(target.shape)
    return memory


def image_of(operand: Message, memory: Array) -> memoryview:
    """The image of a span, to go back."""
    blocks = blocks_of(operand)
    if blocks is None:
        return memory.data
    return np.ascontiguousarray(blocks.within(memory)).reshape(-1).data


def reserved(size: int) -> Array:
    """Zeros, of which a page takes memory once it is written. Raises `MemoryError`."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    try:
        return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)
    except OSError as error:
        raise MemoryError(f"{size} bytes of addresses: {error}") from None
