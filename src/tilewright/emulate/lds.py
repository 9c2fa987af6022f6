"""Shared memory (LDS) of the workgroups that execute together, and who touched it last.

What is noted of an access is noted for granules of 1, 2 or 4 bytes, the narrowest access of the
kernel. Two accesses of different waves to a granule, one of them writing, need a barrier between
them; see `order`.
"""

from __future__ import annotations

import re

import numpy as np

from tilewright.emulate.findings import Findings, Kind
from tilewright.emulate.memory import Addresses, Bools, Bytes, Words, gather, scatter
from tilewright.emulate.order import Order
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.text import Instruction, Program

UNWRITTEN = 0xFF
"""What every byte holds that nothing has written: NaN in every float type."""

_NARROW = {
    1: re.compile(r"ds_.*(_b8|_u8|_i8)(_d16|$)|.*(byte|_[ui]8).*"),
    2: re.compile(r"ds_.*(_b16|_u16|_i16|_f16|_bf16)(_d16|_rtn|$)|.*(short|_[ui]16).*"),
}
_TO_LDS = re.compile(r"(buffer|global)_load_")


def granule(program: Program) -> int:
    """The narrowest access to LDS of a kernel, in bytes, but at most 4."""
    narrow = 4
    for ins in program.instructions:
        if ins.base.startswith("ds_") or (_TO_LDS.match(ins.base) and "lds" in set(ins.flags)):
            for size, pattern in _NARROW.items():
                if pattern.fullmatch(ins.base):
                    narrow = min(narrow, size)
    return narrow


_ROUNDING = 2.0**-16


def _other(one: Array, two: Array) -> Array:
    """Where words differ by more than the rounding of fp32 sums. Lanes that hold copies of one sum
    add its products in different orders, where the compiler makes a product and a sum one
    instruction; each copy is right, and it does not matter which one stays."""
    with np.errstate(invalid="ignore"):
        a, b = (np.ascontiguousarray(x).view(np.float32).astype(np.float64) for x in (one, two))
        near = np.abs(a - b) <= _ROUNDING * np.maximum(np.abs(a), np.abs(b))
    return np.asarray((one != two) & ~near)


