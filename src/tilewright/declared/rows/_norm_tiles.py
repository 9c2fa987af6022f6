"""The tiles of norms: those of `_tiles`; two tiles that hold a row together; rows that are read
again for their result; for rows that are read in pieces, larger ones; and workgroups that take long
rows in turns and load the next ones ahead."""

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

AGAIN_ELEMENTS = (16, 48)
"""Elements of a row for each lane, at least and at most (of layer norms), where it is read again:
with fewer, an SM is full of lanes and has fewer bytes on their way to it."""

AGAIN_REGISTERS = (32, 40, 64)
"""Registers of a lane where rows are read again: an SM then has 64, 48 or 32 warps."""

NEAR_BYTES = 96 << 10
"""Bytes of rows that an SM reads again at a time, at most, so that its own cache still has them,
beside results that pass through it. On an H200 (benchmarks/results/operations_again_h200.json)
`rms_norm` of 8192 elements took 126.3 µs with 64 KB of them and 132.6 with 128, of 24128 elements
97.2, 98.5 and 118.7 with 94, 141 and 188."""

AXES: dict[str, tuple[Any, ...]] = {
    **_tiles.AXES,
    "BLOCK": (*_tiles.AXES["BLOCK"], TWO, MOST),
    "num_warps": (*_tiles.AXES["num_warps"], MOST_WARPS),
    "AGAIN": (False, True),
    "maxnreg": (0, *AGAIN_REGISTERS),
    "AHEAD": (0, 2, 1, 4),
}
"""As of `_tiles`. AGAIN: a row is read whole for its statistics, and again for its result, from the
SM's own cache, instead of staying in registers meanwhile. AHEAD: rows that a workgroup loads ahead
of the one that it norms, into shared memory; there are then as many workgroups as the GPU holds,
which take rows in turns. Without either, a workgroup reads every ROWS rows once."""

LEAST_LONG = 2048
"""Rows of more elements may be loaded ahead, or read again. Up to `MANY` a measurement decides."""

LEAST_COPIED = 4
"""Bytes that an asynchronous copy moves at least. Elements of 16 bits that lie by themselves are
loaded to registers instead, and no row is on its way meanwhile (99 registers in a build of
`layer_norm` of 9001 elements for sm_90, 57 of 9000). Nor are such rows read again: so many
addresses and masks spill (568 bytes of a lane in that build)."""

SHARED_BYTES = 96 << 10
"""Bytes of rows that each of two workgroups can have on their way to shared memory."""

FEW_LONG = 8
"""Rows for each SM, of those that only all its lanes hold, up to which four of them are loaded
ahead. An H200 took 10.1, 8.1, 11.4 and 25.2 µs for RMS norms of 375, 300, 500 and 1000 rows of
24128, 18432, 20480 and 22528 in bf16, and 11.0, 8.4, 13.0 and 26.3 where they were read again
(benchmarks/results/operations_few_h200.json); of 4096 rows reading again was faster."""

ENOUGH_BYTES = 64 << 10
"""Bytes of rows that an SM holds at a time, with which nothing is gained by loading ahead."""

LARGE_PIECE = 8192
"""Elements of the larger piece. Twice as large pieces keep as many bytes in flight with half as
many workgroups, so that half as many rows lie in L2 until they are read again."""

_SMS, _LANES, _REGISTERS, _L2 = 132, 2048, 65536, 50 * 2**20
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
    """As of `_tiles`, with these values of BLOCK; rows are loaded ahead, or read again, where they
    are long and one tile or two hold them."""
    long = config.HELD and problem.columns > LEAST_LONG and config.ROWS == 1
    at_once = config.alignment * DTYPES[problem.dtype].bytes
    if (config.AHEAD or config.AGAIN) and at_once < LEAST_COPIED:
        return f"rows in loads of {at_once} bytes are neither loaded ahead nor read again"
    if config.AGAIN:
        return _fits_again(problem, config, long)
    if config.AHEAD and not long:
        return f"AHEAD = {config.AHEAD} for rows of {problem.columns}"
    if config.AHEAD and config.num_warps != ahead_warps(problem):
        return f"{config.num_warps} warps for rows of {problem.columns} loaded ahead"
    if config.num_warps == MOST_WARPS and not config.AHEAD and config.BLOCK != MOST:
        return f"{config.num_warps} warps for rows of {problem.columns} one by one"
    return _tiles.fits_blocks(blocks(problem), problem, config)


