"""The driver protocol, and what its CUDA and HIP sides share.

Both drivers are called through ctypes, which needs no compiler. A cached launch does not come this
way: `launcher.c` calls the driver's functions by their addresses.
"""

from __future__ import annotations

import ctypes
import re
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.compile.kernel import Kernel, TensorMap
from tilewright.errors import LaunchFailed, NoDriver
from tilewright.ops.nouns import Descriptor


@dataclass(frozen=True, slots=True)
class Entry:
    """How a kernel is launched.

    address: of the driver's C function. Without attributes, its arguments are those of
    `cuLaunchKernel`: function, grid x/y/z, block x/y/z, shared bytes, stream, parameters, extra.
    attributes: launch attributes, packed as an array of `CUlaunchAttribute`; with them, the C
    function is `cuLaunchKernelEx`.
    """

    address: int
    attributes: bytes = b""


class Driver(Protocol):
    """A GPU driver. Devices are numbered as torch numbers them."""

    backend: str

    fill_function: int
    """Address of the C function (address, byte, count, stream) → status, which queues a fill of
    `count` bytes."""

    encode_function: int
    """Address of a C function that makes tensor maps, which `tiling` is for; 0 for none."""

    exchange_function: int
    """Address of a C function like cuThreadExchangeStreamCaptureMode, which `capture_allowed`
    calls; 0 for none."""

    def entry(self, kernel: Kernel, function: ctypes.c_void_p) -> Entry:
        """How `kernel`, loaded as `function`, is launched: with clusters, cooperatively, or with
        programmatic dependent launch if it was built so. Raises `LaunchFailed` where the driver
        cannot."""

    def load(self, device: int, binary: bytes, entry: str, shared: int) -> ctypes.c_void_p:
        """Load a binary on `device` and return its kernel `entry`, ready to be launched with
        `shared` bytes of dynamic shared memory. Raises `LaunchFailed`."""

    def current(self, device: int) -> AbstractContextManager[None]:
        """Make `device` current for this thread inside the context."""

    def keep_current(self, device: int) -> None:
        """Make `device` current for this thread from now on, as the runtime library does in a
        thread's first call of it."""

    def capture(self, stream: int) -> int:
        """The number of the graph capture that `stream` takes part in; 0 if it takes part in
        none. Raises `LaunchFailed` for a capture that was invalidated."""

    def capture_allowed(self) -> AbstractContextManager[None]:
        """Allow this thread, inside the context, to load modules and allocate memory while a graph
        is being captured. Neither is work on a stream, so neither becomes part of the graph."""

    def tensor_map(self, descriptor: Descriptor, layout: TensorMap, address: int) -> bytes:
        """The 128-byte tensor map of a descriptor whose first element lies at `address`. Raises
        `LaunchFailed`."""

    def tiling(self, descriptor: Descriptor, layout: TensorMap) -> bytes:
        """What is encoded in the tensor maps of a descriptor besides their address: a `Tiling` of
        launcher.c. Raises `LaunchFailed`."""

    def error(self, status: int) -> str:
        """The driver's name for a status."""


INVALIDATED = 2
"""The status of a stream whose capture was invalidated, in CUDA and in HIP."""
_ENDED = re.compile(r"initiated from (the calling|another) thread\n.*CAPTURE_\w+\) from (\w+)")
"""Two lines of CUDA's log of errors, of a call that a capture forbids."""


def capture_invalidated(log: str = "") -> LaunchFailed:
    """The error for a stream whose capture was invalidated. log: the driver's own, if it keeps one:
    the last such call in it is named."""
    done = (
        "this thread or another made a call that captures forbid, perhaps when Python collected a "
        "dead graph as garbage"
    )
    if found := _ENDED.findall(log):
        thread, call = found[-1]
        who = "another" if thread == "another" else "this"
        done = f"{who} thread called {call}, which captures forbid"
    return LaunchFailed(
        f"this stream's graph cannot be captured any more: since its capture began, {done}; make "
        "such calls before the capture, run gc.collect() before it and gc.disable() for its time, "
        'or capture with capture_error_mode="thread_local", which forbids nothing to other threads'
    )


def address_of(function: Any) -> int:
    """The address of a C function."""
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


def library(names: tuple[str, ...], what: str) -> ctypes.CDLL:
    """The first of these shared libraries that loads. `what` names the driver in the error. Raises
    `NoDriver`."""
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise NoDriver(
        f"no {what} driver on this machine ({' or '.join(names)} does not load); install it, or "
        "pass CPU arrays to run kernels through the interpreter"
    )


def check(driver: Driver, status: int, doing: str) -> None:
    """Raise `LaunchFailed` unless `status` is success."""
    if status:
        raise LaunchFailed(
            f"the {driver.backend} driver refused to {doing}: {driver.error(status)}"
        )
