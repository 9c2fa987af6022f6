"""The vendor's library beside kernels: the names of its calls, and the build of its results.

Each call of a library (`Family.vendor`) is measured like a kernel, under a name that begins with
`PREFIX`; of several for a problem, the fastest counts. It is not a kernel of a space: it is never
the best kernel, and coverage does not count it.
"""

from __future__ import annotations

from typing import Any

from tilewright import ops
from tilewright.errors import UnsupportedProblem
from tilewright.ops.library import CUBLASLT, package
from tilewright.ops.protocols import Bind

VENDOR = "vendor"
"""The name of the vendor's library where a kernel's name is expected."""

PREFIX = f"{VENDOR}."


def is_vendor(kernel: str) -> bool:
    """Whether this names a call of the vendor's library, not a kernel."""
    return kernel.startswith(PREFIX)


def vendor_names(problem: Any) -> tuple[str, ...]:
    """The names of the vendor's calls for `problem`, as ``vendor.torch.mm``."""
    return tuple(PREFIX + name for name in ops.family(problem.family).vendor(problem))


def vendor_bind(problem: Any, called: str = VENDOR) -> tuple[str, Bind]:
    """A vendor's call for `problem`: its name in torch, and a function that prepares it. Raises
    `UnsupportedProblem`.

    called: as `vendor_names` has it; ``vendor`` for the usual one.
    """
    found = ops.family(problem.family).vendor(problem)
    wanted = called.removeprefix(PREFIX)
    if called == VENDOR and found:
        wanted = next(iter(found))
    if wanted not in found:
        what = "the vendor's library" if called == VENDOR else wanted
        raise UnsupportedProblem(f"torch has no call of {what} for {problem}")
    return wanted, found[wanted]


def vendor_build() -> str:
    """The version of the library, in place of a binary's key, if the library has its own package.
    Otherwise "": torch's version, which is part of every environment, determines it."""
    return package(CUBLASLT)
