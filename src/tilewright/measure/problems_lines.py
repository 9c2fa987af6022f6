"""Files of command lines of other libraries' programs: MIOpenDriver, benchdnn, ckProfiler and those
of CK Tile's examples.

A line states problems of the family that reads its command (`ops.foreign.Driver`). The program's
name may be in front of it, with a path and with what a log has before it. Every other line is
benchdnn's, whose options hold for later lines too; the name of the file's folder, ``conv``,
``deconv`` or ``matmul``, says which driver they are for. Empty lines and those that begin with
``#`` say nothing; a line that ends with a backslash goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch.model import Arch
from tilewright.errors import BadArgument, nearest, shown
from tilewright.ops.foreign import Driver, Refused


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of a file states.

    number: from 1. text: the line.
    problems: those that it states.
    reasons: a sentence for each problem, or part of the line, that has no counterpart here.
    """

    number: int
    text: str
    problems: tuple[Any, ...]
    reasons: tuple[str, ...]


def is_lines(path: str) -> bool:
    """Whether a file has such lines: by its ending, ``.txt`` or none, unless it is JSON (a space,
    which may have any name)."""
    file = Path(path)
    try:
        if file.suffix not in (".txt", "") or not file.is_file():
            return False
    except (OSError, ValueError):  # a name that no file has
        return False
    try:
        with file.open("rb") as opened:
            return opened.read(256).lstrip()[:1] != b"{"
    except OSError:
        return True  # reading it will say why


def read_lines(text: str, path: str, arch: Arch, words: Mapping[str, str]) -> Iterator[Line]:
    """The lines of a file that state problems or cannot be read.

    words: added to every problem; those that the line says, too, make it no problem.
    """
    reader = _File(Path(path).resolve().parent.name)
    for number, line in _whole(text):
        said = line.strip().strip("\"'").strip()
        if not said or said.startswith("#"):
            continue
        found: dict[Any, None] = {}
        reasons: dict[str, None] = {}
        for one in reader.read(said):
            if isinstance(one, Refused):
                reasons[one.why] = None
                continue
            try:
                family, driver = reader.of(one)
                problem = ops.family(family).parse_problem({**words, driver.word: one}, arch)
            except BadArgument as error:
                reasons[str(error)] = None
            else:
                found[problem] = None
        if found or reasons:
            yield Line(number, said, tuple(found), tuple(reasons))


def _whole(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that they go on in, and the number of the first."""
    start, said = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        more = line.rstrip().endswith("\\")
        part = line.strip().removesuffix("\\").strip()
        # A list of values goes on without a blank.
        said += part if said.endswith(",") or not said else f" {part}"
        if not more:
            yield start, said
            start, said = 0, ""
    if said:
        yield start, said


class _File:
    """The programs' readers, opened for a file in this folder."""

    def __init__(self, folder: str) -> None:
        self.commands = {
            command: (name, driver)
            for name in ops.families()
            for driver in ops.family(name).drivers
            for command in driver.commands
        }
        drivers = {driver.program: driver for _, driver in self.commands.values()}
        self.readers = {program: driver.lines(folder) for program, driver in drivers.items()}
        self.programs = {program for program in drivers if program}
        self.bare = next(program for program, driver in drivers.items() if driver.bare)

    def of(self, line: str) -> tuple[str, Driver]:
        """The family of a line of one problem, and its driver. Raises `BadArgument`."""
        command, *others = (part.partition("=")[0] for part in line.split())
        # An option that is a command says more than the one in front.
        command = next((one for one in others if one in self.commands and one[:1] == "-"), command)
        if command not in self.commands:
            known = nearest(command, self.commands)
            raise BadArgument(f"no operation here reads lines of {shown(command)}{known}")
        return self.commands[command]

    def read(self, line: str) -> Iterable[str | Refused]:
        """Lines of one problem, and why others state none."""
        parts = line.split()
        at = next((at for at, part in enumerate(parts) if _name(part) in self.programs), None)
        program = self.bare if at is None else _name(parts[at])
        parts = parts if at is None else parts[at + 1 :]
        command = _name(parts[0]) if parts else ""
        if command in self.commands:
            program, parts[0] = self.commands[command][1].program, command
        elif program != self.bare:
            return (Refused(f"no operation here reads {program} {shown(command)}"),)
        return self.readers[program](" ".join(parts))


def _name(word: str) -> str:
    """A word without the path in front of it."""
    return word if word.startswith("-") else word.rpartition("/")[2]
