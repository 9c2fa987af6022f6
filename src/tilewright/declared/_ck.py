"""Command lines of CK Tile's examples as problems of declared operations.

    ck="tile_rmsnorm2d_fwd -m=3328 -n=4096 -prec_i=fp16"

is read as the problem that this command computes; what it leaves out is CK's default. A line may
begin with the program's name. Words that say how to run it say nothing of the problem. Read from
example/ck_tile in ROCm/composable_kernel, whose programs' arguments a page's group states as
`Program`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright import checks
from tilewright.errors import BadArgument, nearest, shown
from tilewright.ops.foreign import Driver

RUNNING = ("v", "kname", "warmup", "repeat", "seed", "json", "jsonfile")
"""Words that say how to run an example."""

Said = Mapping[str, str]
"""The values of a program's words, CK's defaults among them."""


@dataclass(frozen=True, slots=True)
class Program:
    """An example of CK Tile's.

    names: of the program, in its versions.
    defaults: the words that say what is computed, with CK's defaults.
    read: the words of our problem. Raises `BadArgument` for what has no counterpart.
    given: words of values that a call gives here, or that say how to run it.
    """

    names: tuple[str, ...]
    defaults: Said
    read: Callable[[Said], dict[str, str]]
    given: tuple[str, ...] = ()


def driver(*programs: Program) -> Driver:
    """What reads the lines of these programs. A line that names none is the first's."""
    names = tuple(name for program in programs for name in program.names)

    def read(line: str) -> dict[str, str]:
        first, *rest = line.split() or [""]
        name = first.rpartition("/")[2]
        found = next((one for one in programs if name in one.names), None)
        said = [first, *rest] if found is None else rest
        program = found or programs[0]
        return program.read(_split(program, [word for word in said if word]))

    return Driver("ck", "", names, read)


def _split(program: Program, words: list[str]) -> dict[str, str]:
    """The values of a line's words, and of those that it leaves out."""
    known = (*program.defaults, *program.given, *RUNNING)
    said: dict[str, str] = {}
    for text in words:
        name, equals, value = text.removeprefix("-").partition("=")
        if not (text.startswith("-") and name and equals and value):
            raise BadArgument(f"ck: {shown(text)} is not -WORD=VALUE, as in -m=64")
        if name not in known:
            raise BadArgument(
                f"ck: {program.names[0]} has no -{name}{nearest(name, known)}; known: "
                f"{', '.join(program.defaults)}"
            )
        if name in said:
            raise BadArgument(f"ck: -{name} is given twice")
        said[name] = value
    return {**program.defaults, **said}


def only(said: Said, why: str, **allowed: tuple[str, ...]) -> None:
    """Raise `BadArgument`, with the reason, where a word has another value than these."""
    for name, values in allowed.items():
        if said[name] not in values:
            raise BadArgument(f"ck: -{name}={shown(said[name])} has no counterpart: {why}")


def stride(said: Said, name: str, columns: str, ours: str = "") -> dict[str, str]:
    """A stride of rows, where it is not that of a contiguous array.

    ours: its word here, if it has another.
    """
    if said[name] in ("-1", columns):
        return {}
    return {ours or name: str(checks.parse_whole(f"ck: -{name}", said[name]))}


def contiguous(said: Said, columns: str, *names: str) -> None:
    """Raise `BadArgument` for strides of results other than contiguous ones."""
    for name in names:
        only(said, "results lie contiguous here", **{name: ("-1", columns)})
