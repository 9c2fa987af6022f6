"""Lines of other libraries' tables: what a family makes of one, and how its cells are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright import checks
from tilewright.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Foreign:
    """A problem that a line states.

    words: of the problem, for `Family.parse_problem`. kernel: the other library's kernel, as the
    line names it. us: its time in microseconds; None where the line has no time for this problem
    alone. differs: sentences on what the line, or its time, has beside the problem.
    """

    words: tuple[tuple[str, str], ...]
    kernel: str = ""
    us: float | None = None
    differs: tuple[str, ...] = ()


Reader = Callable[[Mapping[str, str]], "Sequence[Foreign] | str"]
"""Gives the problems that a line states, by its columns; or says why no problem here is what the
line states. Raises `BadArgument` for a cell that cannot be meant."""


def whole(cells: Mapping[str, str], column: str) -> int:
    """A count. Raises `BadArgument`."""
    return checks.parse_whole(column, cells.get(column, ""))


def flag(cells: Mapping[str, str], column: str) -> bool:
    """Whether a switch is on; a missing or empty one is off. Raises `BadArgument`."""
    word = cells.get(column, "").lower()
    if word not in ("", "true", "false", "0", "1"):
        raise BadArgument(f"{column} = '{cells[column][:40]}' is neither True nor False")
    return word in ("true", "1")


def microseconds(cells: Mapping[str, str], column: str) -> float | None:
    """A time; None where there is none, or none that can be (aiter writes -1 and inf where nothing
    worked). Raises `BadArgument`."""
    word = cells.get(column, "")
    try:
        us = float(word or "nan")
    except ValueError:
        raise BadArgument(f"{column} = '{word[:40]}' is not a number") from None
    if not 0 < us < math.inf:
        return None
    checks.microseconds(column, us)
    return us
