"""What the stand-ins for cuBLASLt and hipBLASLt share, as Python sees them (`fake_blaslt.h`)."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

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


def call_type(algorithm: type) -> type[ctypes.Structure]:
    """`Call`, with a library's description of an algorithm."""
    numbers = ("first", "second", "result", "out", "workspace", "bytes", "stream", "handle")

    class Call(ctypes.Structure):
        _fields_ = (
            *((name, Object) for name in ("desc", "a", "b", "c", "d")),
            ("algorithm", algorithm),
            *((name, ctypes.c_uint64) for name in numbers),
            ("alpha", ctypes.c_float),
            ("beta", ctypes.c_float),
        )

    return Call


@cache
def _compiled(source: Path) -> bytes:
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[:1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "libfake.so"
        command = [*compiler, "-O1", "-shared", "-fPIC", str(source), "-o", str(path), "-lm"]
        subprocess.run(command, check=True)
        return path.read_bytes()


class FakeLibrary:
    """A compiled stand-in in a folder of its own, so that every test has its own state."""

    source: ClassVar[Path]
    call_type: ClassVar[type]
    """Of a call, as `call_type` makes it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "libfake.so"
        path.write_bytes(_compiled(self.source))
        self.lib = ctypes.CDLL(str(path))

    def count(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.lib, f"fake_{name}").value

    def set(self, name: str, value: int) -> None:
        kind = ctypes.c_size_t if name == "need" else ctypes.c_int
        kind.in_dll(self.lib, f"fake_{name}").value = value

    @property
    def call(self) -> Any:
        """The last call."""
        return self.call_type.in_dll(self.lib, "fake_call")

    def noted(self, name: str) -> dict[int, int]:
        """The ``preference`` or the description (``question``) of the last question."""
        return Object.in_dll(self.lib, f"fake_{name}").said()

    def offer_all(self, algorithms: list[Any], workspace: int) -> None:
        """Have the heuristic offer these, as the library describes them."""
        kind = dict(self.call_type._fields_)["algorithm"]
        offers = (kind * 16).in_dll(self.lib, "fake_offer")
        needs = (ctypes.c_size_t * 16).in_dll(self.lib, "fake_offer_workspace")
        for i, one in enumerate(algorithms):
            offers[i], needs[i] = one, workspace
        self.set("offers", len(algorithms))
