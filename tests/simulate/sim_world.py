"""Partitions of one workgroup that run in turns, and what is in flight between them.

Each partition is a Python thread, of which one runs at a time. At every barrier, copy and product
another may go on, by chance; copies in flight end by chance too. A seed repeats a run.

A workgroup of a kernel with programmatic dependent launch may run while the kernel before is still
running. Each partition must wait for that before it accesses global memory, except to read arrays
that are said to be constant, and must have waited when it ends. The workgroup must let the next
kernel start, and request nothing afterwards.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sim_shared import Barrier, Barriers, Shared, View, fenced, poison, unchanged
from sim_values import Fault, Memory, Tensor


class _Over(BaseException):
    """Ends the other partitions after a fault."""


class _Sent(BaseException):
    """Ends a partition that has sent what it sends, and waits for other workgroups."""


class Partition:
    """One partition: a warp group, or the warp that loads."""

    def __init__(self, name: str, warps: int) -> None:
        self.name, self.warps = name, warps
        self.turn = threading.Semaphore(0)
        self.waits: Callable[[], bool] | None = None
        self.place = ""
        self.over = False
        self.waited = False
        self.met = False
        self.products: list[Product] = []
        self.stores: list[Store] = []
        self.copies: list[Copy] = []
        self.groups: list[list[Copy]] = []


class Product:
    """A wgmma in flight."""

    def __init__(self, result: Tensor, reads: list[tuple[Shared, Any]]) -> None:
        self.result, self.reads = result, reads

    def end(self) -> None:
        for tile, before in self.reads:
            unchanged(before, tile.data, "a wgmma in flight")


class Store:
    """A copy from shared to global memory in flight."""

    def __init__(self, view: View, at: Any, tile: Shared, add: bool) -> None:
        self.view, self.at, self.tile, self.add = view, at, tile, add
        self.before = tile.data.copy()
        self.over = False

    def end(self) -> None:
        if self.over:
            return
        self.over = True
        unchanged(self.before, self.tile.data, "a store in flight")
        box = self.before.reshape(self.view.block_shape)
        (self.view.add if self.add else self.view.write)(self.at, box)


def _fits(view: View, tile: Shared) -> None:
    """Raise `Fault` unless a tile has the shape of a box, apart from the box's leading ones."""
    box, shape = list(view.block_shape), list(tile.data.shape)
    extra = len(box) - len(shape)
    if extra < 0 or box[extra:] != shape or any(size != 1 for size in box[:extra]):
        raise Fault(f"a box of {box} and a tile of {shape} are copied to each other")


class Copy:
    """A copy of threads (cp.async) in flight, from global to shared memory."""

    def __init__(self, tile: Shared, values: Any) -> None:
        self.tile, self.values, self.over = tile, values, False
        poison(tile.data)
        tile.written[...] = False

    def end(self) -> None:
        if not self.over:
            self.over = True
            self.tile.data[...] = self.values
            self.tile.written[...] = True  # as threads' stores: products see it behind a fence


@dataclass(frozen=True)
class Message:
    """What a workgroup stores into the shared memory of another one of its cluster.

    rank: the other's. allocation, offset: where, in the order of allocations and in elements.
    bytes: how many these are on a GPU.
    barrier: which counts them, as the number of an allocation and an index.
    """

    rank: int
    allocation: int
    offset: int
    values: Any
    bytes: int
    barrier: tuple[int, int]


