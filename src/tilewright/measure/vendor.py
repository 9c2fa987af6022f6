"""The vendor's library beside kernels: what its calls are called where kernels' names stand, and
what its results are of.

A call of the library (`Family.vendor`) is measured as a kernel is, under a name that begins with
`PREFIX`. It is no kernel of a space: it is never the best one, and what is covered is counted
without it.
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
"""What the vendor's library is called where one may name a kernel."""

PREFIX = f"{VENDOR}."

_LIBRARIES = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
"""The packages that NVIDIA's library may come in. AMD's comes within torch."""


def is_vendor(kernel: str) -> bool:
    """Whether this names a call of the vendor's library, and no kernel."""
    return kernel.startswith(PREFIX)


def vendor_name(problem: Any) -> str | None:
    """The name of the vendor's call for `problem`, as ``vendor.torch.mm``; None without one."""
    found = ops.family(problem.family).vendor(problem)
    return None if found is None else PREFIX + found[0]


def vendor_bind(problem: Any) -> tuple[str, Bind]:
    """The vendor's call for `problem`: its name in torch, and what makes it. Raises
    `UnsupportedProblem`."""
    found = ops.family(problem.family).vendor(problem)
    if found is None:
        raise UnsupportedProblem(f"torch has no call of the vendor's library for {problem}")
    return found


@cache
def vendor_build() -> str:
    """What stands for the key of a binary: the version of the library, where it is a package of
    its own; else "", and torch's version, which is part of every environment, tells it."""
    for package in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            return f"{package} {importlib.metadata.version(package)}"
    return ""
