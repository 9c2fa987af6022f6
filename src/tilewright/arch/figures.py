"""The figures that estimates use beside data sheets: rates, shares, latencies. Each was found on
some device and is used for all of them. A file of `arch/figures` states each figure: its value, its
unit, its meaning, how it was found, and which script fits it again, if one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tilewright.jsonfile import convert, load_json

FOLDER = Path(__file__).parent / "figures"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    value: a number; or several, by a word or a whole number.
    unit: of the value; ``""`` of a share, a factor and a count.
    found: ``hardware``: as vendors state it. ``fitted``: to measurements. ``read off`` single
        measurements. ``counted`` in machine code. ``derived`` from other figures. ``ratio``: to a
        fitted one. ``guess``: a round number. ``unknown``: nobody wrote it down.
    script: the file that fits it again; ``""``: none does.
    """

    value: int | float | dict[str, int | float]
    unit: str
    found: Literal[
        "hardware", "fitted", "read off", "counted", "derived", "ratio", "guess", "unknown"
    ]
    meaning: str
    script: str = ""


class Figures:
    """The values of a file's figures: numbers as attributes, several numbers as items."""

    def __init__(self, known: Mapping[str, Figure]) -> None:
        self._several: dict[str, Mapping[Any, float]] = {}
        for name, one in known.items():
            if isinstance(one.value, dict):
                self._several[name] = {_key(word): value for word, value in one.value.items()}
            else:
                self.__dict__[name] = one.value

    def __getattr__(self, name: str) -> float:
        raise AttributeError(f"there is no figure {name}")

    def __getitem__(self, name: str) -> Mapping[Any, float]:
        return self._several[name]


@cache
def figures(name: str) -> Figures:
    """The figures of ``name.json``. Raises `BadFile`."""
    return Figures(stated(name))


def stated(name: str) -> dict[str, Figure]:
    """The figures of ``name.json`` with all that is said of them. Raises `BadFile`."""
    path = FOLDER / f"{name}.json"
    return convert(load_json(path), dict[str, Figure], str(path))


def _key(word: str) -> str | int:
    return int(word) if word.isdigit() else word


DEVICE = figures("device")
"""What estimates of all families use."""
