"""The vendor's library beside kernels: the names of its calls, and the build of its results.

A call of the library (`Family.vendor`) is measured like a kernel, under a name that begins with
`PREFIX`. It is not a kernel of a space: it is never the best kernel, and coverage does not count
it.
"""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress
from functools import cache
from typing import Any

from tilewright import ops
from tilewright.errors import UnsupportedProblem
from tilewright.ops.protocols import Bind

VENDOR = "vendor"
"""The name of the vendor's library where a kernel's name is expected."""

PREFIX = f"{VENDOR}."

_LIBRARIES = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
"""The packages of NVIDIA's library. AMD's is part of torch."""


def is_vendor(kernel: str) -> bool:
    """Whether this names a call of the vendor's library, not a kernel."""
    return kernel.startswith(PREFIX)


def vendor_name(problem: Any) -> str | None:
    """The name of the vendor's call for `problem`, as ``vendor.torch.mm``; None without one."""
    found = ops.family(problem.family).vendor(problem)
    return None if found is None else PREFIX + found[0]


def vendor_bind(problem: Any) -> tuple[str, Bind]:
    """The vendor's call for `problem`: its name in torch, and a function that prepares it. Raises
    `UnsupportedProblem`."""
    found = ops.family(problem.family).vendor(problem)
    if found is None:
        raise UnsupportedProblem(f"torch has no call of the vendor's library for {problem}")
    return found


@cache
def vendor_build() -> str:
    """The version of the library, in place of a binary's key, if the library has its own package.
    Otherwise "": torch's version, which is part of every environment, determines it."""
    for package in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            return f"{package} {importlib.metadata.version(package)}"
    return ""
