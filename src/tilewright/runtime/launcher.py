"""Compiles and loads `launcher.c`, the few lines of a launch that Python is too slow for.

The system's C compiler builds it once for each Python version (see `tilewright.native`). Where it
cannot be built, `python_launcher` does the same, more slowly.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from pathlib import Path
from types import ModuleType

from tilewright import native
from tilewright.errors import NoCompiler
from tilewright.runtime import python_launcher
from tilewright.runtime.python_launcher import (
    NEEDS_HANDLE,
    NEEDS_MAPS,
    NOT_KNOWN,
    OVERLAPS,
    UNSUITABLE,
)

__all__ = [
    "NEEDS_HANDLE",
    "NEEDS_MAPS",
    "NOT_KNOWN",
    "OVERLAPS",
    "UNSUITABLE",
    "compiled",
    "launcher",
]

log = logging.getLogger("tilewright")

_SOURCE, *_INCLUDED = (
    Path(__file__).with_name(name)
    for name in (
        "launcher.c",
        "describe.h",
        "repeat.h",
        "passing.h",
        "matmul.h",
        "graph.h",
        "solution.h",
    )
)


@cache
def launcher() -> ModuleType:
    """The compiled module; where it cannot be compiled, the same in Python, which a warning says
    once. Raises `StoreError` if others could have written the compiled one."""
    try:
        return compiled()
    except NoCompiler as error:
        log.warning("%s; until then a launch takes some 10 µs more, through Python", error)
        return python_launcher


def compiled() -> ModuleType:
    """The compiled module. Raises `NoCompiler` if it cannot be compiled, kept or loaded, and
    `StoreError` if others could have written it."""
    built = native.compiled(_SOURCE, _INCLUDED, "the launcher")
    try:
        spec = importlib.util.spec_from_file_location("launcher", built)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (OSError, ImportError) as error:
        raise native.cannot_keep(built, "the launcher", error) from None
    return module
