"""`Profile`: a named set of kernels that an install builds, as CK's receipts are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Arch

DECLARED = "declared"
"""The name of the list of the problems that a user's operation was declared with."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The kernels that one framework calls: those chosen for its kinds of calls.

    about: who calls them, and with what, in words.
    problems: for an architecture, a problem for each kind of call, and for each size that may ask
        for another kernel. Kernels are chosen for them as for any list of problems, so tables
        count, and a kernel serves other sizes of its kind of call too.
    """

    about: str
    problems: Callable[[Arch], Iterable[Any]]
