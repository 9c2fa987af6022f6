"""Other libraries' tables: the problems that a family reads from their lines, and how it writes
them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright import checks
from tilewright.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Foreign:
    """A problem that a line states.

    words: of the problem, for `Family.parse_problem`.
    kernel: the other library's kernel, as the line names it.
    us: its time in microseconds; None where the line has no time for this problem alone.
    differs: sentences on what the line, or its time, has beside the problem.
    library: whose kernel it is, as the line names it.
    otherwise: words that hold where neither the line nor the reader's caller says anything.
    """

    words: tuple[tuple[str, str], ...]
    kernel: str = ""
    us: float | None = None
    differs: tuple[str, ...] = ()
    library: str = ""
    otherwise: tuple[tuple[str, str], ...] = ()


class Reader(Protocol):
    """One kind of another library's tables, as a family reads it."""

    @property
    def differs(self) -> str:
        """What the other library computes besides the problems that are read; ``""`` if
        nothing."""

    def strange(self, titles: Sequence[str]) -> Sequence[str]:
        """Of a table's titles, except those of the GPU, the ones that are not understood. Raises
        `BadArgument` for a title that must be there or cannot be."""

    def read(self, cells: Mapping[str, str]) -> Sequence[Foreign] | str:
        """The problems that a line states, by its columns; or why no problem here is what the line
        states. Raises `BadArgument` for a cell that cannot be meant."""


class Form(Reader, Protocol):
    """A kind of table that can be written too."""

    @property
    def name(self) -> str:
        """How a caller names it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns except those of the GPU, in order."""

    def line(self, problem: Any, config: Any) -> dict[str, str]:
        """The cells that the problem and the kernel decide. `read` says whether they state the
        problem."""


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
