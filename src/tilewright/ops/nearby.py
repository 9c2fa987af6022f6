"""A problem's neighbours: problems whose tuned rows may answer for it, and problems that must share
one kernel with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Nearby:
    """A problem near another one. Its row of a table may answer if the other has none.

    how: how this problem follows from the other, in words (``padded to M = 64``).
    """

    problem: Any
    how: str


@dataclass(frozen=True, slots=True)
class Invariance:
    """The problems that one kernel must serve, so that a result's bits do not depend on how much is
    computed at once.

    over: the quantity that does not change the kernel, in words (``every M``).
    chosen_for: the problem of `problems` that the choice is made for, in words (``M = 256``).
    problems: problems that the kernel must all serve. The choice is made for the first. The last
    lets kernels assume the least; its default space has the candidates.
    """

    over: str
    chosen_for: str
    problems: tuple[Any, ...]
