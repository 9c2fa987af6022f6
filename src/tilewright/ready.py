"""Launches that are ready: plans with their kernels loaded, found again by what a call looks like.

`dispatch` prepares them. The compiled launcher finds and launches them without Python's help.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from tilewright.plan import KEPT, Plan
from tilewright.runtime.bound import Bound, BoundLaunch
from tilewright.runtime.launcher import launcher


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan with its kernels loaded on GPU `index`, ready to launch."""

    plan: Plan
    bound: BoundLaunch
    operands: tuple[Bound, ...]
    index: int


class Fast:
    """Functions and objects of the compiled path, looked up once, when a GPU is first used.

    torch's public `current_stream` and `current_device` call the two private functions; the public
    ones would cost more than the launch itself.
    """

    def __init__(self) -> None:
        import torch

        native = launcher()
        self.call = native.call
        self.describe = native.describe
        self.current_stream = torch._C._cuda_getCurrentRawStream
        self.current_device = torch._C._cuda_getDevice
        self.empty = torch.empty_strided
        self.several_gpus = torch.cuda.device_count() > 1
        self.torch = (
            self.current_stream,
            self.current_device if self.several_gpus else None,
            torch.is_grad_enabled,
            torch.cuda.is_current_stream_capturing,
        )


class Launches:
    """The ready launches, by `describe`'s keys, since the last `forget_launches`. A call keeps the
    instance that it found at its start: if launches are forgotten during the call, its own launch
    is forgotten too.

    At most `KEPT` launches are kept. Beyond, the least recently used quarter is dropped. The native
    launcher stamps each launch at use, so a call spends no time on this.
    """

    def __init__(self) -> None:
        self.ready: dict[Any, Ready] = {}
        self.known: dict[Any, Any] = {}
        """The same launches, in the form that the compiled path takes."""
        self.made: dict[Any, tuple[Any, ...]] = {}
        """Layouts of the outputs to make for a call, by a key of its inputs."""
        self._lock = threading.Lock()

    def add(self, key: Any, ready: Ready) -> None:
        """Add a launch. If several threads add one, the first stays: `ready` keeps the known launch
        alive."""
        with self._lock:
            self.known[key] = self.ready.setdefault(key, ready).bound.native
            if len(self.ready) > KEPT:
                self._drop()

    def _drop(self) -> None:
        oldest = sorted(self.ready.items(), key=lambda item: item[1].bound.last_used())
        for key, _ in oldest[: len(oldest) - KEPT * 3 // 4]:
            self.known.pop(key, None)
            del self.ready[key]
        if len(self.made) > KEPT:
            self.made.clear()
