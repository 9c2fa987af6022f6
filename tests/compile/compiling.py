"""Kernels to build, and the compilers that build them."""

from __future__ import annotations

from contextlib import suppress

import psutil
from fake_family import FakeConfig

from tilewright.compile import compilers

GOOD = [
    (FakeConfig(), "sm_90"),
    (FakeConfig("tile", 64), "sm_90"),
    (FakeConfig(), "gfx942"),
    (FakeConfig("tile", 64), "gfx942"),
]


def our_children() -> list[psutil.Process]:
    """The compilers of this process and of those that it started."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended, and maybe nobody has asked how
            if compilers.WORKER in " ".join(one.cmdline()):
                found.append(one)
    return found
