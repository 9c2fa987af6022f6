"""Bundles of kernels made by hand, for tests that need no compiler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from table_cases import DEEP, PLAIN, WIDE

from tilewright.bundle import Bundle, Content, write

sys.path.insert(0, str(Path(__file__).parents[1] / "compile"))

from store_helpers import make_kernel

NAMES = (PLAIN, WIDE, DEEP)


def binary(name: str, arch: str = "sm_90") -> bytes:
    """What stands for the machine code of a kernel."""
    return f"machine code of {name} for {arch}".encode()


def content(names: Sequence[str] = NAMES, arch: str = "sm_90", **fields) -> Content:
    made = Content(**fields)
    for name in names:
        kernel = replace(make_kernel(name), arch=arch)
        made.add(kernel, binary(name, arch))
    return made


def bundle(path: Path, names: Sequence[str] = NAMES, **fields) -> Bundle:
    """A bundle at `path`, signed by this user."""
    write(content(names, **fields), path)
    return Bundle(path)
