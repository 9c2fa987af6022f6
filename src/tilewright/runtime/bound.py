"""`BoundLaunch`: a plan's launch with everything packed but the addresses and the stream.

Kernel parameters are laid out once. A call hands addresses and stream to the compiled launcher
(`launcher.c`), which copies the parameters, sets the addresses and calls the driver. Tensor maps
are encoded here, once for each address an operand takes, and kept there.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.compile.kernel import Kernel, TensorMap
from tilewright.errors import LaunchFailed
from tilewright.ops.nouns import MAIN, Descriptor, Launch, Pointer, Role, Scalar
from tilewright.runtime.driver import Driver
from tilewright.runtime.launcher import NEEDS_MAPS, OVERLAPS, launcher
from tilewright.triton_versions import descriptor_flags

_SCALARS = {"i1": "<b", "i32": "<i", "i64": "<q", "fp32": "<f"}
_TENSOR_MAP_BYTES = 128
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT, hipErrorInvalidContext


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel and its function, loaded on the device."""

    kernel: Kernel
    function: ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Bound:
    """An operand as the call passes it: its name and role, and how many bytes it spans."""

    name: str
    role: Role
    bytes: int


class BoundLaunch:
    """Launches one kernel for one problem on one device.

    sizes: bytes each operand spans, the output last. Call it with a stream (an integer handle)
    and the addresses of the operands in order, the workspace's last if the launch has one.
    Thread-safe. `native` is what the compiled launcher keeps of it.
    """

    def __init__(
        self,
        driver: Driver,
        device: int,
        parts: Mapping[str, Loaded],
        warp_size: int,
        launch: Launch,
        operands: Sequence[Bound],
        given: Sequence[str] = (),
        defaults: Mapping[str, int | float] | None = None,
    ) -> None:
        kernel, function = parts[MAIN].kernel, parts[MAIN].function
        sizes = [one.bytes for one in operands]
        self._names = [one.name for one in operands]
        if kernel.global_scratch or kernel.profile_scratch:
            raise LaunchFailed(f"{kernel.name} wants scratch memory, which no plan provides")
        self.driver = driver
        self.device = device
        self._name = kernel.name
        self.needs_workspace = bool(launch.temporaries)
        layout = _layout(kernel, launch, self._names)
        self._descriptors = layout.descriptors
        native = launcher()
        self._native_launch = native.launch
        self._write_map = native.write_map
        self._launches = native.launches
        self._keep_workspace = native.keep_workspace
        self.native = native.prepare(
            ctypes.cast(driver.launch_function, ctypes.c_void_p).value,
            function.value,
            device,
            launch.steps[0].grid,
            kernel.num_warps * warp_size,
            kernel.shared,
            layout.content(),
            tuple(layout.places),
            tuple(layout.pointers),
            tuple((at, self._names.index(view.operand)) for at, view, _ in layout.descriptors),
            tuple(sizes),
        )

    def __call__(
        self,
        stream: int,
        addresses: tuple[int, ...],
        workspaces: tuple[int, int] = (0, 0),
        scalars: tuple[int | float | None, ...] = (),
        elsewhere: bool = False,
        apart: bool = False,
    ) -> bool:
        """Queue the launch. False, and nothing done, if the output's span of bytes touches an
        operand's: whether elements really overlap is the caller's to find out, and to say with
        `apart` if they do not.

        `elsewhere`: another device than this launch's is current in the calling thread. Raises
        `LaunchFailed`.
        """
        if elsewhere:
            with self.driver.current(self.device):
                status = self._try(stream, addresses, apart)
        else:
            status = self._try(stream, addresses, apart)
            if status == _NO_CONTEXT:  # a thread's very first use of the GPU
                with self.driver.current(self.device):
                    status = self._try(stream, addresses, apart)
        if status == OVERLAPS:
            return False
        if status:
            raise LaunchFailed(f"launching {self._name}: {self.driver.error(status)}")
        return True

    def last_used(self) -> int:
        return 0

    def keep_workspace(self, stream: int, address: int, scratch: int = 0) -> None:
        """Have the compiled path use the workspace at `address` on `stream` from now on; 0: none,
        on any stream."""
        self._keep_workspace(self.native, stream, address)

    def launches(self) -> int:
        """How often it was handed to the driver, by whichever way."""
        count: int = self._launches(self.native)
        return count

    def _try(self, stream: int, addresses: tuple[int, ...], apart: bool) -> int:
        status: int = self._native_launch(self.native, stream, addresses, apart)
        while status == NEEDS_MAPS:  # again if another thread moved them meanwhile
            self._place_maps(addresses)
            status = self._native_launch(self.native, stream, addresses, apart)
        return status

    def _place_maps(self, addresses: tuple[int, ...]) -> None:
        for number, (_, view, layout) in enumerate(self._descriptors):
            address = addresses[self._names.index(view.operand)]
            encoded = self.driver.tensor_map(view, layout, address)
            self._write_map(self.native, number, address, encoded)


@dataclass(slots=True)
class _Layout:
    """Kernel parameters in one buffer: where each lies, and what is known of it now."""

    places: list[int] = field(default_factory=list)
    pointers: list[tuple[int, int]] = field(default_factory=list)
    descriptors: list[tuple[int, Descriptor, TensorMap]] = field(default_factory=list)
    _content: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes, align: int) -> int:
        """One more parameter; returns its offset."""
        self._content += bytes(-len(self._content) % align)
        at = len(self._content)
        self._content += data
        self.places.append(at)
        return at

    def pointer(self, operand: int) -> None:
        self.pointers.append((self.add(bytes(8), 8), operand))

    def scalar(self, kind: str, value: int | float) -> None:
        data = struct.pack(_SCALARS[kind], value)
        self.add(data, len(data))

    def content(self) -> bytes:
        return bytes(self._content)


def _layout(kernel: Kernel, launch: Launch, names: Sequence[str]) -> _Layout:
    """The kernel's parameters for this launch, as its compiler orders them: the arguments, with
    each descriptor followed by its shape (i32) and strides (i64), then two scratch pointers.

    A descriptor is a tensor map where the hardware has them. Elsewhere it is a pointer, its shape
    and strides (i64) and flags, none of which is set: nothing is padded with NaN or rounded.
    """
    layout = _Layout()
    maps = iter(kernel.tensor_maps)
    for argument in launch.steps[0].arguments:
        if isinstance(argument, Pointer):
            layout.pointer(names.index(argument.operand))
        elif isinstance(argument, Scalar):
            layout.scalar(argument.type, argument.value)
        elif isinstance(argument, Descriptor):
            if kernel.tensor_maps:
                at = layout.add(bytes(_TENSOR_MAP_BYTES), 64)
                layout.descriptors.append((at, argument, next(maps)))
            else:
                layout.pointer(names.index(argument.operand))
                for extent in (*argument.shape, *argument.strides):
                    layout.scalar("i64", extent)
                for _ in range(descriptor_flags(kernel.triton)):
                    layout.scalar("i1", 0)
            for extent in argument.shape:
                layout.scalar("i32", extent)
            for stride in argument.strides:
                layout.scalar("i64", stride)
    for _ in ("global", "profile"):
        layout.scalar("i64", 0)
    return layout
