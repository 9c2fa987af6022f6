"""HIP's functions on the emulator: an object that stands for libamdhip64.

Each is a C function with the signature of hip_runtime_api.h, so the drivers and the launchers of
`tilewright.runtime` call it as they call the real library: by address, with the parameters packed
as they will be on a GPU. The kernel-argument segment is made from these parameters as HIP's runtime
makes it: by the offsets and sizes in the code object's metadata.

Work is done at once, whatever the stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.emulate import code_object
from tilewright.emulate.code_object import Entry
from tilewright.errors import LaunchFailed
from tilewright.runtime.driver import address_of

SUCCESS = 0
INVALID_VALUE, INVALID_CONFIGURATION, INVALID_DEVICE = 1, 9, 101
INVALID_IMAGE, NOT_FOUND, LAUNCH_FAILURE = 200, 500, 719
_ERRORS = {
    SUCCESS: b"hipSuccess",
    INVALID_VALUE: b"hipErrorInvalidValue",
    INVALID_CONFIGURATION: b"hipErrorInvalidConfiguration",
    INVALID_DEVICE: b"hipErrorInvalidDevice",
    INVALID_IMAGE: b"hipErrorInvalidImage",
    NOT_FOUND: b"hipErrorNotFound",
    LAUNCH_FAILURE: b"hipErrorLaunchFailure",
}

_Int, _Unsigned, _Pointer = ctypes.c_int, ctypes.c_uint, ctypes.c_void_p
_IntAt, _PointerAt = ctypes.POINTER(_Int), ctypes.POINTER(_Pointer)
_PLACE = (_Pointer, *[_Unsigned] * 7, _Pointer, _PointerAt)
"""A launch: function, grid x/y/z, block x/y/z, bytes of LDS, stream, parameters."""
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipInit": (_Unsigned,),
    "hipGetDevice": (_IntAt,),
    "hipSetDevice": (_Int,),
    "hipModuleLoadData": (_PointerAt, _Pointer),
    "hipModuleGetFunction": (_PointerAt, _Pointer, ctypes.c_char_p),
    "hipModuleLaunchKernel": (*_PLACE, _PointerAt),
    "hipModuleLaunchCooperativeKernel": _PLACE,
    "hipMemsetD8Async": (_Pointer, ctypes.c_ubyte, ctypes.c_size_t, _Pointer),
    "hipStreamGetCaptureInfo": (_Pointer, _IntAt, ctypes.POINTER(ctypes.c_ulonglong)),
    "hipThreadExchangeStreamCaptureMode": (_IntAt,),
}


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel, as the library was asked to launch it.

    image: the code object. entry: its kernel. grid: workgroups in x, y, z. threads: of a workgroup
    in x, y, z. shared: bytes of LDS, static ones included. arguments: the kernel-argument segment.
    """

    image: bytes
    entry: Entry
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    shared: int
    arguments: bytes


class Executor(Protocol):
    """What carries out the library's work. An exception of its becomes the library's `failure`."""

    def execute(self, dispatch: Dispatch) -> None:
        """Run a kernel to its end."""

    def fill(self, address: int, byte: int, count: int) -> None:
        """Set `count` bytes at `address`."""