class World:
    """A workgroup that is executed.

    Workgroups of a cluster are executed twice, one after the other. In the first run each ends when
    it has sent its messages, which cannot depend on what it would receive. In the second each has
    its `inbox`, which arrives by chance.

    program: its place in the grid; programs: the grid. warps: of the first partition. dependent:
    whether the kernel before may still be running; if so, constant: names of the arrays that it
    does not write.
    """

    def __init__(
        self,
        program: tuple[int, ...],
        programs: tuple[int, ...],
        seed: int,
        warps: int = 4,
        dependent: bool = False,
        constant: frozenset[str] = frozenset(),
    ) -> None:
        self.dependent, self.constant, self.let_go = dependent, constant, False
        self.program, self.programs = program, programs
        self.random = random.Random(seed)
        self.loads: list[Callable[[], None]] = []
        self.partitions: list[Partition] = [Partition("start", warps)]
        self.now = self.partitions[0]
        self.shared: list[Shared] = []
        self.barriers: list[Barriers] = []
        self.ready = False
        self.sent: list[Message] = []
        self.inbox: list[Message] | None = None
        self.named: dict[str, tuple[int, int]] = {}
        self.fault: BaseException | None = None

    # --- what kernels call -------------------------------------------------------------------

    def allocate(self, tile: Shared) -> Shared:
        poison(tile.data)
        self.shared.append(tile)
        return tile

    def get_ready(self) -> None:
        self.ready = True
        self.pause()

    def meet_cluster(self) -> None:
        if not self.ready:
            raise Fault("a workgroup meets the others before it has said that it is ready")
        self.now.met = True
        if self.inbox is not None and not any(
            one.met for one in self.partitions if one is not self.now
        ):
            self.loads += [lambda m=message: self._receive(m) for message in self.inbox]
        self.pause()

    def send(self, tile: Shared, values: Any, barrier: Barrier, rank: int) -> None:
        """Store into the same tile of another workgroup."""
        if not self.now.met:
            raise Fault(f"{self.now.name} sends before it has met the other workgroups")
        allocation = next(i for i, a in enumerate(self.shared) if a.root[0] is tile.root[0])
        first, begin = (x.__array_interface__["data"][0] for x in (tile.data, tile.root[0]))
        at = next(
            (i, one.many.index(barrier))
            for i, one in enumerate(self.barriers)
            if barrier in one.many
        )
        offset = (first - begin) // tile.data.itemsize
        size = tile.numel * tile.dtype.primitive_bitwidth // 8
        self.sent.append(Message(rank, allocation, offset, values, size, at))
        self.pause()

    def _receive(self, message: Message) -> None:
        i, j = message.barrier
        flat = self.shared[message.allocation].data.reshape(-1)
        values = message.values.reshape(-1)
        flat[message.offset : message.offset + values.size] = values
        self.barriers[i].index(j).came(message.bytes)

    def hear(self, barrier: Barrier, phase: Any) -> None:
        if self.inbox is None:
            raise _Sent
        self.wait(barrier, phase, "what the others send")

    def fence(self) -> None:
        for tile in self.shared:
            tile.written[...] = False

    def wait_for_kernel_before(self) -> None:
        self.now.waited = True
        self.pause()

    def let_next_kernel_start(self) -> None:
        self.let_go = True
        self.pause()

    def access(self, memory: Memory, writes: bool) -> None:
        """Raise `Fault` if this partition may not access an array now."""
        if not self.dependent:
            return
        what = f"{'writes' if writes else 'reads'} {memory.name}"
        if not self.now.waited and (writes or memory.name not in self.constant):
            raise Fault(f"{self.now.name} {what} before it has waited for the kernel before")

    def load(self, view: View, at: Any, barrier: Barrier, tile: Shared) -> None:
        _fits(view, tile)
        self.access(view.memory, writes=False)
        if self.let_go:
            raise Fault(f"{self.now.name} loads after it has let the next kernel start")
        at = tuple(int(x) for x in at)
        size = view.block_type.nbytes
        poison(tile.data)
        tile.written[...] = False

        def end() -> None:
            tile.data[...] = view.read(at).reshape(tile.data.shape)
            barrier.came(size)

        self.loads.append(end)
        self.pause()

    def store(self, view: View, at: Any, tile: Shared, add: bool = False) -> None:
        fenced(tile, "a store")
        _fits(view, tile)
        self.access(view.memory, writes=True)
        self.now.stores.append(Store(view, tuple(int(x) for x in at), tile, add))
        self.pause()

    def wait_stores(self, most: int) -> None:
        """Wait until at most so many stores of this partition are in flight."""
        stores = self.now.stores
        while len(stores) > most:
            stores.pop(0).end()

    def copy(self, tile: Shared, values: Any) -> None:
        self.now.copies.append(Copy(tile, values))
        self.pause()

    def commit(self) -> None:
        """The copies since the last one are a group."""
        self.now.groups.append(self.now.copies)
        self.now.copies = []

    def wait_groups(self, most: int) -> None:
        """Wait until at most so many groups of this partition are in flight."""
        groups = self.now.groups
        while len(groups) > most:
            for copy in groups.pop(0):
                copy.end()
        self.pause()

    def arrive_after_copies(self, barrier: Barrier, *, counted: bool) -> None:
        """Every thread of the partition arrives when its copies have ended. counted: the barrier
        was initialised without them."""
        threads = 32 * self.now.warps
        copies = [copy for group in (*self.now.groups, self.now.copies) for copy in group]
        self.now.groups, self.now.copies = [], []
        if counted:
            barrier.missing += threads

        def end() -> None:
            for copy in copies:
                copy.end()
            barrier.arrive(threads)

        self.loads.append(end)
        self.pause()

    def wait_products(self, most: int) -> None:
        products = self.now.products
        while len(products) > most:
            products.pop(0).end()

    def in_flight(self, result: Tensor) -> bool:
        return any(product.result.token is result.token for product in self.now.products)

    def wait(self, barrier: Barrier, phase: Any, place: str) -> None:
        self.until(lambda: barrier.passed(phase), place)

    def meet(self, name: str, count: int, *, stays: bool) -> None:
        """A named barrier of `count` partitions' threads: `stays` waits, else only arrives."""
        here, passes = self.named.get(name, (0, 0))
        here += 1
        if here == count:
            here, passes = 0, passes + 1
        self.named[name] = here, passes
        if stays and here:
            self.until(lambda: self.named[name][1] > passes, f"bar.sync {name}")
        else:
            self.pause()

    def pause(self) -> None:
        """Let copies end and others go on, by chance."""
        while self.loads and self.random.random() < 0.3:
            self.loads.pop(self.random.randrange(len(self.loads)))()
        if self.random.random() < 0.5:
            self.until(None, "")

    def until(self, condition: Callable[[], bool] | None, place: str) -> None:
        me = self.now
        me.waits, me.place = condition, place
        self._hand_over()
        me.turn.acquire()
        if self.fault is not None and me is not self.partitions[0]:
            raise _Over
        if self.fault is not None:
            raise self.fault

    def specialise(self, parts: list[tuple[str, int, Callable[[], None]]]) -> None:
        """Run partitions (a name, warps, what to do) until all have ended; the first is the one
        that is running."""
        first = self.now
        threads = []
        for name, warps, body in parts[1:]:
            partition = Partition(name, warps)
            self.partitions.append(partition)
            threads.append(threading.Thread(target=self._run, args=(partition, body), daemon=True))
        for thread in threads:
            thread.start()
        try:
            with suppress(_Sent):
                parts[0][2]()
            others = self.partitions[1:]
            self.until(lambda: all(one.over for one in others), "the end of the others")
        except BaseException as fault:
            self.fault = self.fault or fault
            for one in self.partitions:
                one.turn.release()
            raise
        finally:
            self.now = first
            for thread in threads:
                thread.join(5)

    # --- turns -------------------------------------------------------------------------------

    def _run(self, partition: Partition, body: Callable[[], None]) -> None:
        partition.turn.acquire()
        if self.fault is not None:
            return
        try:
            with suppress(_Sent):
                body()
                self.end(partition)
        except _Over:
            return
        except BaseException as fault:
            self.fault = self.fault or fault
        partition.over = True
        if self.fault is not None:
            self.partitions[0].turn.release()
            return
        self._hand_over()

    def end(self, partition: Partition) -> None:
        """What must be over when a partition ends."""
        if partition.products:
            raise Fault(f"{partition.name} ends while a wgmma is in flight")
        if partition.stores:
            raise Fault(f"{partition.name} ends before its stores were waited for")
        if partition.copies or partition.groups:
            raise Fault(f"{partition.name} ends before its copies were waited for")
        if self.dependent and not partition.waited:
            raise Fault(f"{partition.name} ends before it has waited for the kernel before")
        if self.dependent and partition is self.partitions[0] and not self.let_go:
            raise Fault("a workgroup ends that has not let the next kernel start")

    def _hand_over(self) -> None:
        """Give the turn to a partition that can go on."""
        while True:
            ready = [
                one
                for one in self.partitions
                if not one.over and (one.waits is None or one.waits())
            ]
            if ready:
                self.now = self.random.choice(ready)
                self.now.waits = None
                self.now.turn.release()
                return
            if self.loads:
                self.loads.pop(self.random.randrange(len(self.loads)))()
                continue
            stuck = "; ".join(
                f"{one.name} waits for {one.place}" for one in self.partitions if not one.over
            )
            self.fault = self.fault or Fault(f"nobody can go on: {stuck}")
            self.partitions[0].turn.release()
            return
