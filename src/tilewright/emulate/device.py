"""An emulated GPU: its memory, its HIP library, the kernels that it has loaded, and their launches.

A launch goes the way of a real one: `BoundLaunch` packs it, the launcher calls the library by its
addresses, and the library (`hip.EmulatedHip`) hands each kernel to `EmulatedGpu.execute`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.arch.model import Device
from tilewright.compile.kernel import Kernel
from tilewright.emulate.counts import Counted, Counts
from tilewright.emulate.hip import Dispatch, EmulatedHip
from tilewright.emulate.machine import Execution, Limits, Machine
from tilewright.emulate.memory import Memory
from tilewright.emulate.proof import prover
from tilewright.errors import BadArgument, KernelCrashed, LaunchFailed
from tilewright.listing.text import parse
from tilewright.ops.nouns import Launch, Temporary
from tilewright.pointer_array import Pointers
from tilewright.runtime.bound import BoundLaunch, Loaded
from tilewright.runtime.hip import HipDriver
from tilewright.runtime.temporaries import Layout, layout

Array = np.ndarray[Any, np.dtype[Any]]

_MACHINES_KEPT = 32
"""Kernels that stay parsed. A sweep loads thousands."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A kernel that a launch executed, and what it did.

    counted: what it did, counted; None if nobody asked.
    """

    kernel: Kernel
    execution: Execution
    counted: Counted | None = None

    @property
    def findings(self) -> tuple[str, ...]:
        """What was found, one text for each."""
        found = self.execution.findings
        return tuple(f"{self.kernel.called}: {finding}" for finding in found)


class EmulatedGpu:
    """A GPU of `device`'s kind, number 0 of its library. One launch at a time; safe to use from
    several threads.

    limits: when a kernel is given up.
    counting: whether launches count what they do, which takes about a third longer.
    """

    def __init__(self, device: Device, *, limits: Limits | None = None) -> None:
        self.device = device
        self.counting = False
        self.driver = HipDriver(hip := EmulatedHip(self))
        self._hip, self._limits = hip, limits or Limits()
        self._listings: dict[bytes, tuple[Kernel, str]] = {}
        self._machines: OrderedDict[bytes, Machine] = OrderedDict()
        self._memory = Memory()
        self._ran: list[Ran] = []
        self._lock = threading.RLock()

    def load(self, kernel: Kernel, binary: bytes, listing: str) -> Loaded:
        """Load a kernel.

        listing: the compiler's text of `binary`, which is proven first.

        Raises `BadFile` if the listing is another kernel's, and `LaunchFailed`.
        """
        prover().prove(listing, binary, kernel.arch)
        with self._lock:
            self._listings[binary] = kernel, listing
            try:
                function = self.driver.load(0, binary, kernel.entry, kernel.shared)
            except LaunchFailed:
                raise self._failure() from None
        return Loaded(kernel, function)

    def run(
        self,
        bound: BoundLaunch,
        launch: Launch,
        operands: Mapping[str, Array | Pointers],
        written: Collection[str],
        scalars: tuple[int | float | None, ...] = (),
    ) -> tuple[Ran, ...]:
        """Launch, wait, and write the operands named in `written` back in place.

        bound: `launch`, bound to this GPU's driver.
        operands: by name in the order in which they were bound: NumPy arrays of any strides, or
            `Pointers` to such. Only elements are copied, there and back; between them, kernels may
            touch nothing. Operands that share memory are separate copies to the kernels.
        scalars: as `BoundLaunch` takes them.

        Raises `KernelEndless` at a limit, `KernelCrashed` for a temporary that
        is not left zero as it must be, `UnknownInstruction`, `LaunchFailed`, and `BadArgument` for
        an output that is read-only or a scalar that is no value of its type. The operands are then
        unchanged.
        """
        _refuse_read_only(operands, written)
        with self._lock:
            memory = self._memory = Memory()
            ran = self._ran = []
            placed = _Placed(memory, operands, written)
            places = layout(launch.temporaries)
            kept = _kept_zero(memory, launch.temporaries, places)
            scratch = _scratch(memory, launch.temporaries, places)
            try:
                bound(0, placed.addresses, (kept, scratch), scalars)
            except LaunchFailed:
                raise self._failure() from None
            _check_kept(memory, launch.temporaries, places, kept)
            placed.write_back()
        return tuple(ran)

    def stand_in(
        self, kernel: Kernel, machine: Machine | None, limits: Limits | None = None
    ) -> None:
        """Run `machine` wherever a loaded kernel is launched: a mutant of it, or a machine that
        counts or watches. None brings the kernel back. limits: when launches are given up from now
        on; by default as before."""
        with self._lock:
            for image, (loaded, _) in self._listings.items():
                if loaded.key == kernel.key:
                    self._machines.pop(image, None)
                    if machine is not None:
                        self._machines[image] = machine
            self._limits = limits or self._limits

    # --- what the library asks for ------------------------------------------------------------

    def execute(self, dispatch: Dispatch) -> None:
        """Run a kernel to its end; see `hip.Executor`."""
        kernel, _ = self._listings[dispatch.image]
        x, y, z = dispatch.threads
        if (y, z) != (1, 1):
            raise LaunchFailed(f"{kernel.called} is launched with a block of {dispatch.threads}")
        machine = self._machine(dispatch.image)
        counts = Counts(machine.program.target) if self.counting else None
        with np.errstate(all="ignore"):  # a GPU does not warn of infinities and NaNs either
            execution = machine.launch(
                dispatch.grid,
                x,
                dispatch.arguments,
                dispatch.shared,
                self._memory,
                limits=self._limits,
                counts=counts,
            )
        counted = None
        if counts is not None:
            counted = counts.counted(machine.program.instructions, execution.executed)
        self._ran.append(Ran(kernel, execution, counted))

    def fill(self, address: int, byte: int, count: int) -> None:
        """Set bytes; see `hip.Executor`."""
        self._memory.fill(address, byte, count)

    def _machine(self, image: bytes) -> Machine:
        machine = self._machines.pop(image, None)
        if machine is None:
            _, listing = self._listings[image]
            machine = Machine(parse(listing))
        self._machines[image] = machine
        if len(self._machines) > _MACHINES_KEPT:
            self._machines.popitem(last=False)
        return machine

    def _failure(self) -> BaseException:
        """What the library's last error was about."""
        failure, self._hip.failure = self._hip.failure, None
        return failure or LaunchFailed("the emulated library refused it")


