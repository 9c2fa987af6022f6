"""Problems beside a problem: those whose tuned rows may answer for it, and those that one kernel
serves together with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Nearby:
    """A problem near another one, whose row of a table may answer where the other has none.

    how: how this problem comes from the other, in words (``padded to M = 64``).
    """

    problem: Any
    how: str


@dataclass(frozen=True, slots=True)
class Invariance:
    """What one kernel must serve so that a result's bits do not depend on how much is computed at
    once.

    over: what the kernel is the same for, in words (``every M``).
    chosen_for: which problem of `problems` the choice is made for, in words (``M = 256``).
    problems: problems that the kernel must all serve. The choice is made for the first. The last
        gives kernels the least to rely on; its default space has the candidates.
    """

    over: str
    chosen_for: str
    problems: tuple[Any, ...]
