"""A GPU for dispatchers where there is none: all of a call is done but the driver's part.

CPU tensors are taken for those of GPU 0, an H200 or the one named. Stand-ins take the places of its
driver and of torch's streams. Kernels are planned, built, loaded and bound as for a real one.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from stand_in_driver import StandIn

from tilewright import arrays, loader, plan
from tilewright.arch import device

CURRENT_STREAM = 5


class Driver(StandIn):
    """Knows which kernels it loaded too."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def load(self, index: int, binary: bytes, entry: str, shared: int) -> ctypes.c_void_p:
        assert index == 0 and binary.startswith(b"\x7fELF")
        self.loaded.append(entry)
        return ctypes.c_void_p(77 + len(self.loaded))

    def capture(self, stream: int) -> int:
        return 0

    def capture_allowed(self) -> nullcontext[None]:
        return nullcontext()


def install(patch: pytest.MonkeyPatch, torch: Any, named: str = "h200_sxm") -> Driver:
    """Until the patches are undone."""
    driver, view, empty, torch_empty = Driver(), arrays.view, arrays.empty, torch.empty
    patch.setattr(loader, "driver", lambda backend: driver)
    for module in (plan, loader):
        patch.setattr(module, "live_device", lambda index: device(named))
    patch.setattr(arrays, "view", lambda x: replace(view(x), device="cuda:0"))
    patch.setattr(arrays, "empty", lambda made, place, like=None: empty(made, "cpu", like))
    patch.setattr(torch, "empty", lambda *size, device=None, **how: torch_empty(*size, **how))
    patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: CURRENT_STREAM, raising=False)
    patch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    patch.setattr(torch.cuda, "ExternalStream", lambda stream, index: stream)
    patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return driver
