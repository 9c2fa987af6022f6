"""Other libraries' tables and command lines: the problems that a family reads from their lines, and
how it writes such tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright import checks
from tilewright.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Foreign:
    """A problem that a line states.

    words: the words of the problem, for `Family.parse_problem`.
    kernel: the other library's kernel, as the line names it.
    us: its time in microseconds; None if the line has no time for this problem alone.
    differs: sentences on differences between the line, or its time, and the problem.
    library: the kernel's library, as the line names it.
    otherwise: words to use if neither the line nor the reader's caller gives them.
    """

    words: tuple[tuple[str, str], ...]
    kernel: str = ""
    us: float | None = None
    differs: tuple[str, ...] = ()
    library: str = ""
    otherwise: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a part of a line states no problem: a sentence."""

    why: str


def _as_it_is(folder: str) -> Callable[[str], Iterable[str | Refused]]:
    """Every line states one problem, wherever the file is."""
    return lambda line: (line,)


@dataclass(frozen=True, slots=True)
class Driver:
    """Command lines of another library's program that state a family's problems.

    word: the word whose text is such a line, as in ``miopen="conv -n 2 …"``.
    program: its name, which may be in front of a line, with a path.
    commands: the words that a line begins with behind it.
    read: the words of the problem that a line of one problem states. Raises `BadArgument`.
    lines: opens a file, and reads its lines in order: each as lines of one problem, and sentences
        on what states none. Its argument is the name of the file's folder.
    bare: whether its lines may begin without a command, as those of one program alone may.
    """

    word: str
    program: str
    commands: tuple[str, ...]
    read: Callable[[str], dict[str, str]]
    lines: Callable[[str], Callable[[str], Iterable[str | Refused]]] = _as_it_is
    bare: bool = False


def with_lines(words: Mapping[str, str], drivers: Sequence[Driver]) -> dict[str, str]:
    """Words, with those that another library's line says in its place. Raises `BadArgument` for a
    word that both say."""
    of = {driver.word: driver for driver in drivers}
    found = {word: text for word, text in words.items() if word not in of}
    for word in words:
        theirs = of[word].read(words[word]) if word in of else {}
        if twice := sorted(theirs.keys() & found.keys()):
            raise BadArgument(f"{twice[0]} is said by {word}= too; say it there alone")
        found |= theirs
    return found


class Reader(Protocol):
    """One kind of another library's tables, as a family reads it."""

    @property
    def differs(self) -> str:
        """Operations of the other library beyond the problems that are read; ``""`` if none."""

    def strange(self, titles: Sequence[str]) -> Sequence[str]:
        """The titles of a table that the reader does not understand, apart from those of the GPU.
        Raises `BadArgument` for a missing or impossible title."""

    def read(self, cells: Mapping[str, str]) -> Sequence[Foreign] | str:
        """The problems that a line states, by its columns; or the reason why it states none. Raises
        `BadArgument` for an invalid cell."""


class Form(Reader, Protocol):
    """A kind of table that can be written too."""

    @property
    def name(self) -> str:
        """The name that a caller gives."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns except those of the GPU, in order."""

    def line(self, problem: Any, config: Any) -> dict[str, str]:
        """The cells that the problem and the kernel determine. `read` says whether they state the
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
    """A time; None for a missing or impossible one (aiter writes -1 and inf if nothing worked).
    Raises `BadArgument`."""
    word = cells.get(column, "")
    try:
        us = float(word or "nan")
    except ValueError:
        raise BadArgument(f"{column} = '{word[:40]}' is not a number") from None
    if not 0 < us < math.inf:
        return None
    checks.microseconds(column, us)
    return us
