"""Which tiles read rows: whole rows at once where registers hold them, else piece by piece."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DTYPES

AXES: dict[str, tuple[Any, ...]] = {
    "BLOCK": (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "ROWS": (1, 2, 4, 8, 16),
    "HELD": (True, False),
    "num_warps": (4, 8, 16),
}
"""BLOCK: elements of a row that are read at once. ROWS: rows of a workgroup. HELD: a row is read
once, whole, and held in registers; else it is read in pieces, as often as its values are needed."""

LANE_ELEMENTS = 32
"""Elements of a tile for each lane, at most: beyond them registers spill (seen in builds for sm_90
of a row in fp32 with a weight)."""
USUAL_ELEMENTS = 16
"""Elements for each lane that are preferred until a measurement decides: two loads of 16 bytes of
bf16. With 8, twice as many warps meet at each sum, and an SM has half as many workgroups, so fewer
of them load while others sum. Of 212 problems of norms, their gradients, softmax, losses and
rounding that were tuned on an H200 (the shipped tables), 8 or fewer were best in 25."""


LEAST_TOGETHER = 4
"""Bytes of a row that lie together, so that a lane loads them at once."""
FEW_PROGRAMS = 528
"""Workgroups that are preferred to several rows in each, four for each SM of an H200. 517 rows of
832 elements took 2.20 µs by twos, compiled torch 2.15; in another run 2.15 one by one, and 2.24."""

PIECE = 4096
"""Elements of a piece, where a row is read in pieces. A lane keeps several values for each of its
elements, sums among them, so pieces are small enough for registers."""

MANY = 8192
"""Elements of a row of which a workgroup that holds it takes most registers of an SM."""


def block(columns: int) -> int:
    """The smallest block that holds a row, else `PIECE`."""
    return next((size for size in AXES["BLOCK"] if size >= columns), PIECE)


def blocks(columns: int) -> tuple[int, ...]:
    """The values that BLOCK may have: `block`, and `PIECE` where a row that could be held takes so
    many registers that few workgroups fit on an SM. Tuning decides there."""
    held = block(columns)
    return (held, PIECE) if held > MANY else (held,)


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile is one for rows of a problem: BLOCK is one of `blocks`, and there are
    several rows only where they are held whole."""
    return fits_blocks(blocks(problem.columns), problem, config)


def fits_blocks(allowed: tuple[int, ...], problem: Any, config: Any) -> bool | str:
    """The same, with these values of BLOCK."""
    if config.BLOCK not in allowed:
        return f"BLOCK = {config.BLOCK}, where rows of {problem.columns} take {allowed[0]}"
    if (problem.columns <= config.BLOCK) != config.HELD:
        return f"HELD = {config.HELD} for rows of {problem.columns} in pieces of {config.BLOCK}"
    if config.ROWS > 1 and not config.HELD:
        return f"ROWS = {config.ROWS} for rows that are read in pieces"
    each = config.BLOCK * config.ROWS / (32 * config.num_warps)
    if each > LANE_ELEMENTS:
        return f"{each:.0f} elements for each lane"
    return True


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The only values of BLOCK, HELD and ROWS that `fits` takes."""
    return narrows_blocks(blocks(problem.columns), problem)


def narrows_blocks(allowed: tuple[int, ...], problem: Any) -> dict[str, tuple[Any, ...]]:
    """The same, with these values of BLOCK."""
    held = tuple(dict.fromkeys(problem.columns <= one for one in allowed))
    most = LANE_ELEMENTS * 32 * max(AXES["num_warps"]) // allowed[0] if held[0] else 1
    return {"BLOCK": allowed, "HELD": held, "ROWS": tuple(n for n in AXES["ROWS"] if n <= most)}


def programs(problem: Any, config: Any) -> tuple[int]:
    """The grid: a workgroup for every ROWS rows."""
    return (-(-problem.rows // config.ROWS),)


def far(config: Any, usual: int) -> float:
    """How many times a tile has more or fewer than `usual` elements for each lane, or than half as
    many of 16 bits that lie by themselves: each is a load of its own, whose address takes registers
    (123 for 32 such elements of `rms_norm` in a build for sm_90, 62 for elements in eights)."""
    each: float = config.BLOCK * config.ROWS / (32 * config.num_warps)
    apart = config.alignment * DTYPES[config.dtype].bytes < LEAST_TOGETHER
    wanted = usual / 2 if apart else usual
    return max(each / wanted, wanted / each)


def prefers(problem: Any, config: Any, usual: int = USUAL_ELEMENTS) -> float:
    """The same, and how many times fewer workgroups there are than rows, up to `FEW_PROGRAMS`."""
    rows = max(1, problem.rows)
    few: float = min(FEW_PROGRAMS, rows) / min(FEW_PROGRAMS, rows / config.ROWS)
    return far(config, usual) * few


def prefers_held(problem: Any, config: Any, usual: int = USUAL_ELEMENTS) -> float:
    """The same, and rows that are held before rows in pieces."""
    return prefers(problem, config, usual) + (0.0 if config.HELD else 16.0)
