"""Buffers for the temporaries of launches, grown on demand.

Launches on one stream run one after another, so they share buffers: a kept-zero buffer, which every
launch finds zero and leaves zero, and a scratch buffer, which may hold anything
(`tilewright.runtime.temporaries` says which temporary lies where). Only a kept-zero buffer is
zeroed, when it is made.

A graph may be replayed on any stream, so the launches that one capture records on one stream share
buffers that belong to the capture. Its kept-zero buffer is zeroed when it is made, on a stream that
no graph captures: the graph then holds no fill, and kernels leave the buffer zero after each
replay. The buffers cannot come from the capture's own memory pool, because other nodes of the graph
use that memory too and would overwrite the zeros at each replay.

Memory comes from torch's allocator, so torch's memory statistics include it. The compiled path of a
call keeps the addresses that its first call got (`BoundLaunch.keep_workspace`), so an outgrown
buffer is kept for it; an outgrown kept-zero buffer is still zero.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tilewright.errors import LaunchFailed

if TYPE_CHECKING:
    from tilewright.runtime.bound import BoundLaunch

_STREAMS_OF_TORCH = 32
"""torch hands out this many streams in turn. A graph may be capturing some of them."""


class Workspaces:
    """The workspaces of one dispatcher. Thread-safe."""

    def __init__(self) -> None:
        # By device, stream, whether it is kept zero, and the capture it belongs to (0: none).
        self._buffers: dict[tuple[int, int, bool, int], Any] = {}
        self._outgrown: list[Any] = []
        self._users: WeakSet[BoundLaunch] = WeakSet()  # launches that keep addresses
        self._lock = threading.Lock()

    def bytes(self) -> int:
        """Total size in bytes, including outgrown buffers and those of captured graphs."""
        with self._lock:
            return sum(b.numel() for b in [*self._buffers.values(), *self._outgrown])

    def addresses(
        self, sizes: tuple[int, int], user: BoundLaunch, stream: int, current: bool
    ) -> tuple[int, int]:
        """Addresses of a kept-zero and of a scratch buffer of these sizes in bytes on `stream`; 0
        for a buffer of no bytes.

        user: the bound launch that needs them. current: whether `stream` is the calling thread's
        current stream on the launch's device. If it is, and no graph captures it, `user` keeps the
        addresses for its next calls. Raises `LaunchFailed` if the device has no room.
        """
        kept_zero_bytes, scratch_bytes = sizes
        with self._lock:
            with user.driver.current(user.device):
                capture = user.driver.capture(stream)
            kept_zero = self._buffer(user, stream, capture, True, kept_zero_bytes)
            scratch = self._buffer(user, stream, capture, False, scratch_bytes)
            if current and not capture:
                self._users.add(user)
                user.keep_workspace(stream, kept_zero, scratch)
        return kept_zero, scratch

    def _buffer(self, user: BoundLaunch, stream: int, capture: int, zero: bool, size: int) -> int:
        """Address of a buffer of at least `size` bytes; 0 for none."""
        if not size:
            return 0
        key = (user.device, stream, zero, capture)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            made = (_made_beside if capture else _made_on)(user, stream, size, zero)
            if buffer is not None:
                self._outgrown.append(buffer)
            buffer = self._buffers[key] = made
        address: int = buffer.data_ptr()
        return address

    def release(self) -> None:
        """Free every buffer. Only when no launch is under way and no captured graph is kept."""
        with self._lock:
            for user in self._users:
                user.keep_workspace(0, 0, 0)
            self._users.clear()
            self._buffers.clear()
            self._outgrown.clear()


def _made_on(user: BoundLaunch, stream: int, size: int, zero: bool) -> Any:
    """A buffer allocated on `stream`, which zeroes it before its next work if `zero`."""
    import torch

    # The handle 0 is the default stream's. `ExternalStream` takes 0 for no handle, and would use a
    # new stream that is not ordered with the launch.
    external: Any = torch.cuda.ExternalStream
    here = external(stream, user.device) if stream else torch.cuda.default_stream(user.device)
    with torch.cuda.stream(here):
        return _made(user.device, size, zero)


def _made_beside(user: BoundLaunch, stream: int, size: int, zero: bool) -> Any:
    """A buffer for the graph that captures `stream`, made and, if `zero`, zeroed now, on a stream
    that no graph captures."""
    import torch

    stream_of: Any = torch.cuda.Stream
    with user.driver.capture_allowed():
        for _ in range(_STREAMS_OF_TORCH):
            beside = stream_of(user.device)
            if user.driver.capture(beside.cuda_stream):
                continue
            with torch.cuda.stream(beside):
                buffer = _made(user.device, size, zero)
                beside.synchronize()
                return buffer
    raise LaunchFailed(
        "graphs capture every stream that torch has, so none is left to zero a workspace on; "
        "capture fewer streams at a time"
    )


def _made(device: int, size: int, zero: bool) -> Any:
    import torch

    place = torch.device("cuda", device)
    try:
        buffer = torch.empty(size, dtype=torch.uint8, device=place)
    except torch.OutOfMemoryError as error:
        raise LaunchFailed(
            f"no memory on {place} for a workspace of {size} bytes; free some, or limit the "
            f"dispatcher's max_workspace so that it chooses kernels that need less ({error})"
        ) from None
    if zero:
        buffer.zero_()
    return buffer
