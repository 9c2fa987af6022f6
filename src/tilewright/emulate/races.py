"""Races in global memory: accesses of two waves to a byte, one of them writing, with nothing that
orders them.

Who last wrote and read each byte is noted for memory that kernels may write; what they can only
read costs nothing. Atomics race with plain accesses and not with one another. A byte that waves of
several workgroups have read has no reader that is known: a write after those reads is not judged.
"""

from __future__ import annotations

import numpy as np

from tilewright.emulate.findings import Findings
from tilewright.emulate.memory import Addresses, Bools, Memory
from tilewright.emulate.order import Order
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.text import Instruction

_MANY = np.iinfo(np.int32).min
"""The reader of bytes that several workgroups have read."""


class Races:
    """Notes of one launch.

    For each byte: the wave's number + 1 of the last to write it, to update it by an atomic
    (negative for a compare-and-swap), and to read it (0 for none, -(workgroup + 1) for several
    waves of a workgroup), and when.
    """

    def __init__(self, memory: Memory, order: Order, findings: Findings) -> None:
        self.order = order
        self._findings = findings
        spans = [(each.address, each.end) for each in memory.allocations if each.writable]
        self._low = min((low for low, _ in spans), default=0)
        self._high = max((high for _, high in spans), default=0)
        size = self._high - self._low
        # Pages of zeros cost nothing until they are written.
        self._writer: Array = np.zeros(size, np.int32)
        self._written: Array = np.zeros(size, np.int32)
        self._updater: Array = np.zeros(size, np.int32)
        self._updated: Array = np.zeros(size, np.int32)
        self._reader: Array = np.zeros(size, np.int32)
        self._read: Array = np.zeros(size, np.int32)

    def watches(self, addresses: Addresses, mask: Bools) -> Bools | None:
        """Where in `mask` addresses lie in memory that kernels may write; None for nowhere."""
        there: Bools = mask & (addresses >= self._low) & (addresses < self._high)
        return there if there.any() else None

    def load(
        self,
        ins: Instruction,
        waves: Waves,
        addresses: Addresses,
        size: int,
        mask: Bools,
        *,
        coherent: bool = False,
    ) -> int:
        """Note a load, and look for races; its time, 0 if no other wave could see it.

        coherent: it reads past the caches that are not coherent between workgroups.
        """
        there = self.watches(addresses, mask)
        if there is None:
            return 0
        now = self.order.tick()
        at, lanes = self._bytes(addresses, size, there)
        mine, group = self._waves(waves, lanes)
        what = "reads what another wave writes"
        self._judge(
            ins, waves, self._writer[at], self._written[at], mine, lanes, there, what, coherent
        )
        if not coherent:  # which is how a wave waits for an atomic
            what = "reads what an atomic of another wave updates"
            by = np.maximum(self._updater[at], 0)
            self._judge(ins, waves, by, self._updated[at], mine, lanes, there, what, coherent, True)
        if coherent:
            self._acquire(waves, addresses, there)
        if coherent:  # one lane that reads so is an atomic load, and no plain reader
            plain = (there.sum(1) != 1)[lanes // waves.lanes]
            at, mine, group = at[plain], mine[plain], group[plain]
        self._note_readers(at, mine, group)
        self._read[at] = now
        return now

    def _note_readers(self, at: Array, mine: Array, group: Array) -> None:
        reader = self._reader[at]
        others = (reader != 0) & (reader != mine)
        by = mine
        if others.any():
            by = np.where(others, self._both(reader, group), mine)
        self._reader[at] = by
        clash = self._reader[at] != by  # several waves of this group read it
        if clash.any():
            at, group = at[clash], group[clash]
            both = self._both(self._reader[at], group)
            self._reader[at] = both
            self._reader[at[both == _MANY]] = _MANY

    def _both(self, reader: Array, group: Array) -> Array:
        """The reader of bytes that `reader` and a wave of workgroup `group` have read."""
        before = np.where(reader > 0, (reader - 1) // self.order.each, -reader - 1)
        return np.where(before == group, -(group + 1), _MANY).astype(np.int32)

    def store(
        self, ins: Instruction, waves: Waves, addresses: Addresses, size: int, mask: Bools
    ) -> int:
        """Note a store, and look for races; its time, 0 if no other wave could see it."""
        there = self.watches(addresses, mask)
        if there is None:
            return 0
        now = self.order.tick()
        at, lanes = self._bytes(addresses, size, there)
        mine, _ = self._waves(waves, lanes)
        self._writes(ins, waves, at, mine, lanes, there)
        what = "writes what an atomic of another wave updates"
        by = np.abs(self._updater[at])
        self._judge(ins, waves, by, self._updated[at], mine, lanes, there, what, False, True)
        self._writer[at] = mine
        self._written[at] = now
        clash = self._writer[at] != mine
        if clash.any():
            self._report(ins, waves, lanes[clash], there, "writes what another wave writes")
        return now

    def atomic(
        self,
        ins: Instruction,
        waves: Waves,
        addresses: Addresses,
        size: int,
        mask: Bools,
        *,
        orders: bool,
        returns: bool,
        compares: bool = False,
    ) -> int:
        """Note an atomic, and look for races with plain accesses; its time, 0 if no other wave
        could see it.

        orders: it may release and, if it returns, acquire. One that adds up results does not.
        compares: it is a compare-and-swap. Compilers make additions of them that begin with a plain
            load, of which any value will do; so plain loads do not race with them here.
        """
        there = self.watches(addresses, mask)
        if there is None:
            return 0
        now = self.order.tick()
        at, lanes = self._bytes(addresses, size, there)
        mine, _ = self._waves(waves, lanes)
        self._writes(ins, waves, at, mine, lanes, there)
        self._updater[at] = -mine if compares else mine
        self._updated[at] = now
        if orders:
            numbers = self.order.numbers(waves)
            for row, lane in self._single(there):  # in the order in which they are executed
                number, address = int(numbers[row]), int(addresses[row, lane])
                if returns:
                    self.order.acquire(number, address)
                self.order.release(number, int(waves.workgroup[row]), waves.counters, address)
        return now

    # ------------------------------------------------------------------------------------ within

    def _acquire(self, waves: Waves, addresses: Addresses, there: Bools) -> None:
        if self.order.released:
            for row, lane in self._single(there):
                self.order.acquire(int(self.order.numbers(waves)[row]), int(addresses[row, lane]))

    def _single(self, there: Bools) -> list[tuple[int, int]]:
        """(wave, lane) of waves of which one lane takes part, as where waves order themselves."""
        rows = np.flatnonzero(there.sum(1) == 1)
        return [(row, int(there[row].argmax())) for row in rows.tolist()]

    def _bytes(self, addresses: Addresses, size: int, there: Bools) -> tuple[Array, Array]:
        """Offsets of all bytes, and for each the index of its lane (in the flattened mask)."""
        at = ((addresses[there] - self._low)[:, None] + np.arange(size)).reshape(-1)
        return at, np.repeat(np.flatnonzero(there), size)

    def _waves(self, waves: Waves, lanes: Array) -> tuple[Array, Array]:
        """For each byte, its wave's number + 1, and its workgroup."""
        wave = lanes // waves.lanes
        numbers = (self.order.numbers(waves) + 1).astype(np.int32)
        return numbers[wave], waves.workgroup[wave].astype(np.int32)

    def _writes(
        self, ins: Instruction, waves: Waves, at: Array, mine: Array, lanes: Array, there: Bools
    ) -> None:
        what = "writes what another wave writes"
        self._judge(ins, waves, self._writer[at], self._written[at], mine, lanes, there, what)
        what = "writes what another wave reads"
        self._judge(ins, waves, self._reader[at], self._read[at], mine, lanes, there, what)

    def _judge(
        self,
        ins: Instruction,
        waves: Waves,
        by: Array,
        when: Array,
        mine: Array,
        lanes: Array,
        there: Bools,
        what: str,
        coherent: bool = False,
        atomics: bool = False,
    ) -> None:
        """Report the bytes whose last access `by` others is not known to be before this one."""
        foreign = (by != 0) & (by != mine) & (by != _MANY)
        if not foreign.any():
            return
        by, when, mine, lanes = by[foreign], when[foreign], mine[foreign], lanes[foreign]
        order = self.order
        group = np.where(by > 0, (by - 1) // order.each, -by - 1)
        inside = group == (mine - 1) // order.each
        known = np.where(by > 0, order.within[np.where(by > 0, by - 1, 0)], order.left[group])
        late = when > known
        if not inside.all():
            pairs = np.stack([mine[~inside], by[~inside]], -1)
            unique, back = np.unique(pairs, axis=0, return_inverse=True)
            upto = np.array(
                [self._known(one, other, coherent, atomics) for one, other in unique.tolist()]
            )
            late[~inside] = when[~inside] > upto[back.reshape(-1)]
        if late.any():
            self._report(ins, waves, lanes[late], there, what)

    def _known(self, mine: int, by: int, coherent: bool, atomics: bool) -> int:
        """Up to which time the wave `mine` knows the accesses of `by`, of another workgroup."""
        first = (-by - 1) * self.order.each
        waves = [by - 1] if by > 0 else range(first, first + self.order.each)
        return max(
            self.order.known(mine - 1, wave, coherent=coherent, atomics=atomics) for wave in waves
        )

    def _report(
        self, ins: Instruction, waves: Waves, lanes: Array, there: Bools, what: str
    ) -> None:
        which = np.zeros(there.size, bool)
        which[lanes] = True
        self._findings.report("global memory race", ins, waves, which.reshape(there.shape), what)
