"""Scratch memory for launches: one buffer for each stream and kind, grown on demand.

Launches on one stream run one after another, so they share a buffer. There are two kinds: kernels
that keep all of their workspace zero between launches (`Launch.zero_workspace`) have a buffer
apart from those that keep only its flags zero.

A graph may be replayed on any stream, so the launches that one capture records on one stream share
a buffer that belongs to the capture. It is zeroed when it is made, on a stream that no graph
captures: the graph holds the kernel and no fill, and kernels leave their flags as they found them.
It cannot come from the capture's own memory pool, since memory there is used by other nodes too,
which would overwrite the flags at each replay.

Memory comes from torch's allocator, so it counts in the user's accounting. The compiled path of a
call keeps the address that its first call got (`BoundLaunch.keep_workspace`): an outgrown buffer is
kept for it, and its flags are still zero.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tilewright.errors import LaunchFailed
from tilewright.ops.nouns import Launch

if TYPE_CHECKING:
    from tilewright.runtime.bound import BoundLaunch

_STREAMS_OF_TORCH = 32
"""torch hands out this many streams in turn; a graph may be capturing some of them."""


class Workspaces:
    """The workspaces of one dispatcher. Thread-safe."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int, bool, int], Any] = {}
        self._outgrown: list[Any] = []
        self._users: WeakSet[BoundLaunch] = WeakSet()  # that keep an address
        self._lock = threading.Lock()

    def bytes(self) -> int:
        """Total size in bytes, outgrown buffers and those of captured graphs included."""
        return sum(b.numel() for b in [*self._buffers.values(), *self._outgrown])

    def addresses(
        self, launch: Launch, user: BoundLaunch, stream: int, current: bool
    ) -> tuple[int, int]:
        raise NotImplementedError

    def release(self) -> None:
        """Give all of it back. Only when no launch is under way and no captured graph is kept."""
        with self._lock:
            for user in self._users:
                user.keep_workspace(0, 0)
            self._users.clear()
            self._buffers.clear()
            self._outgrown.clear()


def _made_on(user: BoundLaunch, stream: int, size: int, zeroed: int) -> Any:
    """A buffer whose first `zeroed` bytes are zeroed by `stream` itself, before its next work."""
    import torch

    # The handle 0 is the default stream's. `ExternalStream` takes it for no handle, and would take
    # a stream of its own that is not ordered with the launch.
    external: Any = torch.cuda.ExternalStream
    here = external(stream, user.device) if stream else torch.cuda.default_stream(user.device)
    with torch.cuda.stream(here):
        return _zeroed(user.device, size, zeroed)


def _made_beside(user: BoundLaunch, stream: int, size: int, zeroed: int) -> Any:
    """A buffer for the graph that captures `stream`, zeroed now on a stream that none captures."""
    import torch

    stream_of: Any = torch.cuda.Stream
    with user.driver.capture_allowed():
        for _ in range(_STREAMS_OF_TORCH):
            beside = stream_of(user.device)
            if user.driver.capture(beside.cuda_stream):
                continue
            with torch.cuda.stream(beside):
                buffer = _zeroed(user.device, size, zeroed)
                beside.synchronize()
                return buffer
    raise LaunchFailed(
        "graphs capture every stream that torch has, so none is left to zero a workspace on; "
        "capture fewer streams at a time"
    )


def _zeroed(device: int, size: int, zeroed: int) -> Any:
    import torch

    place = torch.device("cuda", device)
    try:
        buffer = torch.empty(size, dtype=torch.uint8, device=place)
    except torch.OutOfMemoryError as error:
        raise LaunchFailed(
            f"no memory on {place} for a workspace of {size} bytes; free some, or limit the "
            f"dispatcher's max_workspace so that it chooses kernels that need less ({error})"
        ) from None
    buffer[:zeroed].zero_()
    return buffer