class _Placed:
    """Operands in the GPU's memory.

    addresses: of each, in their order.
    """

    def __init__(
        self, memory: Memory, operands: Mapping[str, Array | Pointers], written: Collection[str]
    ) -> None:
        self._memory = memory
        self._returned: list[tuple[int, Array]] = []
        addresses = []
        for name, x in operands.items():
            writable = name in written
            if isinstance(x, Pointers):
                each = [
                    self._place(array, f"{name}[{i}]", writable) for i, array in enumerate(x.arrays)
                ]
                there: Array = np.array(each or x.addresses, np.int64)
                addresses.append(memory.place(there, f"addresses of {name}", writable=False))
            else:
                addresses.append(self._place(x, name, writable))
        self.addresses = tuple(addresses)

    def _place(self, array: Array, name: str, writable: bool) -> int:
        skew = array.__array_interface__["data"][0]
        address = self._memory.place(array, f"operand {name}", writable=writable, skew=skew)
        if writable:
            self._returned.append((address, array))
        return address

    def write_back(self) -> None:
        for address, array in self._returned:
            self._memory.fetch(address, array)


def _refuse_read_only(operands: Mapping[str, Array | Pointers], written: Collection[str]) -> None:
    for name in written:
        x = operands[name]
        for each in x.arrays if isinstance(x, Pointers) else (x,):
            if not each.flags.writeable:
                raise BadArgument(f"operand {name} is an output but a read-only array")


def _kept_zero(memory: Memory, stated: Sequence[Temporary], places: Layout) -> int:
    """The address of the kept-zero buffer; 0 for none."""
    size = places.kept_zero_bytes
    if not size:
        return 0
    return memory.allocate(
        size,
        _called(places.kept_zero),
        contents=np.zeros(size, np.uint8),
        elements=_own(size, stated, places.kept_zero),
    )


def _scratch(memory: Memory, stated: Sequence[Temporary], places: Layout) -> int:
    """The address of the scratch buffer, in which nothing is written; 0 for none."""
    size = places.scratch_bytes
    if not size:
        return 0
    return memory.allocate(
        size, _called(places.scratch), elements=_own(size, stated, places.scratch)
    )


def _called(offsets: Mapping[str, int]) -> str:
    return f"temporary {', '.join(offsets)}"


def _own(size: int, stated: Sequence[Temporary], offsets: Mapping[str, int]) -> Array:
    """Which bytes of a buffer are a temporary's; gaps between two are nobody's."""
    own = np.zeros(size, np.bool_)
    for one in stated:
        if one.name in offsets:
            own[offsets[one.name] : offsets[one.name] + one.bytes] = True
    return own


def _check_kept(memory: Memory, stated: Sequence[Temporary], places: Layout, kept: int) -> None:
    """Raise `KernelCrashed` if a temporary that every launch must leave zero is not zero."""
    for one in stated:
        if one.initial != "kept_zero":
            continue
        if memory.read(kept + places.kept_zero[one.name], one.bytes).any():
            raise KernelCrashed(
                f"the launch leaves temporary '{one.name}' changed, which each launch must "
                "leave zero"
            )
