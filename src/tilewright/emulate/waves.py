"""The state of waves that execute together."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.listing.operand import EXEC, MODE, SCALARS

Array = np.ndarray[Any, np.dtype[Any]]

UNWRITTEN = 0x7FC0BAD0
"""What registers hold that nothing has written: a NaN in fp32 and in bf16."""


class Waves:
    """Waves of a launch that are at the same instruction, in lockstep.

    A scalar branch on which they disagree splits them; they join again where they meet.

    vector: uint32 (registers, waves, lanes); accumulation registers lie behind the others
        (`operand.ACCUMULATION`).
    scalar: uint32 (`SCALARS`, waves), `VCC`, `M0` and `EXEC` included.
    scc: bool (waves,).
    active: bool (waves, lanes), the same as `EXEC`; full: whether all lanes are active. Change them
        with `activate`.
    workgroup, wave: int (waves,); the wave's number is within its workgroup.
    position: the index of the next instruction.
    known: a bit for each register whose value is known (`effects`): one that was written, in all of
        these waves and in some lane at least, with a value that comes from known ones.
    further: for each wave, the bits whose values are known in this wave and not in all; None if
        there are none. Waves that came by different ways differ so.
    origins: for bits whose values come from registers that nothing had written, the index of the
        instruction that read these, and their names (`unwritten`).
    spent: instructions that it executed. Groups that executed many make way for others, which they
        may be waiting for in a loop.
    counters: loads and stores in flight (`waits.Counters`).
    """

    __slots__ = (
        "active",
        "counters",
        "full",
        "further",
        "known",
        "origins",
        "position",
        "scalar",
        "scc",
        "spent",
        "vector",
        "wave",
        "workgroup",
    )

    def __init__(
        self,
        workgroup: Array,
        wave: Array,
        lanes: int,
        registers: int,
        counters: Any = None,
    ) -> None:
        count = len(workgroup)
        self.vector: Array = np.full((registers, count, lanes), UNWRITTEN, np.uint32)
        self.scalar: Array = np.full((SCALARS, count), UNWRITTEN, np.uint32)
        self.scc: Array = np.zeros(count, bool)
        self.active: Array = np.ones((count, lanes), bool)
        self.full = True
        self.workgroup = workgroup
        self.wave = wave
        self.position = 0
        self.known = 0
        self.further: list[int] | None = None
        self.origins: dict[int, tuple[int, str]] = {}
        self.spent = 0
        self.counters: Any = counters
        self.scalar[MODE] = 0
        self.scalar[EXEC : EXEC + 2] = 0
        self.scalar[EXEC : EXEC + lanes // 32] = 0xFFFFFFFF

    @property
    def count(self) -> int:
        """How many waves."""
        return len(self.workgroup)

    @property
    def lanes(self) -> int:
        """Lanes of a wave."""
        return int(self.vector.shape[2])

    def activate(self, active: Array) -> None:
        """Set the active lanes, bool (waves, lanes), and `EXEC` with them."""
        self.active = np.array(np.broadcast_to(active, self.active.shape))
        self.full = bool(self.active.all())
        words = np.packbits(self.active, axis=1, bitorder="little").view(np.uint32)
        self.scalar[EXEC : EXEC + words.shape[1]] = words.T

    def reread_active(self) -> None:
        """Set the active lanes from `EXEC`, after it was written as a scalar register."""
        words = np.ascontiguousarray(self.scalar[EXEC : EXEC + self.lanes // 32].T)
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        self.active = bits.view(bool)
        self.full = bool(self.active.all())

    def known_of_each(self) -> list[int]:
        """The bits whose values are known, for each wave."""
        if self.further is None:
            return [self.known] * self.count
        return [self.known | bits for bits in self.further]

    def know(self, further: list[int]) -> None:
        """Set `further`; what all waves know goes to `known`."""
        common = functools.reduce(operator.and_, further)
        self.known |= common
        self.further = [bits & ~common for bits in further]
        if not any(self.further):
            self.further = None

    def taken(self, indices: Array) -> Waves:
        """Some of the waves, by their indices, as a group of their own."""
        made = object.__new__(Waves)
        made.vector = self.vector[:, indices]
        made.scalar = self.scalar[:, indices]
        made.scc = self.scc[indices]
        made.active = self.active[indices]
        made.full = bool(made.active.all())
        made.workgroup, made.wave = self.workgroup[indices], self.wave[indices]
        made.position, made.known = self.position, self.known
        made.further = None
        if self.further is not None:
            made.know([self.further[index] for index in indices.tolist()])
        made.origins = dict(self.origins)
        made.spent = self.spent
        made.counters = None if self.counters is None else self.counters.taken(indices)
        return made

    def become(self, other: Waves) -> None:
        """Take over another group's waves and state."""
        for name in Waves.__slots__:
            setattr(self, name, getattr(other, name))

    @staticmethod
    def joined(groups: Sequence[Waves]) -> Waves:
        """Groups at the same instruction as one."""
        if len(groups) == 1:
            return groups[0]
        first = groups[0]
        made = object.__new__(Waves)
        made.vector = np.concatenate([each.vector for each in groups], 1)
        made.scalar = np.concatenate([each.scalar for each in groups], 1)
        made.scc = np.concatenate([each.scc for each in groups])
        made.active = np.concatenate([each.active for each in groups])
        made.full = all(each.full for each in groups)
        made.workgroup = np.concatenate([each.workgroup for each in groups])
        made.wave = np.concatenate([each.wave for each in groups])
        made.position = first.position
        made.spent = max(each.spent for each in groups)
        made.known, made.further = first.known, None
        made.origins = dict(first.origins)
        for each in groups[1:]:
            made.known &= each.known
            made.origins.update(each.origins)
        if any(each.known != made.known or each.further for each in groups):
            made.know([bits & ~made.known for each in groups for bits in each.known_of_each()])
        made.counters = first.counters
        if first.counters is not None:
            made.counters = first.counters.joined([each.counters for each in groups[1:]])
        return made
