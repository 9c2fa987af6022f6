"""Scratch memory for launches that need some: one buffer a device and stream, grown on demand.

Launches on one stream run one after another, so they can share; each launch that a graph captures
has a buffer of its own, since the graph may be replayed anywhere. The memory comes from torch's
allocator, so it counts in the user's own accounting and is legal while a graph is captured.
"""

from __future__ import annotations

import threading
from typing import Any

from tilewright.ops.family import FLAG_BYTES, Launch


class Workspaces:
    """The workspaces of one dispatcher. Thread-safe."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int], Any] = {}
        self._kept: list[Any] = []  # outgrown, or a captured graph's
        self._lock = threading.Lock()

    def bytes(self) -> int:
        """Total size in bytes, outgrown and captured ones included."""
        return sum(b.numel() for b in [*self._buffers.values(), *self._kept])

    def address(self, launch: Launch, device: int, stream: int) -> int:
        """Address of at least ``launch.workspace_bytes`` bytes for work on `stream`: the flags
        zero, and the rest zeroed on that stream if the launch asks for it."""
        import torch

        external: Any = torch.cuda.ExternalStream
        with torch.cuda.stream(external(stream, device)):
            buffer = self._buffer(launch.workspace_bytes, device, stream)
            if launch.zero_workspace:
                buffer[FLAG_BYTES : launch.workspace_bytes].zero_()
        address: int = buffer.data_ptr()
        return address

    def _buffer(self, size: int, device: int, stream: int) -> Any:
        """A buffer of at least `size` bytes for the current stream, which is `stream`."""
        import torch

        captured = torch.cuda.is_current_stream_capturing()
        with self._lock:
            buffer = None if captured else self._buffers.get((device, stream))
            if buffer is None or buffer.numel() < size:
                if buffer is not None:
                    self._kept.append(buffer)
                place = torch.device("cuda", device)
                buffer = torch.empty(size, dtype=torch.uint8, device=place)
                buffer[:FLAG_BYTES].zero_()
                if captured:  # its flags are zeroed by the graph, at each replay, not now
                    self._kept.append(buffer)
                else:
                    self._buffers[device, stream] = buffer
        return buffer

    def release(self) -> None:
        """Give all of it back. Only when no launch is under way and no captured graph is kept."""
        with self._lock:
            self._buffers.clear()
            self._kept.clear()
