"""Scratch: memory of each lane's own, where the compiler spills registers."""

from __future__ import annotations

import numpy as np

from tilewright.emulate.findings import Findings
from tilewright.emulate.memory import Words
from tilewright.emulate.text import Instruction
from tilewright.emulate.waves import Array, Waves

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
        self._findings = findings
        self._words: Array = np.zeros((count * each, -(-size // 4), lanes), np.uint32)

    def load(self, ins: Instruction, waves: Waves, at: int, size: int) -> Words:
        """The `size` bytes at byte `at` of every lane, as (words, waves, lanes). Loads narrower
        than a word are zero-extended."""
        if not self._inside(ins, waves, at, size):
            return np.zeros((-(-size // 4), *waves.active.shape), np.uint32)
        words = self._words[self._rows(waves), at // 4 : -(-(at + size) // 4)] ^ _POISON
        values: Words = np.moveaxis(words, 1, 0)
        if size < 4:
            values = values >> np.uint32(at % 4 * 8) & np.uint32((1 << 8 * size) - 1)
        return values

    def store(self, ins: Instruction, waves: Waves, at: int, values: Words, size: int) -> None:
        """Write the first `size` bytes of (words, waves, lanes) at byte `at` of active lanes."""
        if not self._inside(ins, waves, at, size):
            return
        rows = self._rows(waves)
        for i in range(-(-size // 4)):
            old = self._words[rows, at // 4 + i]
            new = values[i] ^ _POISON
            if size < 4:
                shift = np.uint32(at % 4 * 8)
                mask = np.uint32(((1 << 8 * size) - 1) << int(shift))
                new = (old & ~mask) | (((values[i] << shift) ^ _POISON) & mask)
            self._words[rows, at // 4 + i] = np.where(waves.active, new, old)

    def _inside(self, ins: Instruction, waves: Waves, at: int, size: int) -> bool:
        aligned = at % 4 == 0 if size >= 4 else at % size == 0
        if at < 0 or at + size > self._size or not aligned:
            detail = f"{size} bytes at {at} of {self._size} bytes of scratch"
            self._findings.report("undeclared resources", ins, waves, detail=detail)
            return False
        return True

    def _rows(self, waves: Waves) -> Array:
        return np.asarray((waves.workgroup - self._first) * self._each + waves.wave)
