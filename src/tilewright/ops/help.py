"""The families' words for the help of the command line: examples, and CK Tile's words beside ours.

A family states them in a data file, ``help.json`` in its folder, because showing help must not take
the time of importing families. The examples are those of the family that is `usual`; every family's
vocabulary is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.jsonfile import convert, load_json


@dataclass(frozen=True, slots=True)
class Help:
    """A family's words for help.

    problems: examples of problems, in the words of `Family.parse_problem`, by what they show:
        ``large``, ``small``, ``tiny``, ``few`` (a small batch) and ``odd`` (sizes that nothing
        divides).
    profile: an example of its profiles; "" if it has none.
    usual: whether the examples in help are this family's; true of one family.
    where: an example of a condition on a kernel's fields (see `tilewright.measure.filters`).
    vocabulary: (the word here, CK Tile's word, its meaning).
    """

    problems: Mapping[str, str]
    where: str
    vocabulary: tuple[tuple[str, str, str], ...] = ()
    profile: str = ""
    usual: bool = False


@cache
def helps() -> dict[str, Help]:
    """What families state, by family. Raises `BadFile`."""
    found = sorted(Path(__file__).parent.glob("*/help.json"))
    return {path.parent.name: convert(load_json(path), Help, str(path)) for path in found}