class EmulatedHip:
    """The functions of libamdhip64 that `HipDriver` and the launchers use, as attributes, for one
    GPU, number 0.

    A function that fails returns a status, as HIP's do; `failure` is then the exception with the
    reason.
    """

    def __init__(self, executor: Executor) -> None:
        self.failure: BaseException | None = None
        self._executor = executor
        self._images: dict[int, bytes] = {}
        self._functions: dict[int, tuple[bytes, Entry]] = {}
        self._kept: list[Any] = []  # the C functions' memory
        for name, signature in _SIGNATURES.items():
            setattr(self, name, self._function(name, signature))
        self._names = {code: ctypes.create_string_buffer(name) for code, name in _ERRORS.items()}
        said = ctypes.CFUNCTYPE(_Pointer, _Int)(self._error_string)
        self.hipGetErrorString = self._by_address(said)

    def _function(self, name: str, signature: tuple[Any, ...]) -> Any:
        body: Callable[..., None] = getattr(self, f"_{name}")

        def call(*arguments: Any) -> int:
            try:
                body(*arguments)
            except _Refused as refused:
                self.failure = LaunchFailed(f"{name}: {refused}")
                return refused.status
            except BaseException as error:  # none may leave a C function
                self.failure = error
                return LAUNCH_FAILURE
            return SUCCESS

        return self._by_address(ctypes.CFUNCTYPE(_Int, *signature)(call))

    def _by_address(self, function: Any) -> Any:
        """The C function as `ctypes.CDLL` gives it: without a signature, so that a wrong type of an
        argument does here what it does to the real library."""
        self._kept.append(function)
        return ctypes.CFUNCTYPE(_Int)(address_of(function))

    def _error_string(self, status: int) -> int:
        return ctypes.addressof(self._names.get(status, self._names[LAUNCH_FAILURE]))

    # --- the functions' bodies ----------------------------------------------------------------

    def _hipInit(self, flags: int) -> None:
        pass

    def _hipGetDevice(self, number: Any) -> None:
        number[0] = 0

    def _hipSetDevice(self, number: int) -> None:
        if number:
            raise _Refused(INVALID_DEVICE, f"there is one emulated GPU, number 0, and no {number}")

    def _hipModuleLoadData(self, module: Any, image: int) -> None:
        size = code_object.image_bytes(ctypes.string_at(image, code_object.HEADER_BYTES))
        handle = _handle(self._images)
        self._images[handle] = ctypes.string_at(image, size)
        module[0] = handle

    def _hipModuleGetFunction(self, function: Any, module: int, name: bytes) -> None:
        image = self._images[module]
        entries = code_object.read(image).entries
        if name.decode() not in entries:
            raise _Refused(
                NOT_FOUND, f"no kernel '{name.decode()}' in the binary, which has {[*entries]}"
            )
        handle = _handle(self._functions)
        self._functions[handle] = image, entries[name.decode()]
        function[0] = handle

    def _hipModuleLaunchKernel(self, *given: Any) -> None:
        *place, extra = given
        if extra:
            raise _Refused(INVALID_VALUE, "parameters in `extra` are not read here")
        self._hipModuleLaunchCooperativeKernel(*place)

    def _hipModuleLaunchCooperativeKernel(self, function: int, *given: Any) -> None:
        *sizes, shared, _stream, parameters = given
        image, entry = self._functions[function]
        (x, y, z), (wide, high, deep) = sizes[:3], sizes[3:]
        if not all(sizes):
            raise _Refused(INVALID_CONFIGURATION, f"{entry.name} has an empty grid or block")
        if any(blocks * each >= 1 << 32 for blocks, each in zip(sizes[:3], sizes[3:], strict=True)):
            raise _Refused(
                INVALID_CONFIGURATION,
                f"{entry.name} is launched with 2³² threads or more along an axis",
            )
        if wide * high * deep > entry.most_threads:
            raise _Refused(
                INVALID_CONFIGURATION,
                f"{entry.name} is launched with {wide * high * deep} threads a workgroup, and is "
                f"compiled for at most {entry.most_threads}",
            )
        segment = kernel_arguments(entry, parameters, (x, y, z), (wide, high, deep), shared)
        total = entry.static_shared + shared
        self._executor.execute(
            Dispatch(image, entry, (x, y, z), (wide, high, deep), total, segment)
        )

    def _hipMemsetD8Async(self, address: int, byte: int, count: int, _stream: int | None) -> None:
        self._executor.fill(address or 0, byte, count)

    def _hipStreamGetCaptureInfo(self, _stream: int | None, status: Any, number: Any) -> None:
        status[0] = number[0] = 0  # no graph captures

    def _hipThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        pass


class _Refused(Exception):
    """The library returns `status`, and this is why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _handle(known: dict[int, Any]) -> int:
    return 0x1000 * (len(known) + 1)  # handles look like addresses


def kernel_arguments(
    entry: Entry,
    parameters: Any,
    grid: tuple[int, int, int],
    threads: tuple[int, int, int],
    shared: int,
) -> bytes:
    """The kernel-argument segment of a launch.

    parameters: the addresses of the parameters that are not hidden, in order. shared: bytes of LDS
    that the launch asks for. Raises `LaunchFailed` for a hidden argument without a meaning here.
    """
    segment = bytearray(entry.argument_bytes)
    passed = 0
    for one in entry.arguments:
        if one.hidden:
            value = _hidden(one.kind, grid, threads, shared)
            if value is None:
                raise LaunchFailed(
                    f"{entry.name} wants the argument {one.kind}, which the emulator does not give"
                )
            content = value.to_bytes(one.size, "little")
        else:
            content = ctypes.string_at(parameters[passed], one.size)
            passed += 1
        segment[one.offset : one.offset + one.size] = content
    return bytes(segment)


def _hidden(
    kind: str, grid: tuple[int, int, int], threads: tuple[int, int, int], shared: int
) -> int | None:
    """A hidden argument; None if it is not known here. HIP launches whole workgroups (remainders of
    0) from the origin, and the services of the host (printf, heap, queues) are absent."""
    what, _, axis = kind.removeprefix("hidden_").rpartition("_")
    number = {"x": 0, "y": 1, "z": 2}.get(axis)
    if number is not None and what in ("block_count", "group_size", "remainder", "global_offset"):
        return {"block_count": grid[number], "group_size": threads[number]}.get(what, 0)
    if kind == "hidden_grid_dims":
        return 3  # also of a grid that is a line: HIP launches all in three dimensions
    if kind == "hidden_dynamic_lds_size":
        return shared
    absent = ("none", "printf_buffer", "hostcall_buffer", "heap_v1", "multigrid_sync_arg")
    return 0 if kind.removeprefix("hidden_") in absent else None
