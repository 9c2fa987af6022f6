"""Scratch memory for launches that need some: one buffer a device and stream, grown on demand,
and another for launches whose kernels keep theirs zero (`Launch.zero_workspace`).

Launches on one stream run one after another, so they can share; each launch that a graph captures
has a buffer of its own, since the graph may be replayed anywhere. The memory comes from torch's
allocator, so it counts in the user's own accounting and is legal while a graph is captured. The
compiled path of a call keeps the address that the first one got (`BoundLaunch.keep_workspace`): a
buffer that is outgrown since is still there, and zero where it has to be.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tilewright.errors import LaunchFailed
from tilewright.ops.family import FLAG_BYTES, Launch

if TYPE_CHECKING:
    from tilewright.runtime.bound import BoundLaunch


class Workspaces:
    """The workspaces of one dispatcher. Thread-safe."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int, bool], Any] = {}
        self._kept: list[Any] = []  # outgrown, or a captured graph's
        self._users: WeakSet[BoundLaunch] = WeakSet()  # that keep an address
        self._lock = threading.Lock()

    def bytes(self) -> int:
        """Total size in bytes, outgrown and captured ones included."""
        return sum(b.numel() for b in [*self._buffers.values(), *self._kept])

    def address(self, launch: Launch, device: int, stream: int, user: BoundLaunch | None) -> int:
        """Address of at least ``launch.workspace_bytes`` bytes for work on `stream`: the flags
        zero, and the rest too if the launch asks for it. user: whose launch it is, if `stream` is
        the calling thread's current one, which then need not be made so first; it keeps the address
        for its next launches there, unless a graph captures this one. Raises `LaunchFailed` if the
        device has no room for them."""
        import torch

        external: Any = torch.cuda.ExternalStream
        there = nullcontext() if user is not None else torch.cuda.stream(external(stream, device))
        with there, self._lock:
            buffer, captured = self._buffer(launch, device, stream)
            address: int = buffer.data_ptr()
            if user is not None and not captured:
                self._users.add(user)
                user.keep_workspace(stream, address)
        return address

    def _buffer(self, launch: Launch, device: int, stream: int) -> tuple[Any, bool]:
        """A buffer for `launch` on the current stream, which is `stream`, and whether it is for the
        graph that captures it."""
        import torch

        size, key = launch.workspace_bytes, (device, stream, launch.zero_workspace)
        captured = torch.cuda.is_current_stream_capturing()
        buffer = None if captured else self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            if buffer is not None:
                self._kept.append(buffer)
            buffer = _allocate(size, torch.device("cuda", device))
            buffer[: None if launch.zero_workspace else FLAG_BYTES].zero_()
            if captured:  # it is zeroed by the graph, at each replay, not now
                self._kept.append(buffer)
            else:
                self._buffers[key] = buffer
        return buffer, captured

    def release(self) -> None:
        """Give all of it back. Only when no launch is under way and no captured graph is kept."""
        with self._lock:
            for user in self._users:
                user.keep_workspace(0, 0)
            self._users.clear()
            self._buffers.clear()
            self._kept.clear()


def _allocate(size: int, place: Any) -> Any:
    import torch

    try:
        return torch.empty(size, dtype=torch.uint8, device=place)
    except torch.OutOfMemoryError as error:
        raise LaunchFailed(
            f"no memory on {place} for a workspace of {size} bytes; free some, or limit the "
            f"dispatcher's max_workspace so that it chooses kernels that need less ({error})"
        ) from None
