"""The CUDA side of the launcher: the driver API, by ctypes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

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

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_PORTABLE_CLUSTER = 8
"""The largest cluster that every GPU with clusters takes."""
_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_CLUSTER_POLICY = 5  # CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
_SPREAD = 1  # CU_CLUSTER_SCHEDULING_POLICY_SPREAD
_DEPENDENT = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_DEFAULT_SHARED = 48 * 1024
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_LOG_BYTES = 25_600
"""The most that a driver keeps of its log of errors."""
_PROMOTE_L2_128B = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
_TENSOR_MAP_BYTES = 128
_MOST_RANK = 5
"""Dimensions of a tensor map."""

_MOST_ELEMENT_STRIDE = 8
_MOST_BOX = 256
"""Elements that a tensor map's box may span in one dimension, skipped ones included."""

# The compiler numbers element types as the device's instructions do. The host's enumeration
# (CUtensorMapDataType) has other numbers for fp32, fp64 and bf16.
_ELEMENT_TYPE = {8: 10, 9: 8, 10: 9}


class CudaDriver:
    """See `tilewright.runtime.driver.Driver`."""

    backend = "cuda"

    def __init__(self) -> None:
        self._lib = library(("libcuda.so.1",), "CUDA")
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self.launch_function = self._lib.cuLaunchKernel
        self.fill_function = address_of(self._lib.cuMemsetD8Async)
        encode = getattr(self._lib, "cuTensorMapEncodeTiled", None)  # of CUDA 12
        self.encode_function = 0 if encode is None else address_of(encode)
        self.exchange_function = address_of(self._lib.cuThreadExchangeStreamCaptureMode)
        check(self, self._lib.cuInit(0), "start")
        garbage.first_in_threads(partial(self._exchange, _CAPTURE_RELAXED))

    def load(self, device: int, binary: bytes, entry: str, shared: int) -> ctypes.c_void_p:
        lib, module, function = self._lib, ctypes.c_void_p(), ctypes.c_void_p()
        with self.current(device), self.capture_allowed():
            status = lib.cuModuleLoadData(ctypes.byref(module), binary)
            check(self, status, f"load the binary of {entry}")
            status = lib.cuModuleGetFunction(ctypes.byref(function), module, entry.encode())
            check(self, status, f"find {entry} in its binary")
            if shared > _DEFAULT_SHARED:
                status = lib.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared)
                check(self, status, f"give {entry} {shared} bytes of shared memory")
        return function

    def entry(self, kernel: Kernel, function: ctypes.c_void_p) -> Entry:
        attributes = b""
        if kernel.pdl:
            attributes += _attribute(_DEPENDENT, 1)
        if kernel.cooperative:
            attributes += _attribute(_COOPERATIVE, 1)
        if kernel.num_ctas > 1:
            attributes += _attribute(_CLUSTER, kernel.num_ctas, 1, 1)
            attributes += _attribute(_CLUSTER_POLICY, _SPREAD)
        if not attributes:
            return Entry(address_of(self.launch_function))
        extended = getattr(self._lib, "cuLaunchKernelEx", None)
        if extended is None:
            raise LaunchFailed(
                f"{kernel.name} is launched with clusters, cooperatively or with programmatic "
                "dependent launch, which this CUDA driver is too old for; install one for CUDA 12"
            )
        if kernel.num_ctas > _PORTABLE_CLUSTER:
            status = self._lib.cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTER, 1)
            check(self, status, f"allow {kernel.name} clusters of {kernel.num_ctas} CTAs")
        return Entry(address_of(extended), attributes)

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        check(self, self._lib.cuCtxPushCurrent_v2(self._context(device)), f"use device {device}")
        try:
            yield
        finally:
            self._lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def keep_current(self, device: int) -> None:
        check(self, self._lib.cuCtxSetCurrent(self._context(device)), f"use device {device}")

    def _context(self, device: int) -> ctypes.c_void_p:
        """The primary context, which is the one torch uses."""
        if device not in self._contexts:
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            check(self, self._lib.cuDeviceGet(ctypes.byref(handle), device), f"find GPU {device}")
            status = self._lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
            check(self, status, f"open GPU {device}")
            self._contexts[device] = context
        return self._contexts[device]

    def capture(self, stream: int) -> int:
        status, number = ctypes.c_int(), ctypes.c_uint64()
        code = self._lib.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
        )
        check(self, code, "say whether a graph captures a stream")
        if status.value == INVALIDATED:
            raise capture_invalidated(self._log())
        return number.value if status.value else 0

    def _log(self) -> str:
        """The driver's log of errors; "" of drivers before CUDA 12.9, which keep none."""
        read = getattr(self._lib, "cuLogsDumpToMemory", None)
        text, size = ctypes.create_string_buffer(_LOG_BYTES + 1), ctypes.c_size_t(_LOG_BYTES + 1)
        if read is None or read(None, text, ctypes.byref(size), 0):
            return ""
        return text.value.decode(errors="replace")

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
        self._lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(before))
        return before.value

    def tensor_map(self, descriptor: Descriptor, layout: TensorMap, address: int) -> bytes:
        tiled = _Tiling.of(descriptor, layout)
        encoded = ctypes.create_string_buffer(_TENSOR_MAP_BYTES + 64)
        start = -ctypes.addressof(encoded) % 64  # the driver wants 64-byte alignment
        status = self._lib.cuTensorMapEncodeTiled(
            ctypes.byref(encoded, start),
            ctypes.c_int(tiled.type),
            ctypes.c_uint32(tiled.rank),
            ctypes.c_void_p(address),
            tiled.shape,
            tiled.strides,
            tiled.block,
            tiled.steps,
            ctypes.c_int(0),  # no interleave
            ctypes.c_int(tiled.swizzle),
            ctypes.c_int(tiled.promotion),
            ctypes.c_int(0),  # outside reads as zero
        )
        if status:
            steps = descriptor.element_strides or (1,) * len(descriptor.shape)
            raise LaunchFailed(
                f"the cuda driver refused a tensor map of shape {descriptor.shape}, strides "
                f"{descriptor.strides}, block {layout.block_size}, element strides {steps} at "
                f"{address:#x}: {self.error(status)}"
            )
        return encoded.raw[start : start + _TENSOR_MAP_BYTES]

    def tiling(self, descriptor: Descriptor, layout: TensorMap) -> bytes:
        return bytes(_Tiling.of(descriptor, layout))

    def error(self, status: int) -> str:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._lib.cuGetErrorName(status, ctypes.byref(name))
        self._lib.cuGetErrorString(status, ctypes.byref(text))
        words = (name.value or b"unknown error", text.value or b"")
        return " ".join(w.decode() for w in words) + f" ({status})"


