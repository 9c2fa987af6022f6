"""The library of `fake_cublaslt.c`, compiled and loaded: what it was told, and what it offers."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sysconfig
from pathlib import Path

from tilewright.ops.library import MEETINGS, Algorithm
from tilewright.runtime.cublaslt import CublasLt

ATTRIBUTES = 40


class Object(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("value", ctypes.c_uint64 * ATTRIBUTES),
        ("size", ctypes.c_uint64 * ATTRIBUTES),
    )

    def said(self) -> dict[int, int]:
        """The attributes that were set."""
        return {at: self.value[at] for at in range(ATTRIBUTES) if self.size[at]}


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


class Call(ctypes.Structure):
    _fields_ = (
        *((name, Object) for name in ("desc", "a", "b", "c", "d")),
        ("algorithm", Chosen),
        *((name, ctypes.c_uint64)
          for name in ("first", "second", "result", "out", "workspace", "bytes", "stream")),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
    )  # fmt: skip


class Fake:
    """The compiled library in a folder of its own, so that every test has its own state."""

    def __init__(self, folder: Path) -> None:
        path = folder / "libfake.so"
        source = Path(__file__).with_suffix(".c")
        compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[:1]
        command = [*compiler, "-O1", "-shared", "-fPIC", str(source), "-o", str(path), "-lm"]
        subprocess.run(command, check=True)
        self.lib = ctypes.CDLL(str(path))

    def opened(self, name: str = "cublaslt13") -> CublasLt:
        return CublasLt(self.lib, name)

    def count(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.lib, f"fake_{name}").value

    def set(self, name: str, value: int) -> None:
        kind = ctypes.c_size_t if name == "need" else ctypes.c_int
        kind.in_dll(self.lib, f"fake_{name}").value = value

    @property
    def call(self) -> Call:
        """The last call."""
        return Call.in_dll(self.lib, "fake_call")

    def noted(self, name: str) -> dict[int, int]:
        """The ``preference`` or the description (``question``) of the last question."""
        return Object.in_dll(self.lib, f"fake_{name}").said()

    def offer(self, *algorithms: Algorithm, workspace: int = 0) -> None:
        """Have the heuristic offer these."""
        offers = (Chosen * 16).in_dll(self.lib, "fake_offer")
        needs = (ctypes.c_size_t * 16).in_dll(self.lib, "fake_offer_workspace")
        for i, one in enumerate(algorithms):
            fields = {name: getattr(one, name) for name in Algorithm.__slots__}
            fields["meeting"] = MEETINGS[one.meeting]
            offers[i] = Chosen(**fields)
            needs[i] = workspace
        self.set("offers", len(algorithms))
