"""Scratch: memory of each lane's own, where the compiler spills registers."""

from __future__ import annotations

import numpy as np

from tilewright.emulate.findings import Findings
from tilewright.emulate.memory import Addresses, Bools, Words
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.text import Instruction

_POISON = np.uint32(0xFFC0DEAD)
"""What unwritten words read as. They are kept xor this, so that untouched pages stay zero."""


SWIZZLE = 1 << 31
"""The bit of a buffer resource's second word that says that lanes are swizzled (gfx9)."""

RESOURCE = (0, SWIZZLE, 0xFFFFFFFF, 0)
"""The buffer resource of a wave's scratch on gfx90a."""


class Scratch:
    """Scratch of the waves of workgroups `first` to `first + count - 1`, `size` bytes a lane.

    each: waves of a workgroup.
    """

    def __init__(
        self, first: int, count: int, each: int, lanes: int, size: int, findings: Findings
    ) -> None:
        self._first, self._each, self._size = first, each, size
        self._last = max(-(-size // 4), 1) - 1
        self._findings = findings
        self._words: Array = np.zeros((count * each, self._last + 1, lanes), np.uint32)

    def load(self, ins: Instruction, waves: Waves, at: Addresses, size: int, mask: Bools) -> Words:
        """The `size` bytes at offsets (waves, lanes) where `mask` is set, as (words, waves, lanes).
        Loads narrower than a word are zero-extended."""
        at = self._inside(ins, waves, at, size, mask)[0]
        words = self._words[self._places(waves, at, -(-size // 4))] ^ _POISON
        values: Words = np.moveaxis(words, -1, 0)
        if size < 4:
            values = values >> (at % 4 * 8).astype(np.uint32) & np.uint32((1 << 8 * size) - 1)
        return values

    def store(
        self, ins: Instruction, waves: Waves, at: Addresses, values: Words, size: int, mask: Bools
    ) -> None:
        """Write the first `size` bytes of (words, waves, lanes) at offsets where `mask` is set."""
        at, mask = self._inside(ins, waves, at, size, mask)
        places = self._places(waves, at, -(-size // 4))
        old, new = self._words[places], np.moveaxis(values, 0, -1) ^ _POISON
        if size < 4:
            shift = (at % 4 * 8).astype(np.uint32)[..., None]
            kept = ~(np.uint32((1 << 8 * size) - 1) << shift)
            new = (old & kept) | ((np.moveaxis(values, 0, -1) << shift ^ _POISON) & ~kept)
        self._words[places] = np.where(mask[..., None], new, old)

    def _inside(
        self, ins: Instruction, waves: Waves, at: Addresses, size: int, mask: Bools
    ) -> tuple[Addresses, Bools]:
        """Offsets, 0 where there is nothing to do, and where there is."""
        odd = (at < 0) | (at + size > self._size) | (at % min(size, 4) != 0)
        if (outside := mask & odd).any():
            detail = f"{size} bytes at {int(at[outside][0])} of {self._size} bytes of scratch"
            self._findings.report("undeclared resources", ins, waves, outside, detail)
        return np.where(mask & ~odd, at, 0), mask & ~odd

    def _places(self, waves: Waves, at: Addresses, count: int) -> tuple[Array, Array, Array]:
        """Indices of the words, (waves, lanes, count)."""
        row = (waves.workgroup - self._first) * self._each + waves.wave
        word = (at // 4)[..., None] + np.arange(count)
        return row[:, None, None], np.minimum(word, self._last), np.arange(waves.lanes)[:, None]
