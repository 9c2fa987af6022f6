"""What memory instructions have in flight, and the counters that waits are about.

An instruction that accesses memory adds an entry to a counter's queue. A wait with a number takes
entries out until so many are left. Until then the registers that the instruction loads are
*pending*: to read or to overwrite them is a finding.

Sources: the "Data dependency resolution" chapters of AMD's ISA manuals (CDNA2, CDNA3, RDNA3,
RDNA4), and LLVM's SIInsertWaitcnts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tilewright.emulate.findings import Findings
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.effects import Effects, names
from tilewright.listing.target import Target
from tilewright.listing.text import Instruction

Access = Literal["load", "store", "flush", "shared", "scalar", "async", "tensor"]
"""What kind of access: global loads (also atomics that return); global stores (also atomics that do
not); writing a cache back; LDS; scalar memory; gfx1250's loads and stores between global memory and
LDS."""

Counter = Literal["vm", "vs", "lgkm", "load", "store", "ds", "km", "async", "tensor"]

_CDNA: dict[Access, Counter] = {
    "load": "vm",
    "store": "vm",
    "flush": "vm",
    "shared": "lgkm",
    "scalar": "lgkm",
}
_RDNA3: dict[Access, Counter] = {**_CDNA, "store": "vs", "flush": "vs"}
_GFX12: dict[Access, Counter] = {
    "load": "load",
    "store": "store",
    "flush": "store",
    "shared": "ds",
    "scalar": "km",
    "async": "async",
    "tensor": "tensor",
}


MOST = 63
"""The largest value of the counters of vector memory, which have 6 bits on every generation here.
The compiler leaves out the wait for a load that has this many behind it."""
_VECTOR = frozenset({"vm", "vs", "load", "store"})


def counter(target: Target, access: Access) -> Counter:
    """The counter that an access adds to."""
    if target.gfx12:
        return _GFX12[access]
    return (_CDNA if target.cdna else _RDNA3)[access]


@dataclass(frozen=True, slots=True)
class Entry:
    """An access in flight.

    registers: that it loads, as bits of `effects`.
    writes: whether it writes LDS from registers.
    time: of `order.Order`, when it was issued; 0 if no other wave could see it. read: the same of a
        read of LDS; 0 for any other access.
    lands: what it loads into LDS, `lds.Shared`'s granules for each wave (waves, any), -1 for none.
    """

    access: Access
    registers: int = 0
    writes: bool = False
    time: int = 0
    lands: Array | None = None
    read: int = 0


class Counters:
    """The accesses that a group of waves has in flight.

    count: how many waves. pending: the registers that the accesses load.
    signalled: whether the waves have signalled a barrier that they have not waited at (gfx12).
    """

    __slots__ = ("count", "pending", "queues", "signalled")

    def __init__(self, count: int) -> None:
        self.count = count
        self.pending = 0
        self.signalled = False
        self.queues: dict[Counter, deque[Entry]] = {}

    def issue(self, to: Counter, entry: Entry) -> None:
        """Add an access in flight. At its largest value, a counter of vector memory lets none be
        issued, so an access with that many behind it has ended without a wait."""
        queue = self.queues.setdefault(to, deque())
        queue.append(entry)
        self.pending |= entry.registers
        if len(queue) > MOST and to in _VECTOR and queue[0].lands is None:
            self.wait(to, MOST)

    def wait(self, of: Counter, left: int) -> list[Entry]:
        """Wait until `left` accesses of a counter are in flight; those that have ended.

        Accesses of one kind end in order. Scalar loads end in any order: with one among them, only
        a wait for all of them says anything.
        """
        queue = self.queues.get(of)
        if not queue or len(queue) <= left:
            return []
        if left and any(entry.access == "scalar" for entry in queue):
            return []
        ended = [queue.popleft() for _ in range(len(queue) - left)]
        if self.pending:
            self.pending = 0
            for entry in self.entries():
                self.pending |= entry.registers
        return ended

    def entries(self) -> Iterable[Entry]:
        """All accesses in flight."""
        return (entry for queue in self.queues.values() for entry in queue)

    def oldest(self) -> int | None:
        """When the oldest access in flight that other waves could see was issued."""
        return min((entry.time for entry in self.entries() if entry.time), default=None)

    def oldest_read(self) -> int | None:
        """When the oldest read of LDS in flight was issued."""
        return min((entry.read for entry in self.entries() if entry.read), default=None)

    def exempt(self, to: Counter, access: Access) -> int:
        """Pending registers that a further load of this kind may overwrite without a wait: those
        that only accesses of the same kind load, which end in order. Two ``d16`` loads fill the
        halves of a register so."""
        if access == "scalar":
            return 0
        same = others = 0
        for name, queue in self.queues.items():
            for entry in queue:
                if name == to and entry.access == access:
                    same |= entry.registers
                else:
                    others |= entry.registers
        return same & ~others

    def taken(self, indices: Array) -> Counters:
        """Those of some of the waves."""
        made = Counters(len(indices))
        made.pending, made.signalled = self.pending, self.signalled
        for name, queue in self.queues.items():
            made.queues[name] = deque(
                entry if entry.lands is None else replace(entry, lands=entry.lands[indices])
                for entry in queue
            )
        return made

    def joined(self, others: Sequence[Counters]) -> Counters:
        """Those of these waves and of others behind them. The newest entries of each queue are
        aligned: a wait that leaves n in flight leaves each wave its own n newest."""
        groups = (self, *others)
        made = Counters(sum(group.count for group in groups))
        for name in dict.fromkeys(name for group in groups for name in group.queues):
            rows = [group.queues.get(name, deque()) for group in groups]
            made.queues[name] = deque(
                _together([row[-back] if len(row) >= back else None for row in rows], groups)
                for back in range(max(map(len, rows)), 0, -1)
            )
        for group in groups:
            made.pending |= group.pending
        made.signalled = all(group.signalled for group in groups)
        return made


def _together(entries: Sequence[Entry | None], groups: Sequence[Counters]) -> Entry:
    """The entries of several groups as one; None of a group that has fewer in flight."""
    present = [entry for entry in entries if entry is not None]
    registers = 0
    for entry in present:
        registers |= entry.registers
    scalar = any(entry.access == "scalar" for entry in present)
    loading = next((entry.access for entry in present if entry.registers), present[0].access)
    return Entry(
        "scalar" if scalar else loading,
        registers,
        any(entry.writes for entry in present),
        min((entry.time for entry in present if entry.time), default=0),
        _landings(entries, groups),
        min((entry.read for entry in present if entry.read), default=0),
    )


def _landings(entries: Sequence[Entry | None], groups: Sequence[Counters]) -> Array | None:
    lands = [None if entry is None else entry.lands for entry in entries]
    wide = max((each.shape[1] for each in lands if each is not None), default=0)
    if not wide:
        return None
    made = np.full((sum(group.count for group in groups), wide), -1, np.int64)
    at = 0
    for each, group in zip(lands, groups, strict=True):
        if each is not None:
            made[at : at + group.count, : each.shape[1]] = each
        at += group.count
    return made


def look(
    ins: Instruction, touched: Effects, loads: Loads | None, waves: Waves, findings: Findings
) -> None:
    """Report the registers that an instruction uses while they are pending. Call it before the
    instruction is executed, if it touches one of `Counters.pending`.

    loads: what the instruction loads itself, if it is a load.
    """
    counters: Counters = waves.counters
    used = touched.touches & counters.pending
    if loads is not None and used:
        used &= touched.reads | ~counters.exempt(loads.counter, loads.access)
    if used:
        findings.report("unwaited register", ins, waves, detail=names(used))


@dataclass(frozen=True, slots=True)
class Loads:
    """The counter that a load adds to, and its kind."""

    counter: Counter
    access: Access


def loads_of(ins: Instruction, target: Target) -> Loads | None:
    """What `look` must know of an instruction that loads registers; None of any other."""
    for access, begins in _LOADS.items():
        if ins.base.startswith(begins):
            return Loads(counter(target, access), access)
    return None


_LOADS: dict[Access, tuple[str, ...]] = {
    "load": ("buffer_load", "global_load", "scratch_load", "buffer_atomic", "global_atomic"),
    "shared": ("ds_read", "ds_load", "ds_bpermute", "ds_permute", "ds_swizzle"),
}
