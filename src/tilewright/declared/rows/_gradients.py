"""What backward passes over rows have in common: sums over rows, of each column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.custom import Scratch, kernel
from tilewright.custom.declaration import Part
from tilewright.declared.rows import _tiles
from tilewright.dtypes import DTYPES

AXES = {**_tiles.AXES, "TURNS": (1, 8, 32), "AHEAD": (False, True)}
"""TURNS: tiles that a workgroup takes one after another, so that it sums over their rows itself.
AHEAD: it reads the next one before it computes with the present one."""

SUM_COLUMNS = 32
"""Columns of a workgroup that adds the partial sums up."""
AHEAD_BYTES = 32
"""Bytes of x for each lane, at most, where the next tile is read ahead: beyond them registers spill
(seen in builds for sm_90)."""
USUAL_PROGRAMS = 512
"""Partial sums that are preferred until a measurement decides: more are more to write and to add
up, and fewer leave a large GPU idle."""


def blocks(columns: int) -> tuple[int]:
    """The value of BLOCK: gradients keep several values for each element, which spilled where rows
    of more than `_tiles.MANY` were held (seen in builds for sm_90)."""
    return (_tiles.block(columns) if columns <= _tiles.MANY else _tiles.PIECE,)


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile is one for rows of a problem."""
    if config.AHEAD and (not config.HELD or config.TURNS == 1):
        return "AHEAD = True, where there is no next tile of rows that are held"
    each = config.BLOCK * config.ROWS * DTYPES[config.dtype].bytes / (32 * config.num_warps)
    if config.AHEAD and each > AHEAD_BYTES:
        return f"AHEAD = True with {each:.0f} bytes of x for each lane"
    return _tiles.fits_blocks(blocks(problem.columns), problem, config)


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The only values of axes that `fits` takes."""
    return _tiles.narrows_blocks(blocks(problem.columns), problem)


def programs(problem: Any, config: Any) -> int:
    """Workgroups, each of which makes a partial sum."""
    return int(-(-problem.rows // (config.ROWS * config.TURNS)))


def prefers(problem: Any, config: Any) -> float:
    """How far a config is from the tile that is preferred and from `USUAL_PROGRAMS`, and how many
    rows its tiles have more than there are; reading ahead comes first."""
    count = max(1, programs(problem, config))
    apart = max(count / USUAL_PROGRAMS, USUAL_PROGRAMS / count)
    padded: float = count * config.ROWS * config.TURNS / max(1, problem.rows)
    far = _tiles.prefers(problem, config) * 1.01
    if config.AHEAD:  # a lane has two tiles, so half as much of each will do
        far = max(1.0, far / 2)
    return far * apart * padded


def partial(problem: Any, config: Any) -> tuple[int, int]:
    """The shape of the partial sums."""
    return programs(problem, config), problem.columns


def sums(there: Callable[[Any], bool]) -> Scratch:
    """The partial sums of one output, which some configs have."""
    return Scratch(partial, there=there)


def parts(place: str, adds: str, there: Callable[[Any], bool]) -> tuple[Part, ...]:
    """The kernel at `place`, then `adds` of `kernels._sums`, which adds its partial sums up, if a
    config has any."""
    return (
        kernel("main", place, lambda problem, config: (programs(problem, config),)),
        kernel(
            "sum",
            f"{__package__}.kernels._sums:{adds}",
            lambda problem, config: (-(-problem.columns // SUM_COLUMNS),),
            there,
        ),
    )
