"""Proofs that a fault put into a kernel can make no difference, from watched runs of the kernel and
of its mutant on the same data.

A proof speaks of these runs, and of the waves and the data that they have. What it cannot show is
not proven.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.emulate.counts import Addresses, Counts, Mask
from tilewright.emulate.machine import Execution, Machine
from tilewright.emulate.mutants import Mutant
from tilewright.emulate.waits import Counters, Entry
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.effects import effects
from tilewright.listing.operand import Operand
from tilewright.listing.text import Instruction, Program, instruction

_FLOAT = re.compile(r"_b?f(16|32|64)")
_BARRIER = re.compile(r"s_barrier(_wait)?")
_ORDERS = re.compile(
    r"s_barrier|(buffer|global|flat)_(atomic|inv|wb|gl\d)|s_dcache|s_sendmsg|ds_gws"
)
"""Instructions by which waves order what they do: what is in flight there can matter to others."""


@dataclass(frozen=True, slots=True)
class Accesses:
    """Memory accesses of a launch, one row for each lane of each.

    wave: number in the launch; workgroup. shared: of LDS, else of global memory.
    epoch: how many barriers its wave had passed. address, size: in bytes. write: or an atomic.
    counter: whether it is an atomic on integers, by which waves order themselves.
    """

    wave: Array
    workgroup: Array
    shared: Array
    epoch: Array
    address: Array
    size: Array
    write: Array
    counter: Array

    def where(self, which: Array) -> Accesses:
        """The rows that are chosen."""
        return Accesses(*(getattr(self, name)[which] for name in Accesses.__slots__))

    def touched(self) -> tuple[Array, Array]:
        """The address of each byte, and its row."""
        row = np.repeat(np.arange(len(self.size)), self.size)
        first = np.cumsum(self.size) - self.size
        return self.address[row] + np.arange(len(row)) - first[row], row


class _Log(Counts):
    """Writes down what waves access; the waves are those that were seen last."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.target)
        self._program = program
        self._waves: Waves | None = None
        self._rows: list[tuple[Array, ...]] = []
        self.passed: dict[tuple[int, int], list[int]] = {}
        """For each (workgroup, wave), the barriers that it has passed, by index."""

    def see(self, index: int, waves: Waves) -> None:
        self._waves = waves
        if _BARRIER.fullmatch(self._program.instructions[index].base):
            for key in zip(waves.workgroup.tolist(), waves.wave.tolist(), strict=True):
                self.passed.setdefault(key, []).append(index)

    def global_access(
        self, ins: Instruction, addresses: Addresses, mask: Mask, size: int, write: bool
    ) -> None:
        counter = "_atomic_" in ins.base and not _FLOAT.search(ins.base)
        self._note(addresses, mask, size, write, shared=False, counter=counter)

    def lds_access(
        self, ins: Instruction, addresses: Addresses, mask: Mask, size: int, write: bool
    ) -> None:
        self._note(addresses, mask, size, write, shared=True)

    def _note(
        self,
        addresses: Addresses,
        mask: Mask,
        size: int,
        write: bool,
        *,
        shared: bool,
        counter: bool = False,
    ) -> None:
        waves = self._waves
        assert waves is not None
        shape = (waves.count, max(addresses.shape[-1], mask.shape[-1]))
        rows, lanes = np.nonzero(np.broadcast_to(mask, shape))
        keys = zip(waves.workgroup.tolist(), waves.wave.tolist(), strict=True)
        epochs = np.array([len(self.passed.get(key, ())) for key in keys])
        some = np.ones(len(rows), np.int64)
        self._rows.append(
            (
                waves.wave[rows],
                waves.workgroup[rows],
                some * shared > 0,
                epochs[rows],
                np.broadcast_to(addresses, shape)[rows, lanes].astype(np.int64),
                some * size,
                some * write > 0,
                some * counter > 0,
            )
        )

    def accesses(self) -> Accesses:
        """All of them, with waves numbered through the launch."""
        columns = [np.concatenate(column) for column in zip(*self._rows, strict=True)]
        wave, workgroup = columns[0], columns[1]
        columns[0] = workgroup * (int(wave.max(initial=0)) + 1) + wave
        return Accesses(*columns)


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that touches registers in flight, or that orders accesses.

    index: of the instruction. first: number and workgroup of the first of its waves. count: of its
    waves. used: the registers in flight that it touches, as bits.
    left: at one that orders accesses, how many are in flight that others could know of, by counter.
    """

    index: int
    first: tuple[int, int]
    count: int
    used: int
    left: tuple[tuple[str, int], ...]


class Watched(Machine):
    """A machine that notes what could tell a mutant from its kernel, over its last launch.

    steps: see `Step`. memory: all that kernels may write, afterwards.
    ended: whether `mutant`'s wait ever ended an access that it leaves in flight when broken.
    same_value: whether the register that `mutant` reads always held what the kernel's does, in all
    lanes. log: whether accesses are written down, for `orders_nothing`.
    """

    def __init__(
        self, program: Program, mutant: Mutant | None = None, *, log: bool = False
    ) -> None:
        super().__init__(program, watch=self._see)
        self._all = [effects(ins, program.target) for ins in program.instructions]
        self._orders = [bool(_ORDERS.match(ins.base)) for ins in program.instructions]
        self._mutant, self._logs = mutant, log
        self._replaced = None if mutant is None else replaced(mutant)
        self._log: _Log | None = None
        self._accesses: Accesses | None = None
        self.steps: list[Step] = []
        self.ended = False
        self.same_value = self._replaced is not None
        self.memory: list[bytes] = []

    def launch(self, *given: Any, **named: Any) -> Execution:
        self.steps, self.ended = [], False
        self._log = _Log(self.program) if self._logs else None
        memory = given[4]
        execution = super().launch(*given, **{**named, "counts": self._log})
        self.memory = [
            memory.read(each.address, each.size).tobytes()
            for each in memory.allocations
            if each.writable
        ]
        return execution

    def orders_nothing(self, index: int) -> bool:
        """Whether a barrier orders no accesses (see `orders_nothing`); needs `log`."""
        assert self._log is not None
        if self._accesses is None:
            self._accesses = self._log.accesses()
        return orders_nothing(self._accesses, self._log.passed, index)

    def _see(self, index: int, waves: Waves) -> None:
        used = self._all[index].touches & waves.counters.pending
        if used or self._orders[index]:
            first = int(waves.wave[0]), int(waves.workgroup[0])
            left: tuple[tuple[str, int], ...] = ()
            if self._orders[index]:
                barrier = self.program.instructions[index].base.startswith("s_barrier")
                left = _visible(waves.counters, shared=barrier)
            self.steps.append(Step(index, first, waves.count, used, left))
        if self._log is not None:
            self._log.see(index, waves)
        mutant = self._mutant
        if mutant is not None and index == mutant.index:
            before = in_flight(waves.counters)
            self.ended |= stated(mutant.before, before) != stated(mutant.after, before)
            if self._replaced is not None:
                one, other = (_values(waves, place) for place in self._replaced)
                self.same_value &= bool((one == other).all())


def _values(waves: Waves, place: Operand) -> Array:
    file = waves.vector if place.file == "v" else waves.scalar
    return file[place.first : place.first + place.count]


def replaced(mutant: Mutant) -> tuple[Operand, Operand] | None:
    """The one operand that a mutant replaces, and what by; None unless both are registers."""
    pair = [instruction(text) for text in (mutant.before, mutant.after)]
    if pair[0].name != pair[1].name or len(pair[0].operands) != len(pair[1].operands):
        return None
    both = zip(pair[0].operands, pair[1].operands, strict=True)
    other = [(one, two) for one, two in both if one.text != two.text]
    if len(other) != 1 or dict(pair[0].modifiers) != dict(pair[1].modifiers):
        return None
    one, two = other[0]
    alike = one.file == two.file and one.file in ("v", "s") and one.count == two.count
    return (one, two) if alike else None


def _visible(counters: Counters, *, shared: bool) -> tuple[tuple[str, int], ...]:
    """How many accesses are in flight that other waves could know of, by counter.

    shared: whether those of LDS count: barriers order them, caches and atomics do not.
    """
    return tuple(
        (name, count)
        for name, queue in sorted(counters.queues.items())
        if (count := sum(_known_to_others(one, shared) for one in queue))
    )


def _known_to_others(entry: Entry, shared: bool) -> bool:
    """Whether it is more than a load of what nobody writes."""
    if entry.access == "shared":
        return shared
    return entry.access != "scalar" and (
        entry.access != "load" or entry.time != 0 or entry.lands is not None
    )


# --------------------------------------------------------------------------------------- proofs


def waited_for_later(kernel: Watched, mutant: Watched, logged: Watched) -> bool:
    """Whether all that a weakened wait leaves in flight is waited for again before anybody could
    tell: instructions touch the same registers in flight as in the kernel, and where accesses are
    ordered as many are in flight. Where a load overwrites what an older one of its kind loads, the
    two end in order. A barrier that orders nothing counts for nothing.

    Both have run on the same data, and nothing was found. logged: the kernel with its accesses.
    """
    if len(mutant.steps) < len(kernel.steps):
        return False
    before: dict[tuple[Any, ...], list[Step]] = {}
    for step in kernel.steps:
        before.setdefault((step.index, step.first, step.count), []).append(step)
    idle: dict[int, bool] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for step in mutant.steps:
        if not mutant._orders[step.index]:
            continue  # used in spite of it: a load in order, or it would have been found
        key = (step.index, step.first, step.count)
        number = seen[key] = seen.get(key, -1) + 1
        same = before.get(key, [])
        if number >= len(same):
            return False
        if same[number].left != step.left:
            if not _BARRIER_ANY.match(mutant.program.instructions[step.index].base):
                return False
            if step.index not in idle:
                idle[step.index] = logged.orders_nothing(step.index)
            if not idle[step.index]:
                return False
    return True


_BARRIER_ANY = re.compile(r"s_barrier")


def orders_nothing(
    accesses: Accesses, passed: dict[tuple[int, int], list[int]], index: int
) -> bool:
    """Whether no two waves depend on the barrier `index`, for what they do in the intervals that it
    separates, taken as one:

    - of a workgroup, no wave accesses bytes there that another one writes there; and
    - no wave accesses what other workgroups share with it before (behind) the barrier, where
      another wave of its workgroup writes (reads) behind (before) it a counter, which may be a
      release (an acquire). Counters are the bytes that atomics on integers have touched.

    passed: for each (workgroup, wave), the barriers that it passed, in order.
    """
    merged = _merged_epochs(accesses, passed, index)
    near, merged = accesses.where(merged >= 0), merged[merged >= 0]
    at, row = near.touched()
    place = at - at.min(initial=0)
    for column in (near.shared[row], near.workgroup[row], merged[row]):
        place = place * (int(column.max(initial=0)) + 1) + column
    if _several(place, near.wave[row], near.write[row]).size:
        return False
    others = accesses.where(~accesses.shared)
    every, of = others.touched()
    counters = np.unique(every[others.counter[of]])
    if not len(counters):
        return True
    common = _several(every, others.workgroup[of], others.write[of])
    outside = ~near.shared[row]
    counts = outside & np.isin(at, counters)
    shared = outside & np.isin(at, common)
    keys = (near.workgroup, merged, near.epoch, near.wave, near.write, near.counter)

    def chosen(which: Array) -> Iterable[tuple[int, ...]]:
        rows = np.unique(row[which])
        return set(zip(*(key[rows].tolist() for key in keys), strict=True))

    users = chosen(shared)
    for group, interval, epoch, wave, write, counter in chosen(counts):
        for other in users:
            if other[:2] == (group, interval) and other[3] != wave:
                releases = write and epoch > other[2]
                acquires = (counter or not write) and epoch < other[2]
                if releases or acquires:
                    return False
    return True


def _merged_epochs(
    accesses: Accesses, passed: dict[tuple[int, int], list[int]], index: int
) -> Array:
    """For each access, the number of its interval if barrier `index` is left out; -1 for intervals
    that do not change."""
    made = np.full(len(accesses.wave), -1)
    for workgroup in np.unique(accesses.workgroup).tolist():
        barriers = next((each for (group, _), each in passed.items() if group == workgroup), [])
        number, changed = [0], set()
        for each in barriers:
            number.append(number[-1] + (each != index))
            if each == index:
                changed.add(number[-1])
        new = np.array([one if one in changed else -1 for one in number])
        mine = accesses.workgroup == workgroup
        made[mine] = new[np.minimum(accesses.epoch[mine], len(new) - 1)]
    return made


def _several(place: Array, by: Array, write: Array) -> Array:
    """The places that several access, one of them writing."""
    places, group = np.unique(place, return_inverse=True)
    group = group.reshape(-1)
    low, high = np.full(len(places), np.iinfo(np.int64).max), np.full(len(places), -1)
    np.minimum.at(low, group, by)
    np.maximum.at(high, group, by)
    written = np.zeros(len(places), bool)
    written[group[write]] = True
    return np.asarray(places[written & (low != high)])


# ---------------------------------------------------------------------------------------- waits


def in_flight(counters: Counters) -> dict[str, int]:
    """How many accesses each counter has in flight."""
    return {name: len(queue) for name, queue in counters.queues.items()}


_NAMES = {"vmcnt": "vm", "lgkmcnt": "lgkm", "vscnt": "vs"}


def stated(text: str, before: dict[str, int]) -> dict[str, int]:
    """How many accesses are in flight behind a wait, of those `before` it."""
    left: dict[str, int] = {}
    if text.startswith("s_waitcnt_vscnt"):
        left["vs"] = int(text.split(",")[-1], 0)
    elif text.startswith("s_waitcnt"):
        left = {_NAMES.get(m[1], m[1]): int(m[2]) for m in re.finditer(r"(\w+)\((\d+)\)", text)}
    elif found := re.match(r"s_wait_(\w+)\s+(\w+)", text):
        words, value = found[1].split("_"), int(found[2], 0)
        values: Sequence[int] = [value] if len(words) == 1 else [value >> 8 & 0x3F, value & 0x3F]
        left = {word.removesuffix("cnt"): n for word, n in zip(words, values, strict=True)}
    return {name: min(count, left.get(name, count)) for name, count in before.items()}