class Shared:
    """Shared memory of workgroups `first` to `first + count - 1`, `size` bytes each.

    Checks are made if `findings` are given. For them, each granule has its last writer, as the
    wave's number + 1 or 0 for none, whether that one wrote by an atomic, its last reader likewise,
    or -(workgroup + 1) for several of a workgroup, and when that was.
    """

    def __init__(
        self,
        first: int,
        count: int,
        size: int,
        *,
        order: Order,
        granule: int = 1,
        findings: Findings | None = None,
    ) -> None:
        self.size = size
        self.order = order
        self._first = first
        self._stride = -(-size // 16) * 16
        self._bytes: Bytes = np.full(max(count * self._stride, 16), UNWRITTEN, np.uint8)
        self._findings = findings
        self._granule = granule
        self._in_flight = 0
        if findings is not None:
            granules = len(self._bytes) // granule
            self._writer: Array = np.zeros(granules, np.int32)
            self._written: Array = np.zeros(granules, np.int32)
            self._reader: Array = np.zeros(granules, np.int32)
            self._read: Array = np.zeros(granules, np.int32)
            self._flying: Array = np.zeros(granules, np.int16)
            self._added: Array = np.zeros(granules, np.bool_)

    # -------------------------------------------------------------------------------- accesses

    def load(
        self, ins: Instruction, waves: Waves, addresses: Addresses, size: int, mask: Bools
    ) -> Words:
        """The `size` bytes at byte addresses (waves, lanes) where `mask` is set, as (words, waves,
        lanes); zero elsewhere and outside."""
        at, mask = self._inside(ins, waves, addresses, size, mask)
        if self._findings is not None:
            self._check_load(ins, waves, at, size, mask)
        values = gather(self._bytes, at, size)
        return values if mask.all() else np.where(mask, values, np.uint32(0))

    def store(
        self,
        ins: Instruction,
        waves: Waves,
        addresses: Addresses,
        values: Words,
        size: int,
        mask: Bools,
        *,
        flying: bool = False,
    ) -> Array | None:
        """Write the first `size` bytes of (words, waves, lanes) values.

        flying: the bytes come from global memory and land with a wait; returns what `land` needs.
        """
        at, mask = self._inside(ins, waves, addresses, size, mask)
        chosen = at[mask]
        written = np.stack([value[mask] for value in values], -1)
        if self._findings is None:
            scatter(self._bytes, chosen, written, size)
            return None
        granules = self._granules(at, size)
        self._check_store(ins, waves, at, granules, values, size, mask)
        scatter(self._bytes, chosen, written, size)
        if not flying:
            back = np.moveaxis(gather(self._bytes, chosen, size), 0, -1)
            if size < 4:
                written = written & np.uint32((1 << 8 * size) - 1)
            if (back != written).any() and (other := _other(back, written)).any():
                lost = np.zeros_like(mask)
                lost[mask] = other.any(-1)
                detail = "lanes or waves write different values to one place"
                self._report("shared memory race", ins, waves, lost, detail)
            return None
        np.add.at(self._flying, granules[mask].reshape(-1), 1)
        self._in_flight += 1
        return np.where(mask[..., None], granules, -1).reshape(waves.count, -1)

    def add(
        self, ins: Instruction, waves: Waves, addresses: Addresses, values: Array, mask: Bools
    ) -> None:
        """Add `values` (waves, lanes) in 32 bits to what lies at byte addresses, one lane after
        another. Waves may add to one place in any order."""
        at, mask = self._inside(ins, waves, addresses, 4, mask)
        odd = mask & (at % 4 != 0)
        if odd.any():
            self._report("outside shared memory", ins, waves, odd, "no multiple of 4 bytes")
            mask = mask & ~odd
        if self._findings is not None:
            self._check_add(ins, waves, at, mask)
        np.add.at(self._bytes.view(np.uint32), at[mask] // 4, values[mask])

    def land(self, waves: Waves, lands: Array) -> None:
        """Bytes that `store` said to be flying are there. lands: (waves, any), -1 for none."""
        if self._findings is None:
            return
        there = lands[lands >= 0]
        np.subtract.at(self._flying, there, 1)
        self._in_flight = int(self._flying.any())
        self._written[there] = self.order.tick()

    # ---------------------------------------------------------------------------------- checks

    def _inside(
        self, ins: Instruction, waves: Waves, addresses: Addresses, size: int, mask: Bools
    ) -> tuple[Addresses, Bools]:
        """Offsets of the workgroups' bytes, 0 where there is nothing to do, and where there is."""
        outside = mask & ((addresses < 0) | (addresses + size > self.size))
        if outside.any():
            if self._findings is not None:
                worst = int(addresses[outside].max())
                self._report(
                    "outside shared memory",
                    ins,
                    waves,
                    outside,
                    f"{size} bytes at {worst} of {self.size}",
                )
            mask = mask & ~outside
        at = addresses + ((waves.workgroup - self._first) * self._stride)[:, None]
        return at if mask.all() else np.where(mask, at, 0), mask

    def _granules(self, at: Addresses, size: int) -> Array:
        """(…, granules): those that accesses touch."""
        each = self._granule
        first = at // each
        if each > 1 and (at % each).any():
            last = (at + size - 1) // each
            found = first[..., None] + np.arange(size // each + 1)
            return np.asarray(np.minimum(found, last[..., None]))
        return np.asarray(first[..., None] + np.arange(-(-size // each)))

    def _check_load(
        self, ins: Instruction, waves: Waves, at: Addresses, size: int, mask: Bools
    ) -> None:
        granules = self._granules(at, size)
        me = self._numbers(waves)
        writer = self._writer[granules]
        there = mask[..., None]
        foreign = there & (writer != me)
        if foreign.any():
            unwritten = there & (writer == 0)
            if unwritten.any():
                first = int(at[unwritten.any(-1)][0]) % self._stride
                detail = f"{size} bytes at {first}"
                self._report("unwritten shared memory", ins, waves, unwritten, detail)
            late = self._written[granules] > self.order.barrier[writer - 1]
            clash = foreign & ~unwritten & late
            self._race(ins, waves, clash, "reads what another wave writes")
        if self._in_flight:
            flying = there & (self._flying[granules] > 0)
            if flying.any():
                detail = "a load into it from global memory is in flight"
                self._report("unwaited shared memory", ins, waves, flying, detail)
        self._note_readers(waves, granules, me, mask)

    def _note_readers(self, waves: Waves, granules: Array, me: Array, mask: Bools) -> None:
        touched, mine = granules, np.broadcast_to(me, granules.shape)
        several = np.broadcast_to(-(waves.workgroup + 1)[:, None, None], granules.shape)
        if not mask.all():
            touched, mine, several = touched[mask], mine[mask], several[mask]
        reader = self._reader[touched]
        others = (reader != mine) & (reader != 0)
        by = mine
        if others.any():
            others &= ~self._passed(reader, self._read[touched])
            by = np.where(others, several, mine)
        self._reader[touched] = by
        together = self._reader[touched] != by  # several waves of this group read it
        if together.any():
            self._reader[touched[together]] = several[together]
        self._read[touched] = self.order.tick()

    def _check_store(
        self,
        ins: Instruction,
        waves: Waves,
        at: Addresses,
        granules: Array,
        values: Words,
        size: int,
        mask: Bools,
    ) -> None:
        """Look for races before a store. Waves may write one value to one place, as they do where a
        tile is smaller than the workgroup and each wave holds it."""
        me = self._numbers(waves)
        there = mask[..., None]
        writer, reader = self._writer[granules], self._reader[granules]
        foreign = there & (writer != 0) & (writer != me)
        if foreign.any():
            clash = foreign & (self._written[granules] > self.order.barrier[writer - 1])
            if clash.any():
                mine = values & np.uint32((1 << 8 * min(size, 4)) - 1)
                differs = (gather(self._bytes, at, size) != mine).any(0)
                clash &= differs[..., None]
                self._race(ins, waves, clash, "writes what another wave writes")
        foreign = there & (reader != 0) & (reader != me)
        if foreign.any():
            clash = foreign & ~self._passed(reader, self._read[granules])
            self._race(ins, waves, clash, "writes what another wave reads")
        touched = granules[mask]
        mine = np.broadcast_to(me, granules.shape)[mask]
        self._writer[touched] = mine
        self._written[touched] = self.order.tick()

        self._added[touched] = False

    def _check_add(self, ins: Instruction, waves: Waves, at: Addresses, mask: Bools) -> None:
        """Look for races before an atomic, of which two are none. Only the last of several waves
        that added to a place is remembered."""
        granules, me = self._granules(at, 4), self._numbers(waves)
        there = mask[..., None]
        writer, reader = self._writer[granules], self._reader[granules]
        unwritten = there & (writer == 0)
        if unwritten.any():
            self._report("unwritten shared memory", ins, waves, unwritten, "4 bytes are added to")
        foreign = there & (writer != 0) & (writer != me) & ~self._added[granules]
        clash = foreign & (self._written[granules] > self.order.barrier[writer - 1])
        self._race(ins, waves, clash, "adds to what another wave writes")
        foreign = there & (reader != 0) & (reader != me)
        clash = foreign & ~self._passed(reader, self._read[granules])
        self._race(ins, waves, clash, "adds to what another wave reads")
        touched = granules[mask]
        self._writer[touched] = np.broadcast_to(me, granules.shape)[mask]
        self._written[touched] = self.order.tick()
        self._added[touched] = True

    def _numbers(self, waves: Waves) -> Array:
        """What `_writer` holds for these waves, (waves, 1, 1)."""
        return (self.order.numbers(waves) + 1).astype(np.int32)[:, None, None]

    def _passed(self, reader: Array, read: Array) -> Array:
        """Whether readers have passed a barrier since their reads ended."""
        one = self.order.read[np.where(reader > 0, reader - 1, 0)]
        several = self.order.left_read[np.where(reader < 0, -reader - 1, 0)]
        return np.asarray(read <= np.where(reader > 0, one, several))

    def _race(self, ins: Instruction, waves: Waves, clash: Array, what: str) -> None:
        if clash.any():
            self._report("shared memory race", ins, waves, clash, what)

    def _report(
        self, kind: Kind, ins: Instruction, waves: Waves, which: Array, detail: str
    ) -> None:
        if self._findings is not None:
            self._findings.report(kind, ins, waves, which, detail)