def _fits_again(problem: Any, config: Any, long: bool) -> bool | str:
    if not long or config.AHEAD or problem.columns > config.BLOCK:
        return f"rows of {problem.columns} are not read again"
    if config.BLOCK not in blocks(problem) or config.num_warps not in again_warps(problem):
        return f"{config.num_warps} warps for rows of {problem.columns} that are read again"
    if problem.quant == "row":
        return "a row's largest value is that of results, which would be made twice"
    return True


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The only values of BLOCK, HELD and ROWS that `fits` takes."""
    found = _tiles.narrows_blocks(blocks(problem), problem)
    return {**found, "ROWS": found["ROWS"] or (1,)}


def together(problem: Any, arch: Arch) -> Sequence[Mapping[str, Any]]:
    """AGAIN, AHEAD and num_warps: rows are loaded ahead where copies to shared memory need no
    registers, and as many as it holds; they are read again where an SM's own cache holds
    several."""
    some = AXES["num_warps"] if MOST in blocks(problem) else _tiles.AXES["num_warps"]
    usual = {"AGAIN": False, "AHEAD": 0, "maxnreg": 0}
    found = [{**usual, "num_warps": warps} for warps in some]
    if arch.backend == "cuda" and problem.columns > LEAST_LONG:
        row = _row_bytes(problem, blocks(problem)[0])
        room = arch.shared_memory * ahead_warps(problem) // MOST_WARPS - _MEETING
        ahead = [n for n in AXES["AHEAD"] if n and n * row <= room]
        found += [{**usual, "AHEAD": n, "num_warps": ahead_warps(problem)} for n in ahead]
        found += [
            {**usual, "AGAIN": True, "num_warps": n, "maxnreg": _registers(problem, n)}
            for n in again_warps(problem)
        ]
    return found


_MEETING = 16384
"""Bytes of shared memory in which lanes meet, at most."""


def _row_bytes(problem: Any, columns: int) -> int:
    """Bytes of so many columns of a row, and of its residual's."""
    return int(columns * DTYPES[problem.dtype].bytes * (1 + problem.has_residual))


def again_warps(problem: Any) -> list[int]:
    """Warps of workgroups whose rows are read again, the fewest first."""
    least, most = AGAIN_ELEMENTS
    two = problem.family == "layer_norm" or MOST in blocks(problem)
    most = most if two else _tiles.LANE_ELEMENTS
    held = blocks(problem)[0] // 32
    taken = [warps for warps in AXES["num_warps"] if least * warps <= held <= most * warps]
    return [warps for warps in sorted(taken) if _fits_near(problem, warps)]


def _fits_near(problem: Any, warps: int) -> bool:
    """Whether an SM has several workgroups of so many warps that read rows again, and its own cache
    all of their rows, or all SMs all rows there are: then L2 has them."""
    row = _row_bytes(problem, problem.columns)
    at_once = _at_once(warps, _registers(problem, warps))
    near = at_once <= NEAR_BYTES / max(1, row)
    return at_once >= 2 and (near or problem.rows <= at_once * _SMS)