def _attribute(number: int, *value: int) -> bytes:
    """A `CUlaunchAttribute`: its number, and 64 bytes of value."""
    return struct.pack(f"<i4x{len(value)}I{64 - 4 * len(value)}x", number, *value)


class _Tiling(ctypes.Structure):
    """`Tiling` of launcher.c: what is encoded in a tensor map besides its address."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("promotion", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
        ("shape", ctypes.c_uint64 * _MOST_RANK),
        ("strides", ctypes.c_uint64 * (_MOST_RANK - 1)),
        ("block", ctypes.c_uint32 * _MOST_RANK),
        ("steps", ctypes.c_uint32 * _MOST_RANK),
    )

    @classmethod
    def of(cls, descriptor: Descriptor, layout: TensorMap) -> _Tiling:
        """Raises `LaunchFailed` for element strides that no tensor map takes."""
        rank = len(descriptor.shape)
        steps = descriptor.element_strides or (1,) * rank
        _check_element_strides(steps, layout)
        box = [size * step for size, step in zip(layout.block_size, steps, strict=True)]
        strides = [stride * layout.elem_size for stride in descriptor.strides[:-1]]
        return cls(
            _ELEMENT_TYPE.get(layout.elem_type, layout.elem_type),
            layout.swizzle,
            _PROMOTE_L2_128B,
            rank,
            (*reversed(descriptor.shape),),
            (*reversed(strides),),
            (*reversed(box),),
            (*reversed(steps),),
        )


def _check_element_strides(steps: tuple[int, ...], layout: TensorMap) -> None:
    """Raise `LaunchFailed` for element strides that no tensor map takes."""
    if all(step == 1 for step in steps):
        return
    said = f"a descriptor has element strides {steps} and block {layout.block_size}"
    if len(steps) != len(layout.block_size):
        raise LaunchFailed(f"{said}; give a stride for each dimension")
    if steps[-1] != 1:
        raise LaunchFailed(f"{said}; TMA reads the innermost dimension without gaps, so give 1")
    if not all(1 <= step <= _MOST_ELEMENT_STRIDE for step in steps):
        raise LaunchFailed(f"{said}; TMA takes element strides of 1 to {_MOST_ELEMENT_STRIDE}")
    if any(n * step > _MOST_BOX for n, step in zip(layout.block_size, steps, strict=True)):
        raise LaunchFailed(
            f"{said}; TMA spans at most {_MOST_BOX} elements of a dimension, skipped ones "
            "included: take a smaller block"
        )
