"""The library of `fake_hipblaslt.c`, compiled and loaded: what it was told, and what it offers."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

from fake_blaslt import FakeLibrary, call_type

from tilewright.ops.library import Solution
from tilewright.runtime.hipblaslt import HipblasLt


class Chosen(ctypes.Structure):
    _fields_ = (
        ("index", ctypes.c_int32),
        ("rest", ctypes.c_ubyte * 12),
        ("most_workspace", ctypes.c_size_t),
    )


def solution(index: int, build: int = 0) -> Solution:
    """The algorithm that a build of the library has under a number."""
    name = f"s{index}" if index < 10 else f"solution {index} of build {build}"
    return Solution(index, hashlib.sha256(name.encode()).hexdigest()[:8])


class FakeHip(FakeLibrary):
    """A stand-in for hipBLASLt."""

    source = Path(__file__).with_suffix(".c")
    call_type = call_type(Chosen)

    def opened(self, name: str = "hipblaslt1") -> HipblasLt:
        return HipblasLt(self.lib, name)

    def offer(self, *indices: int, workspace: int = 0) -> None:
        """Have the heuristic offer these."""
        self.offer_all([Chosen(index) for index in indices], workspace)
