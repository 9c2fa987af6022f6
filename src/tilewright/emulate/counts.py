"""What a launch does, counted: instructions by kind, bytes by level, clocks of the units.

These are counts, and not times. Clocks are those that an instruction holds its unit for, summed
over all waves: how much of this overlaps, and what waits for what, they do not say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tilewright.emulate import banks
from tilewright.emulate.cycles import issue_cycles
from tilewright.emulate.kinds import KINDS, Kind, kind_of
from tilewright.listing.target import Target
from tilewright.listing.text import Instruction

Addresses = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SEGMENT, LINE = 64, 128
"""Bytes of a request to memory, and of a line of L2 (of L1 too on CDNA)."""

_KEPT = 1 << 20
"""Ranges of bytes that are kept before they are merged."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Accesses of global memory in one direction. An atomic counts as written.

    accesses: of a wave, one for each memory instruction that it executes with an active lane.
    requested: bytes, summed over lanes. distinct: bytes, each counted once. lines: of 128 bytes
        that have one of these.
    segments, segment_lines: pieces of 64 and of 128 bytes that each access touches, summed over
        accesses. 64 lanes that ask for 16 bytes each need at least 16 and 8.
    """

    accesses: int = 0
    requested: int = 0
    distinct: int = 0
    lines: int = 0
    segments: int = 0
    segment_lines: int = 0

    @property
    def used(self) -> float:
        """Bytes requested for each byte of the 64-byte pieces touched; over 1 where lanes ask for
        the same bytes."""
        return self.requested / (SEGMENT * self.segments) if self.segments else 1.0


@dataclass(frozen=True, slots=True)
class Shared:
    """Accesses of shared memory (LDS).

    read, written: bytes, summed over lanes.
    clocks: of the banks. conflicts: how many of them were conflicts.
    """

    read: int = 0
    written: int = 0
    clocks: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """What a launch did, summed over its waves.

    instructions: executions by kind, each of one wave. mnemonics: the same by mnemonic.
    matrix_clocks, vector_clocks: that they hold the matrix units and the vector units of SIMDs
        for.
    read, written: global memory. scalar_read: what scalar memory instructions read of it, such as
        the kernel's arguments.
    """

    instructions: Mapping[Kind, int]
    mnemonics: Mapping[str, int]
    matrix_clocks: int
    vector_clocks: int
    read: Traffic
    written: Traffic
    scalar_read: Traffic
    shared: Shared


@dataclass(slots=True)
class _Direction:
    """Traffic so far."""

    accesses: int = 0
    requested: int = 0
    segments: int = 0
    segment_lines: int = 0
    touched: list[tuple[Addresses, Addresses]] = field(default_factory=list)
    pending: int = 0

    def add(self, addresses: Addresses, mask: Mask, size: int) -> None:
        waves, lanes = np.nonzero(mask)
        if not len(waves):
            return
        first = addresses[waves, lanes]
        self.accesses += int(mask.any(1).sum())
        self.requested += size * len(first)
        self.segments += _pieces(waves, first, size, SEGMENT)
        self.segment_lines += _pieces(waves, first, size, LINE)
        starts = np.unique(first)
        self.touched.append((starts, starts + size))
        self.pending += len(starts)
        if self.pending > _KEPT:
            self.merge()

    def merge(self) -> tuple[Addresses, Addresses]:
        none = np.zeros(0, np.int64)
        starts, ends = (np.concatenate([none, *each]) for each in zip(*self.touched, strict=True))
        merged = _merged(starts, ends)
        self.touched, self.pending = [merged], 0
        return merged

    @property
    def traffic(self) -> Traffic:
        if not self.touched:
            return Traffic()
        starts, ends = self.merge()
        first, behind = _merged(starts // LINE, (ends - 1) // LINE + 1)
        return Traffic(
            self.accesses,
            self.requested,
            int((ends - starts).sum()),
            int((behind - first).sum()),
            self.segments,
            self.segment_lines,
        )


class Counts:
    """What a launch's memory instructions report.

    Each call is for one instruction of the waves at it. addresses: int (waves, lanes), of the first
    byte that each lane accesses; in LDS from the beginning of the workgroup's. mask: bool (waves,
    lanes), the lanes that access memory: active, and not dropped by a bounds check. size: bytes
    a lane. An instruction with two addresses reports each by itself.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._read, self._written, self._scalar = _Direction(), _Direction(), _Direction()
        self._shared = Counter[str]()

    def global_access(
        self, ins: Instruction, addresses: Addresses, mask: Mask, size: int, write: bool
    ) -> None:
        """Count an access of global memory."""
        addresses, mask = np.broadcast_arrays(addresses, mask)
        direction = self._written if write else self._read
        if kind_of(ins.base) == "scalar memory":
            direction = self._scalar
        direction.add(addresses, mask, size)

    def lds_access(
        self, ins: Instruction, addresses: Addresses, mask: Mask, size: int, write: bool
    ) -> None:
        """Count an access of LDS."""
        addresses, mask = np.broadcast_arrays(addresses, mask)
        target = self.target
        phases = banks.phases(target.generation, mask.shape[1], size, write)
        taken, least = banks.clocks(phases, addresses.astype(np.int64), mask, size)
        self._shared["written" if write else "read"] += size * int(mask.sum())
        self._shared["clocks"] += int(taken.sum())
        self._shared["conflicts"] += int((taken - least).sum())

    def counted(self, instructions: Sequence[Instruction], executed: Iterable[int]) -> Counted:
        """The sum. executed: how many waves executed each of the program's instructions."""
        by_kind = dict.fromkeys(KINDS, 0)
        mnemonics = Counter[str]()
        clocks = Counter[str]()
        for ins, times in zip(instructions, executed, strict=True):
            if not times:
                continue
            kind = kind_of(ins.base)
            by_kind[kind] += int(times)
            mnemonics[ins.base] += int(times)
            unit = "matrix" if kind == "matrix" else "vector"
            clocks[unit] += int(times) * issue_cycles(ins, self.target)
        return Counted(
            by_kind,
            dict(sorted(mnemonics.items())),
            clocks["matrix"],
            clocks["vector"],
            self._read.traffic,
            self._written.traffic,
            self._scalar.traffic,
            Shared(**self._shared),
        )


def _pieces(waves: npt.NDArray[np.intp], first: Addresses, size: int, piece: int) -> int:
    """How many different pieces of memory each wave touches, summed over waves. No access is wider
    than a piece, so it touches one or two."""
    ends = np.concatenate([first // piece, (first + size - 1) // piece])
    ends -= ends.min()
    span = int(ends.max()) + 1
    return len(np.unique(np.tile(waves, 2) * span + ends))


def _merged(starts: Addresses, ends: Addresses) -> tuple[Addresses, Addresses]:
    """Ranges as the fewest that cover the same, in order."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    new = np.concatenate([[True], starts[1:] > ends[:-1]])
    last = np.concatenate([np.flatnonzero(new)[1:] - 1, [len(ends) - 1]])
    return starts[new], ends[last]
