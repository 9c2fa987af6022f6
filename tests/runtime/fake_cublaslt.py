"""The library of `fake_cublaslt.c`, compiled and loaded: what it was told, and what it offers."""

from __future__ import annotations

import ctypes
from pathlib import Path

from fake_blaslt import FakeLibrary, call_type

from tilewright.ops.library import MEETINGS, Algorithm
from tilewright.runtime.cublaslt import CublasLt


class Chosen(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_int32),
        ("tile", ctypes.c_uint32),
        ("parts", ctypes.c_int32),
        ("meeting", ctypes.c_uint32),
        ("swizzle", ctypes.c_uint32),
        ("custom", ctypes.c_uint32),
        ("stages", ctypes.c_uint32),
        ("inner", ctypes.c_uint16),
        ("cluster", ctypes.c_uint16),
        ("types", ctypes.c_uint32 * 6),
        ("padding", ctypes.c_uint32 * 2),
    )

    @property
    def algorithm(self) -> Algorithm:
        fields = {name: getattr(self, name) for name in Algorithm.__slots__}
        words = {number: word for word, number in MEETINGS.items()}
        return Algorithm(**{**fields, "meeting": words[self.meeting]})


class Fake(FakeLibrary):
    """A stand-in for cuBLASLt."""

    source = Path(__file__).with_suffix(".c")
    call_type = call_type(Chosen)

    def opened(self, name: str = "cublaslt13") -> CublasLt:
        return CublasLt(self.lib, name)

    def offer(self, *algorithms: Algorithm, workspace: int = 0) -> None:
        """Have the heuristic offer these."""
        chosen = []
        for one in algorithms:
            fields = {name: getattr(one, name) for name in Algorithm.__slots__}
            fields["meeting"] = MEETINGS[one.meeting]
            chosen.append(Chosen(**fields))
        self.offer_all(chosen, workspace)
