"""Which accesses of a launch happen before which: time, barriers, releases and acquires.

Time is one counter for the whole launch. For each wave it is known up to which time its accesses
were complete when it last came to a barrier that its workgroup has passed, and, for waves of other
workgroups, when it last released them. An access is *after* another wave's if it is known so.

A release is an atomic on an address. It publishes what its wave knows to be complete: its own
accesses that waits have drained, those of its workgroup before the last barrier, and what it
acquired. An acquire is a load or a returning atomic of that address, once waited for. Between
workgroups the caches count too. Sources: LLVM's AMDGPU usage guide, "Memory Model", the tables of
code sequences: before a release at agent scope, gfx942, gfx950 and gfx12 write back their L2
(``buffer_wbl2 sc1``, ``global_wb``); after an acquire, all invalidate
(``buffer_wbinvl1_vol``, ``buffer_inv sc1``, ``buffer_gl0_inv``, ``global_inv``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.emulate.waits import Counters
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.target import Target

WRITES_BACK = frozenset({"cdna3", "cdna4", "gfx1250"})
"""Generations whose L2 must be written back before other workgroups see a store: a GPU has several
L2s there. On the others, stores go through to the L2 that all share."""

_LATE = np.iinfo(np.int32).max

Known = dict[int, Array]
"""For workgroups by number, up to which time the accesses of each of their waves are known to be
complete: int32 (2, waves of a workgroup), plain accesses and atomics."""


@dataclass(slots=True)
class _Acquired:
    """What one wave has read of releases.

    seen: not yet behind an invalidation: when it was read, and what. known: behind it.
    """

    seen: list[tuple[int, Known]] = field(default_factory=list)
    known: Known = field(default_factory=dict)

    def see(self, time: int, published: Known) -> None:
        """Read a release. To read the same one again, as waves do that wait, says nothing new."""
        if all(known is not published for _, known in self.seen):
            self.seen.append((time, published))


class Order:
    """The order of a launch's accesses.

    workgroups: of the launch. each: waves of a workgroup. now: the time.
    Waves have numbers in the launch here (`numbers`).
    """

    def __init__(self, workgroups: int, each: int, target: Target) -> None:
        count = workgroups * each
        self.each = each
        self.now = 1
        self._writes_back = target.generation in WRITES_BACK
        self._arrived = np.zeros(count, np.int32)
        self._completed = np.zeros(count, np.int32)
        self._written_back = np.zeros(count, np.int32)
        self.barrier: Array = np.zeros(count, np.int32)
        """When each wave last came to a barrier that its workgroup has passed."""
        self._read = np.zeros(count, np.int32)
        self.read: Array = np.zeros(count, np.int32)
        """Up to which time its reads of LDS had ended then. A read in flight may come after what
        another wave writes behind the barrier."""
        self.complete: Array = np.zeros(count, np.int32)
        """Up to which time its global accesses were complete then."""
        self.within: Array = self.barrier if target.cdna else self.complete
        """Up to which time its workgroup sees its global accesses. On CDNA, waves of a workgroup
        share an L1 that keeps their accesses in order, so a barrier alone orders them (LLVM's
        memory model, workgroup scope, without threadgroup split mode)."""
        self.left: Array = np.zeros(workgroups, np.int32)
        """When each workgroup last passed a barrier."""
        self.left_read: Array = np.zeros(workgroups, np.int32)
        """Up to which time all its reads of LDS had ended then."""
        self._acquired: dict[int, _Acquired] = {}
        self._released: dict[int, Known] = {}

    def numbers(self, waves: Waves) -> Array:
        """The numbers of waves in the launch, (waves,)."""
        return np.asarray(waves.workgroup * self.each + waves.wave)

    def tick(self) -> int:
        """The time of the next event, which is after all before it."""
        self.now += 1
        return self.now

    # ---------------------------------------------------------------------------------- barriers

    def arrive(self, waves: Waves) -> None:
        """Waves come to a barrier, or signal it."""
        numbers = self.numbers(waves)
        self._arrived[numbers] = self.tick()
        self._completed[numbers] = self._complete(waves.counters)
        oldest = waves.counters.oldest_read()
        self._read[numbers] = _LATE if oldest is None else oldest - 1

    def leave(self, waves: Waves) -> None:
        """Whole workgroups pass a barrier: each wave knows what the others did before it."""
        numbers = self.numbers(waves)
        self.barrier[numbers] = self._arrived[numbers]
        self.complete[numbers] = self._completed[numbers]
        self.read[numbers] = np.minimum(self._arrived[numbers], self._read[numbers])
        self.left[waves.workgroup] = self.left_read[waves.workgroup] = self.now
        np.minimum.at(self.left_read, waves.workgroup, self._read[numbers])
        if self._writes_back:
            for workgroup in np.unique(waves.workgroup).tolist():
                first = workgroup * self.each
                mine = self._written_back[first : first + self.each]
                mine[:] = mine.max()
        if self._acquired:
            for workgroup in np.unique(waves.workgroup).tolist():
                self._share(workgroup)

    def _share(self, workgroup: int) -> None:
        """All waves of a workgroup know what each of them acquired."""
        range_ = range(workgroup * self.each, (workgroup + 1) * self.each)
        found = [self._acquired[number] for number in range_ if number in self._acquired]
        if found:
            together = _Acquired()
            for one in found:
                for time, published in one.seen:
                    together.see(time, published)
                together.known = _joined(together.known, one.known)
            for number in range_:
                self._acquired[number] = _Acquired(list(together.seen), together.known)

    # ------------------------------------------------------------------- releases and acquires

    def release(self, number: int, workgroup: int, counters: Counters, address: int) -> None:
        """An atomic of a wave writes `address`."""
        first = workgroup * self.each
        known = np.stack([self.complete[first : first + self.each]] * 2)
        known[:, number - first] = self._complete(counters), self.now
        if self._writes_back:
            under_way = any(entry.access == "flush" for entry in counters.entries())
            known[0] = np.minimum(known[0], 0 if under_way else self._written_back[number])
        mine: Known = {workgroup: known}
        acquired = self._acquired.get(number)
        if acquired is not None:
            mine = _joined(mine, acquired.known)
        self._released[address] = _joined(self._released.get(address, {}), mine)

    def acquire(self, number: int, address: int) -> None:
        """A load or a returning atomic of a wave reads `address`."""
        published = self._released.get(address)
        if published:
            self._acquired.setdefault(number, _Acquired()).see(self.now, published)

    @property
    def released(self) -> Mapping[int, Known]:
        """What was released, by address."""
        return self._released

    def write_back(self, waves: Waves) -> None:
        """Waves write their L2 back: once it has ended, what they stored before, and what was
        complete of other waves, is visible to all workgroups."""
        self._written_back[self.numbers(waves)] = self.tick()

    def invalidate(self, waves: Waves) -> None:
        """Waves invalidate their caches: what they acquired and waited for is visible to them."""
        upto = self._complete(waves.counters)
        for number in self.numbers(waves).tolist():
            acquired = self._acquired.get(number)
            if acquired is not None:
                later = []
                for time, published in acquired.seen:
                    if time <= upto:
                        acquired.known = _joined(acquired.known, published)
                    else:
                        later.append((time, published))
                acquired.seen = later

    def known(
        self, number: int, other: int, *, atomics: bool = False, coherent: bool = False
    ) -> int:
        """Up to which time a wave knows the accesses, or the atomics, of a wave of another
        workgroup.

        coherent: it reads past the caches that an invalidation would clear.
        """
        acquired = self._acquired.get(number)
        if acquired is None:
            return 0
        workgroup, within = divmod(other, self.each)
        found = [acquired.known, *(published for _, published in acquired.seen if coherent)]
        row = int(atomics)
        return max(
            (int(each[workgroup][row, within]) for each in found if workgroup in each), default=0
        )

    def _complete(self, counters: Counters) -> int:
        """Up to which time the global accesses of a group of waves are complete."""
        oldest = counters.oldest()
        return self.now if oldest is None else oldest - 1


def _joined(one: Known, other: Known) -> Known:
    made = dict(one)
    for workgroup, times in other.items():
        mine = made.get(workgroup)
        made[workgroup] = times if mine is None else np.maximum(mine, times)
    return made