def _at_once(warps: int, registers: float) -> int:
    """Workgroups of so many warps that an SM has at a time."""
    return int(min(_LANES, _REGISTERS / registers) // (32 * warps))


def _registers(problem: Any, warps: int) -> int:
    """The fewest registers that hold what a lane has of a row that is read again: elements of 16
    bits as they lie, two in each; in fp32 those that a layer norm needs twice, and sums with a
    residual. Two tiles have masks and places of their own: with 32 registers, 24 elements of
    `rms_norm` spilled (a build for sm_90)."""
    each = blocks(problem)[0] // (32 * warps)
    lie = problem.family != "layer_norm" and not problem.has_residual
    needed = 16 + (each // 2 if lie and DTYPES[problem.dtype].bytes == 2 else each)
    if lie and blocks(problem)[0] == TWO:
        needed += 8
    return next(n for n in AGAIN_REGISTERS if n >= needed)


def _held_at_once(problem: Any) -> int:
    """Rows that an SM has at a time where the fewest warps hold them, a lane up to 32 elements. In
    builds for sm_90 (bf16, with weights) 24 and 32 of them took 56 and 62 registers, of layer norms
    64 and 80, with a residual 66 of 32."""
    block = blocks(problem)[0]
    some = sorted(AXES["num_warps"] if block == MOST else _tiles.AXES["num_warps"])
    warps = next(n for n in some if block <= 32 * _tiles.LANE_ELEMENTS * n)
    each = 1.9 if problem.family == "layer_norm" or problem.has_residual else 1.3
    return max(1, _at_once(warps, 20 + each * block / (32 * warps)))


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
    """As `_tiles.prefers_held`, with rules for where every SM has several rows (`_several`): they
    are read again, by the fewest warps, or loaded ahead, or held by the fewest warps, so that an SM
    has the most rows at a time, and of short ones two share what is loaded for each column. And the
    rows that all SMs read in pieces at a time may fill half of L2, since as many results pass
    through it."""
    several = problem.once(_several)
    usual = _tiles.LANE_ELEMENTS if several else _tiles.USUAL_ELEMENTS
    usual = usual if config.HELD else _tiles.USUAL_ELEMENTS // 2
    score = _tiles.prefers_held(problem, config, usual)
    if config.AGAIN:
        if several == "again":
            return float(config.num_warps / 64 - 2.0)
        return score + (1.125 if several else 8.0)
    if config.AHEAD:
        if several == "most ahead":
            return float(-config.AHEAD)
        return float(-1.0 if several == "ahead" else score + 8.0)
    if config.HELD:
        return score + (1.5 if several == "twos" and config.ROWS != 2 else 0.0)
    size = DTYPES[problem.dtype].bytes * (1 + problem.has_residual)
    # A workgroup of larger pieces has twice the registers for each lane.
    at_once = _SMS * _LANES // (32 * config.num_warps) * _tiles.PIECE // config.BLOCK
    under_way: float = min(problem.rows, at_once) * problem.columns * size
    return score + max(0.0, under_way / (_L2 / 2) - 1.0) * 16.0


def _several(problem: Any) -> str:
    """How rows are read untuned where every SM has several: ``again``, ``ahead`` (``most ahead``:
    as many as there is room for), ``once``, or ``twos``, by twos; "" for few rows, for short ones,
    and for those that are read in pieces.

    An SM is the busier the more workgroups it has: while one sums or stores, others load. So rows
    are read again where it then has more of them than if they were held (but two workgroups that
    load two rows ahead each have more than two that read theirs again), and loaded ahead where
    those that are held are fewer than `ENOUGH_BYTES`. RMS norms of the longest rows have most of
    them on their way where there are few for each SM (`FEW_LONG`). A layer norm of short rows is
    limited by instructions, of which two rows share some. What an H200 took of 35 problems is in
    benchmarks/results/operations_tiles_h200.json.
    """
    longest, held = max(blocks(problem)), _held_at_once(problem)
    if problem.rows <= (held if longest == MOST else max(2, held)) * _SMS:
        return ""
    if problem.columns > longest:
        return ""
    if problem.columns <= 2 * LEAST_LONG:
        if problem.family == "layer_norm" and problem.columns * problem.rows > 16 * _SMS * _LANES:
            return "twos"
        return "once" if problem.columns > LEAST_LONG else ""
    few = problem.rows <= FEW_LONG * _SMS and problem.family == "rms_norm"
    if few and longest == MOST and 4 * _row_bytes(problem, longest) <= 2 * SHARED_BYTES:
        return "most ahead"
    warps = again_warps(problem)
    if warps and problem.quant != "row":
        again = _at_once(warps[0], _registers(problem, warps[0]))
        if again > held and (again > 2 or longest == MOST):
            return "again"
    row = _row_bytes(problem, problem.columns)
    fits = longest == MOST or 2 * row <= SHARED_BYTES
    return "ahead" if longest > _tiles.MANY and fits and held * row < ENOUGH_BYTES else "once"
