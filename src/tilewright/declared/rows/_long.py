"""Which tiles read rows that may be as long as a vocabulary: those of `_tiles` where registers hold
a row; longer rows are read in large pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.custom import Scratch
from tilewright.declared.rows import _tiles

SPLITS = (1, 2, 4, 8, 16, 32)
"""Workgroups that share a row that is read in pieces."""

AXES: dict[str, tuple[Any, ...]] = {
    **_tiles.AXES,
    "num_warps": (*_tiles.AXES["num_warps"], 32),
    "SPLIT": SPLITS,
}
"""32 warps are for long rows alone: an SM then has one or two workgroups."""

SMS = 132
"""Of an H200: with fewer rows, SMs are idle unless rows are shared, by two workgroups of each."""

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
        if (1 if config.HELD else self.pieces(problem, config.BLOCK)) < config.SPLIT:
            return f"{config.SPLIT} workgroups for rows of {columns} in {config.BLOCK}s"
        if config.HELD and config.num_warps not in _tiles.AXES["num_warps"]:
            return f"{config.num_warps} warps for rows that are held"
        return True

    def narrows(self, problem: Any) -> dict[str, Sequence[Any]]:
        """The only values of axes that `fits` takes."""
        found: dict[str, Sequence[Any]]
        if getattr(problem, self.size) <= PIECES[0]:
            found = {"num_warps": _tiles.AXES["num_warps"], "HELD": (True,), "SPLIT": (1,)}
        else:
            most = self.pieces(problem, min(PIECES))
            splits = tuple(n for n in SPLITS if n <= most)
            found = {"ROWS": (1,), "HELD": (False,), "SPLIT": splits}
        return {"BLOCK": self.blocks(problem), **found}

    def pieces(self, problem: Any, block: int) -> int:
        """Pieces of a row."""
        return int(-(-getattr(problem, self.size) // block))

    def prefers(self, problem: Any, config: Any) -> Any:
        """As `_tiles` does where rows are held; else the largest piece, by the most warps, and few
        rows are shared by so many workgroups that each SM has two."""
        if config.HELD:
            return _tiles.prefers(problem, config)
        wanted = 1.0 if problem.rows >= SMS else 2 * SMS / max(1, problem.rows)
        apart = max(config.SPLIT / wanted, wanted / config.SPLIT)
        return apart, _each(config) / 64 - config.BLOCK


def _each(config: Any) -> float:
    """Elements of a tile for each lane."""
    each: float = config.BLOCK * config.ROWS / (32 * config.num_warps)
    return each


def alone(config: Any) -> bool:
    """Whether each row has a workgroup of its own."""
    return not shared(config)


def shared(config: Any) -> bool:
    """Whether several workgroups share a row."""
    return bool(config.SPLIT > 1)


def workgroups(problem: Any, config: Any) -> tuple[int]:
    """The grid where they do."""
    return (problem.rows * config.SPLIT,)


def parts(values: int) -> Scratch:
    """What they leave for each other: so many `values` of each share."""
    return Scratch(lambda problem, config: (values, problem.rows, config.SPLIT), there=shared)
