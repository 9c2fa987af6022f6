"""Scratch memory for launches that need some: one buffer a device and stream, grown on demand.

Launches on one stream run one after another, so they can share. The memory comes from torch's
allocator, so it counts in the user's own accounting and is legal while a graph is captured.
"""

from __future__ import annotations

import threading
from typing import Any

from tilewright.ops.family import Launch


class Workspaces:
    """The workspaces of one dispatcher. Thread-safe."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, int], Any] = {}
        self._outgrown: list[Any] = []  # captured graphs may still point to them
        self._lock = threading.Lock()

    def bytes(self) -> int:
        """Total size in bytes, outgrown buffers included."""
        return sum(b.numel() for b in [*self._buffers.values(), *self._outgrown])

    def address(self, launch: Launch, device: int, stream: int) -> int:
        """Address of at least ``launch.workspace_bytes`` bytes for work on `stream`, zeroed on
        that stream if the launch asks for it."""
        import torch

        key = (device, stream)
        with self._lock:
            buffer = self._buffers.get(key)
            if buffer is None or buffer.numel() < launch.workspace_bytes:
                if buffer is not None:
                    self._outgrown.append(buffer)
                place = torch.device("cuda", device)
                buffer = torch.empty(launch.workspace_bytes, dtype=torch.uint8, device=place)
                self._buffers[key] = buffer
        if launch.zero_workspace:
            external: Any = torch.cuda.ExternalStream
            with torch.cuda.stream(external(stream, device)):
                buffer[: launch.workspace_bytes].zero_()
        address: int = buffer.data_ptr()
        return address

    def release(self) -> None:
        """Give all of it back. Only when no launch is under way and no captured graph is kept."""
        with self._lock:
            self._buffers.clear()
            self._outgrown.clear()
