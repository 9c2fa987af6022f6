"""Which tiles read rows that may be as long as a vocabulary: those of `_tiles` where registers hold
a row; longer rows are read in large pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.declared.rows import _tiles

AXES = {**_tiles.AXES, "num_warps": (*_tiles.AXES["num_warps"], 32)}
"""32 warps are for long rows alone: an SM then has one or two workgroups."""

PIECES = (16384, 8192)
"""Elements of a long row that are read at once. Large ones, by many warps, so that few rows are
under way at a time: L2 then has them still when they are read again."""

LEAST_ELEMENTS = 16
"""Elements of a piece for each lane, at least: `kernels._online` gives lanes as many."""


@dataclass(frozen=True, slots=True)
class Long:
    """The rules for an operation, as `Declaration` takes them.

    size: the name of the size that a row's elements are.
    """

    size: str = "columns"

    def blocks(self, problem: Any) -> Sequence[int]:
        """The values that BLOCK may have."""
        columns = getattr(problem, self.size)
        return PIECES if columns > PIECES[0] else (_tiles.block(columns),)

    def fits(self, problem: Any, config: Any) -> bool | str:
        """Whether a config's tile is one for rows of a problem."""
        columns = getattr(problem, self.size)
        if config.BLOCK not in self.blocks(problem):
            return f"BLOCK = {config.BLOCK} for rows of {columns}"
        if (columns <= config.BLOCK) != config.HELD:
            return f"HELD = {config.HELD} for rows of {columns} in pieces of {config.BLOCK}"
        if config.ROWS > 1 and not config.HELD:
            return f"ROWS = {config.ROWS} for rows that are read in pieces"
        if _each(config) > _tiles.LANE_ELEMENTS or (
            not config.HELD and _each(config) < LEAST_ELEMENTS
        ):
            return f"{_each(config):.0f} elements for each lane"
        if config.HELD and config.num_warps not in _tiles.AXES["num_warps"]:
            return f"{config.num_warps} warps for rows that are held"
        return True

    def narrows(self, problem: Any) -> dict[str, Sequence[Any]]:
        """The only values of axes that `fits` takes."""
        held = getattr(problem, self.size) <= PIECES[0]
        more = {"num_warps": _tiles.AXES["num_warps"]} if held else {"ROWS": (1,)}
        return {"BLOCK": self.blocks(problem), "HELD": (held,), **more}


def _each(config: Any) -> float:
    """Elements of a tile for each lane."""
    each: float = config.BLOCK * config.ROWS / (32 * config.num_warps)
    return each


def prefers(problem: Any, config: Any) -> float:
    """As `_tiles` does where rows are held; else the largest piece, by the most warps."""
    return _tiles.prefers(problem, config) if config.HELD else _each(config) / 64 - config.BLOCK
