"""The tiles of norms: those of `_tiles`; two tiles that hold a row together; for rows that are read
twice, larger pieces; and workgroups that take long rows in turns and load the next ones ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.declared.rows import _tiles
from tilewright.dtypes import DTYPES

TWO = _tiles.MANY + _tiles.MANY // 2
"""A block that two tiles hold, of `MANY` elements and of half as many. Of layer norms of 16 bits an
SM holds two workgroups of it, and one of the next power of two (64 and 88 registers in builds for
sm_90). A smaller second tile frees no more, and has to be moved between lanes."""

MOST = 2 * TWO
"""A block of two such tiles that all lanes of an SM hold."""

MOST_WARPS = 32

AXES: dict[str, tuple[Any, ...]] = {
    **_tiles.AXES,
    "BLOCK": (*_tiles.AXES["BLOCK"], TWO, MOST),
    "num_warps": (*_tiles.AXES["num_warps"], MOST_WARPS),
    "AHEAD": (0, 2, 1, 4),
}
"""As of `_tiles`. AHEAD: rows that a workgroup loads ahead of the one that it norms, into shared
memory; there are then as many workgroups as the GPU holds, which take rows in turns. 0: a workgroup
for every ROWS rows."""

LEAST_AHEAD = 2048
"""Rows of more elements may be loaded ahead. Up to `MANY` a measurement decides."""

LEAST_COPIED = 4
"""Bytes that an asynchronous copy moves at least. Elements of 16 bits that lie by themselves are
loaded to registers instead, and no row is on its way meanwhile (99 registers in a build of
`layer_norm` of 9001 elements for sm_90, 57 of 9000)."""

LARGE_PIECE = 8192
"""Elements of the larger piece. Twice as large pieces keep as many bytes in flight with half as
many workgroups, so that half as many rows lie in L2 until they are read again."""

_SMS, _LANES, _L2 = 132, 2048, 50 * 2**20
"""SMs of an H200, what each holds, and its L2 (its data sheet)."""


def blocks(problem: Any) -> tuple[int, ...]:
    """The values that BLOCK may have: as of `_tiles`, and `TWO` or `MOST` for rows that are longer
    than a power of two, that it holds, and that are not rounded to 8 bits: a largest value besides
    would take the registers that are freed."""
    held, *pieces = _tiles.blocks(problem.columns)
    if problem.columns > held:
        pieces = [held, LARGE_PIECE]
        return (*pieces,) if problem.quant or problem.columns > MOST else (MOST, *pieces)
    two = _tiles.MANY < problem.columns <= TWO and not problem.quant
    return (TWO if two else held, *pieces)


def fits(problem: Any, config: Any) -> bool | str:
    """As of `_tiles`, with these values of BLOCK; rows are loaded ahead where they are long and
    held."""
    if config.AHEAD and not (config.HELD and problem.columns > LEAST_AHEAD and config.ROWS == 1):
        return f"AHEAD = {config.AHEAD} for rows of {problem.columns}"
    at_once = config.alignment * DTYPES[problem.dtype].bytes
    if config.AHEAD and at_once < LEAST_COPIED:
        return f"{at_once} bytes at once are not copied to shared memory ahead"
    if config.AHEAD and config.num_warps != ahead_warps(problem):
        return f"{config.num_warps} warps for rows of {problem.columns} loaded ahead"
    if config.num_warps == MOST_WARPS and not config.AHEAD and config.BLOCK != MOST:
        return f"{config.num_warps} warps for rows of {problem.columns} one by one"
    return _tiles.fits_blocks(blocks(problem), problem, config)


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The only values of BLOCK, HELD and ROWS that `fits` takes."""
    found = _tiles.narrows_blocks(blocks(problem), problem)
    return {**found, "ROWS": found["ROWS"] or (1,)}


def together(problem: Any, arch: Arch) -> Sequence[Mapping[str, Any]]:
    """AHEAD and num_warps: rows are loaded ahead where copies to shared memory need no registers,
    and as many as it holds."""
    some = AXES["num_warps"] if MOST in blocks(problem) else _tiles.AXES["num_warps"]
    found = [{"AHEAD": 0, "num_warps": warps} for warps in some]
    if arch.backend == "cuda" and problem.columns > LEAST_AHEAD:
        row = blocks(problem)[0] * DTYPES[problem.dtype].bytes * (1 + problem.has_residual)
        room = arch.shared_memory * ahead_warps(problem) // MOST_WARPS - _MEETING
        ahead = [n for n in AXES["AHEAD"] if n and n * row <= room]
        found += [{"AHEAD": n, "num_warps": ahead_warps(problem)} for n in ahead]
    return found


_MEETING = 16384
"""Bytes of shared memory in which lanes meet, at most."""


def ahead_warps(problem: Any) -> int:
    """Warps of a workgroup that loads rows ahead: all that an SM holds for rows that only they
    hold, half of them otherwise. On an H200 `layer_norm` of 12288 and of 8640 elements took 451 and
    508 µs with all of them in one workgroup, and 110 and 102 with two (benchmarks/results/
    operations_ahead_h200.json)."""
    return MOST_WARPS if MOST in blocks(problem) else MOST_WARPS // 2


def each_unit(config: Any) -> int:
    """Workgroups that an SM holds, of those that take rows in turns."""
    return MOST_WARPS // config.num_warps if config.AHEAD else 0


def prefers(problem: Any, config: Any) -> float:
    """As `_tiles.prefers_held`, with two rules more. Where every workgroup has several rows, those
    that two tiles hold are loaded ahead; of others too few were timed. And the rows that all SMs
    read in pieces at a time may fill half of L2, since as many results pass through it."""
    score = _tiles.prefers_held(problem, config)
    if config.HELD:
        workgroups = _SMS * MOST_WARPS // ahead_warps(problem)
        several = config.BLOCK in (TWO, MOST) and problem.rows > 2 * workgroups
        return score + (8.0 if several != bool(config.AHEAD) else 0.0)
    size = DTYPES[problem.dtype].bytes * (1 + problem.has_residual)
    # A workgroup of larger pieces has twice the registers for each lane.
    at_once = _SMS * _LANES // (32 * config.num_warps) * _tiles.PIECE // config.BLOCK
    under_way: float = min(problem.rows, at_once) * problem.columns * size
    return score + max(0.0, under_way / (_L2 / 2) - 1.0) * 16.0
