"""The tiles of norms: those of `_tiles`; two tiles that hold a row together; and, for rows that are
read twice, larger pieces."""

from __future__ import annotations

from typing import Any

from tilewright.declared.rows import _tiles
from tilewright.dtypes import DTYPES

TWO = _tiles.MANY + _tiles.MANY // 2
"""A block that two tiles hold, of `MANY` elements and of half as many. Of layer norms of 16 bits an
SM holds two workgroups of it, and one of the next power of two (64 and 88 registers in builds for
sm_90). A smaller second tile frees no more, and has to be moved between lanes."""

AXES: dict[str, tuple[Any, ...]] = {
    **_tiles.AXES,
    "BLOCK": (*_tiles.AXES["BLOCK"], TWO),
}
"""As of `_tiles`."""

LARGE_PIECE = 8192
"""Elements of the larger piece. Twice as large pieces keep as many bytes in flight with half as
many workgroups, so that half as many rows lie in L2 until they are read again."""

_SMS, _LANES, _L2 = 132, 2048, 50 * 2**20
"""SMs of an H200, what each holds, and its L2 (its data sheet)."""


def blocks(problem: Any) -> tuple[int, ...]:
    """The values that BLOCK may have: as of `_tiles`, and `TWO` for rows that are longer than
    `MANY`, that it holds, and that are not rounded to 8 bits: a largest value besides would take
    the registers that are freed."""
    held, *pieces = _tiles.blocks(problem.columns)
    if problem.columns > held:
        return (held, LARGE_PIECE)
    two = _tiles.MANY < problem.columns <= TWO and not problem.quant
    return (TWO if two else held, *pieces)


def fits(problem: Any, config: Any) -> bool | str:
    """As of `_tiles`, with these values of BLOCK."""
    return _tiles.fits_blocks(blocks(problem), problem, config)


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The only values of BLOCK, HELD and ROWS that `fits` takes."""
    return _tiles.narrows_blocks(blocks(problem), problem)


def prefers(problem: Any, config: Any) -> float:
    """As `_tiles.prefers_held`; and the rows that all SMs read in pieces at a time may fill half of
    L2, since as many results pass through it."""
    score = _tiles.prefers_held(problem, config)
    if config.HELD:
        return score
    size = DTYPES[problem.dtype].bytes * (1 + problem.has_residual)
    # A workgroup of larger pieces has twice the registers for each lane.
    at_once = _SMS * _LANES // (32 * config.num_warps) * _tiles.PIECE // config.BLOCK
    under_way: float = min(problem.rows, at_once) * problem.columns * size
    return score + max(0.0, under_way / (_L2 / 2) - 1.0) * 16.0
