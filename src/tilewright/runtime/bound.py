"""`BoundLaunch`: a plan's launch with everything packed but the addresses.

Kernel parameters live in one buffer for the life of the plan. A call writes the operands'
addresses (or their tensor maps, encoded once per address) and calls the driver: what a launch
costs the host is one packed write and one foreign call.
"""

from __future__ import annotations

import ctypes
import struct
import threading

from tilewright.build.kernel import Kernel, TensorMap
from tilewright.errors import LaunchFailed
from tilewright.ops.family import WORKSPACE, Descriptor, Launch, Pointer, Scalar
from tilewright.runtime.driver import Driver

_SCALARS = {"i32": "<i", "i64": "<q", "u32": "<I", "u64": "<Q", "fp32": "<f"}
_TENSOR_MAP_BYTES = 128
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT, hipErrorInvalidContext
_MAPS_KEPT = 256
"""Tensor maps remembered for each descriptor; caches of activations rotate through a few."""


class BoundLaunch:
    """Launches one kernel for one problem on one device.

    Call it with a stream (an integer handle) and the addresses of the operands in order, the
    workspace's last if the launch has one. Thread-safe. Raises `LaunchFailed`.
    """

    def __init__(
        self,
        driver: Driver,
        device: int,
        function: ctypes.c_void_p,
        kernel: Kernel,
        warp_size: int,
        launch: Launch,
    ) -> None:
        if kernel.global_scratch or kernel.profile_scratch:
            raise LaunchFailed(f"{kernel.name} wants scratch memory, which no plan provides")
        self._driver = driver
        self._device = device
        self._name = kernel.name
        self._lock = threading.Lock()
        self._current: tuple[int, ...] = ()
        self._descriptors: list[tuple[int, Descriptor, TensorMap, dict[int, bytes]]]
        self._pack(kernel, launch)
        block = kernel.num_warps * warp_size
        grid = [ctypes.c_uint(n) for n in launch.grid]
        shape = [*grid, *(ctypes.c_uint(n) for n in (block, 1, 1)), ctypes.c_uint(kernel.shared)]
        self._call = (driver.launch_function, function, *shape)

    def _pack(self, kernel: Kernel, launch: Launch) -> None:
        """Lay out the parameters: scalars and descriptors' sizes now, addresses at each call.

        Pointers stand together in the buffer whatever their place among the arguments, so that
        one packed write sets them all.
        """
        maps = iter(kernel.tensor_maps)
        places: list[int] = []  # of each kernel parameter, in order
        content: list[tuple[int, bytes]] = []
        end = 0
        pointer_operands: list[int] = []
        descriptors: list[tuple[int, Descriptor, TensorMap]] = []

        def place(size: int, align: int, data: bytes = b"") -> int:
            nonlocal end
            at = -(-end // align) * align
            end = at + size
            if data:
                content.append((at, data))
            return at

        pointer_count = sum(isinstance(a, Pointer) for a in launch.arguments)
        if not kernel.tensor_maps:
            pointer_count += sum(isinstance(a, Descriptor) for a in launch.arguments)
        self._pointers_at = place(8 * pointer_count, 8)

        def pointer(operand: int) -> None:
            places.append(self._pointers_at + 8 * len(pointer_operands))
            pointer_operands.append(operand)

        def scalar(kind: str, value: int) -> None:
            data = struct.pack(_SCALARS[kind], value)
            places.append(place(len(data), len(data), data))

        for argument in launch.arguments:
            if isinstance(argument, Pointer):
                pointer(argument.operand)
            elif isinstance(argument, Scalar):
                scalar(argument.type, argument.value)
            else:
                if kernel.tensor_maps:
                    at = place(_TENSOR_MAP_BYTES, 64)
                    places.append(at)
                    descriptors.append((at, argument, next(maps)))
                else:
                    pointer(argument.operand)
                for extent in argument.shape:
                    scalar("i32", extent)
                for stride in argument.strides:
                    scalar("i64", stride)
        for _ in range(2):  # global and profile scratch, which this kernel does not use
            scalar("u64", 0)

        memory = (ctypes.c_char * (end + 64))()
        base = ctypes.addressof(memory)
        shift = -base % 64  # tensor maps want 64-byte alignment
        self._buffer = memoryview(memory).cast("B")
        for at, data in content:
            self._buffer[shift + at : shift + at + len(data)] = data
        self._pointers_at += shift
        self._descriptors = [(shift + at, view, layout, {}) for at, view, layout in descriptors]
        self._pointers = struct.Struct(f"={len(pointer_operands)}Q")
        self._order = tuple(pointer_operands)
        self._arguments = (ctypes.c_void_p * len(places))(*(base + shift + at for at in places))

    def __call__(self, stream: int, addresses: tuple[int, ...], elsewhere: bool = False) -> None:
        """`elsewhere`: another device than this launch's is current in the calling thread."""
        call = self._call
        with self._lock:
            if addresses != self._current:
                self._place(addresses)
            status = (
                0
                if elsewhere
                else call[0](*call[1:], ctypes.c_void_p(stream), self._arguments, None)
            )
            if elsewhere or status == _NO_CONTEXT:  # a thread's very first use of the GPU
                with self._driver.current(self._device):
                    status = call[0](*call[1:], ctypes.c_void_p(stream), self._arguments, None)
        if status:
            raise LaunchFailed(f"launching {self._name}: {self._driver.error(status)}")

    def _place(self, addresses: tuple[int, ...]) -> None:
        """Write the operands' addresses into the parameters."""
        self._pointers.pack_into(
            self._buffer, self._pointers_at, *(addresses[operand] for operand in self._order)
        )
        for at, descriptor, layout, known in self._descriptors:
            address = addresses[descriptor.operand]
            encoded = known.get(address)
            if encoded is None:
                if len(known) >= _MAPS_KEPT:
                    known.clear()
                encoded = self._driver.tensor_map(descriptor, layout, address)
                known[address] = encoded
            self._buffer[at : at + _TENSOR_MAP_BYTES] = encoded
        self._current = addresses


assert WORKSPACE == -1, "the workspace's address is the last of a call's"
