"""What backward passes over rows have in common: sums over rows, of each column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.custom import Scratch, kernel
from tilewright.custom.declaration import Part
from tilewright.declared.rows import _tiles
from tilewright.dtypes import DTYPES
from tilewright.tolerance import Tolerance, norm_gradient, tolerance

AXES = {**_tiles.AXES, "TURNS": (1, 8, 32), "AHEAD": (False, True)}
"""TURNS: tiles that a workgroup takes one after another, so that it sums over their rows itself.
AHEAD: it reads the next one before it computes with the present one."""

SUM_COLUMNS = 32
"""Columns of a workgroup that adds the partial sums up."""
AHEAD_BYTES = 32
"""Bytes of x for each lane, at most, where the next tile is read ahead: beyond them registers spill
(seen in builds for sm_90)."""
USUAL_WARPS = 132 * 16
"""Warps of all workgroups that are wanted at least, 16 for each SM of an H200. More workgroups are
more partial sums to write and to add up."""


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
    """How far a config is from `_tiles.LANE_ELEMENTS` for each lane, or from half as many where a
    lane reads the next tile ahead and so has two, reads rows in pieces, or has elements of 32 bits,
    of which it would spill some (328 bytes of 32 in a build for sm_90); from `USUAL_WARPS`, or
    as many workgroups as there are rows; what partial sums add to the rows; and how many rows its
    tiles have more than there are. Reading ahead comes first."""
    count, rows = max(1, programs(problem, config)), max(1, problem.rows)
    idle = max(1.0, min(USUAL_WARPS / config.num_warps, rows) / count)
    padded: float = count * config.ROWS * config.TURNS / rows
    halves = config.AHEAD or not config.HELD or DTYPES[problem.dtype].bytes > 2
    usual = _tiles.LANE_ELEMENTS // (2 if halves else 1)
    far = _tiles.far(config, usual) * (1.0 if config.AHEAD else 1.05)
    found: float = far * idle * (1.0 + count / rows) * padded
    return found


AMPLIFIES = 8.0
"""As of a declaration."""


def tolerances(eps: float, taken: int) -> Callable[[Any, Any], Mapping[str, Tolerance]]:
    """How far dx may be from the reference, of rows of which a mean of so many values is taken off
    (0 or 1)."""

    def of(problem: Any, config: Any) -> Mapping[str, Tolerance]:
        read = (problem.dtype, problem.dy_dtype, *([problem.w_dtype] if problem.has_w else []))
        worst = max(read, key=lambda name: DTYPES[name].eps)
        usual = tolerance(worst, problem.dtype, max(1, problem.rows), amplified=AMPLIFIES)
        return {"dx": norm_gradient(usual, problem.rows, problem.columns - taken, eps)}

    return of


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
            dependent=True,
        ),
    )
