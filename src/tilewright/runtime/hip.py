"""The HIP side of the launcher: the module API of the HIP runtime, through ctypes.

Written from the documented interface (`hipModuleLoadData`, `hipModuleGetFunction`,
`hipModuleLaunchKernel`). No AMD GPU has run it. Launches on the emulated GPU go through it
(`tilewright.emulate.hip` stands for the library).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tilewright import garbage
from tilewright.compile.kernel import Kernel, TensorMap
from tilewright.errors import LaunchFailed
from tilewright.ops.nouns import Descriptor
from tilewright.runtime.driver import (
    INVALIDATED,
    Entry,
    address_of,
    capture_invalidated,
    check,
    library,
)

_CAPTURE_RELAXED = 2  # hipStreamCaptureModeRelaxed


class HipDriver:
    """See `tilewright.runtime.driver.Driver`."""

    backend = "hip"

    def __init__(self, lib: Any = None) -> None:
        """lib: an object with the functions of libamdhip64; by default this machine's library."""
        real = lib is None
        if real:
            lib = library(("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"), "HIP")
        self._lib = lib
        self._lib.hipGetErrorString.restype = ctypes.c_char_p
        self.launch_function = self._lib.hipModuleLaunchKernel
        self.fill_function = address_of(self._lib.hipMemsetD8Async)
        self.encode_function = self.exchange_function = 0
        check(self, self._lib.hipInit(0), "start")
        if real:
            self.exchange_function = address_of(self._lib.hipThreadExchangeStreamCaptureMode)
            garbage.first_in_threads(partial(self._exchange, _CAPTURE_RELAXED))

    def load(self, device: int, binary: bytes, entry: str, shared: int) -> ctypes.c_void_p:
        # Dynamic LDS up to the hardware's limit needs no permission on AMD, unlike on NVIDIA.
        lib, module, function = self._lib, ctypes.c_void_p(), ctypes.c_void_p()
        with self.current(device), self.capture_allowed():
            status = lib.hipModuleLoadData(ctypes.byref(module), binary)
            check(self, status, f"load the binary of {entry}")
            status = lib.hipModuleGetFunction(ctypes.byref(function), module, entry.encode())
            check(self, status, f"find {entry} in its binary")
        return function

    def entry(self, kernel: Kernel, function: ctypes.c_void_p) -> Entry:
        if kernel.num_ctas > 1 or kernel.pdl:
            wanted = f"clusters of {kernel.num_ctas} workgroups" if kernel.num_ctas > 1 else ""
            raise LaunchFailed(
                f"{kernel.name} is launched with {wanted or 'programmatic dependent launch'}, "
                "which AMD GPUs do not have"
            )
        if kernel.cooperative:
            # It takes the same arguments, except that it does not read the last one, `extra`.
            return Entry(address_of(self._lib.hipModuleLaunchCooperativeKernel))
        return Entry(address_of(self.launch_function))

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        before = ctypes.c_int()
        check(self, self._lib.hipGetDevice(ctypes.byref(before)), "name the current device")
        check(self, self._lib.hipSetDevice(device), f"use device {device}")
        try:
            yield
        finally:
            self._lib.hipSetDevice(before)

    def keep_current(self, device: int) -> None:
        check(self, self._lib.hipSetDevice(device), f"use device {device}")

    def capture(self, stream: int) -> int:
        status, number = ctypes.c_int(), ctypes.c_uint64()
        code = self._lib.hipStreamGetCaptureInfo(
            ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number)
        )
        check(self, code, "say whether a graph captures a stream")
        if status.value == INVALIDATED:
            raise capture_invalidated()
        return number.value if status.value else 0

    @contextmanager
    def capture_allowed(self) -> Iterator[None]:
        mode = self._exchange(_CAPTURE_RELAXED)
        try:
            yield
        finally:
            self._exchange(mode)

    def _exchange(self, mode: int) -> int:
        """Set what captures forbid this thread. Returns what they forbade it before."""
        before = ctypes.c_int(mode)
        self._lib.hipThreadExchangeStreamCaptureMode(ctypes.byref(before))
        return before.value

    def tensor_map(self, descriptor: Descriptor, layout: TensorMap, address: int) -> bytes:
        raise LaunchFailed("AMD GPUs have no tensor maps; their kernels take pointers and strides")

    def tiling(self, descriptor: Descriptor, layout: TensorMap) -> bytes:
        return b""

    def error(self, status: int) -> str:
        text = self._lib.hipGetErrorString(status)
        return f"{(text or b'unknown error').decode()} ({status})"
