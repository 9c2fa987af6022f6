"""The one launcher protocol, and what its CUDA and HIP sides share.

Both drivers are called through ctypes: their launch functions take the same eleven arguments,
need no compiler, and cost less from here than through a general-purpose binding.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any, Protocol

from tilewright.compile.kernel import TensorMap
from tilewright.errors import LaunchFailed, NoDriver
from tilewright.ops.nouns import Descriptor


class Driver(Protocol):
    """A GPU driver. Devices are numbered as torch numbers them."""

    backend: str

    launch_function: Any
    """The C function: (function, grid x/y/z, block x/y/z, shared bytes, stream, parameters,
    extra) → status."""

    def load(self, device: int, binary: bytes, entry: str, shared: int) -> ctypes.c_void_p:
        """Load a binary on `device` and return its kernel `entry`, ready to be launched with
        `shared` bytes of dynamic shared memory. Raises `LaunchFailed`."""

    def current(self, device: int) -> AbstractContextManager[None]:
        """Make `device` current for this thread inside the context."""

    def capture(self, stream: int) -> int:
        """The number of the graph capture that `stream` is part of; 0 if it is part of none."""

    def capture_allowed(self) -> AbstractContextManager[None]:
        """Allow this thread, inside the context, to load modules and to allocate memory while a
        graph is being captured: neither is work for a stream, so neither belongs to the graph."""

    def tensor_map(self, descriptor: Descriptor, layout: TensorMap, address: int) -> bytes:
        """The 128-byte tensor map of a descriptor. Raises `LaunchFailed`."""

    def error(self, status: int) -> str:
        """The driver's name for a status."""


def library(names: tuple[str, ...], what: str) -> ctypes.CDLL:
    """The first of these shared libraries that loads. Raises `NoDriver`."""
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


@cache
def driver(backend: str) -> Driver:
    """The driver for a backend (``"cuda"``, ``"hip"``). Raises `NoDriver`."""
    if backend == "cuda":
        from tilewright.runtime.cuda import CudaDriver

        return CudaDriver()
    from tilewright.runtime.hip import HipDriver

    return HipDriver()
