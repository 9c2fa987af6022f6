"""Which tiles read rows: whole rows at once where registers hold them, else piece by piece."""

from __future__ import annotations

from typing import Any

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
USUAL_ELEMENTS = 8
"""Elements for each lane that are preferred until a measurement decides: 16 bytes of bf16."""


PIECE = 4096
"""Elements of a row that is not held: few enough that what a lane keeps of them, such as sums,
stays in registers. The second time a row is read, it is in L2."""


def block(columns: int) -> int:
    """The smallest block that holds a row, else `PIECE`."""
    return next((size for size in AXES["BLOCK"] if size >= columns), PIECE)


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile is one for rows of a problem: BLOCK as `block` says, and several rows
    only where one is held whole."""
    wanted = block(problem.columns)
    if wanted != config.BLOCK:
        return f"BLOCK = {config.BLOCK}, where rows of {problem.columns} take {wanted}"
    if (problem.columns <= config.BLOCK) != config.HELD:
        return f"HELD = {config.HELD} for rows of {problem.columns} in pieces of {config.BLOCK}"
    if config.ROWS > 1 and not config.HELD:
        return f"ROWS = {config.ROWS} for rows that are read in pieces"
    each = config.BLOCK * config.ROWS / (32 * config.num_warps)
    if each > LANE_ELEMENTS:
        return f"{each:.0f} elements for each lane"
    return True


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The only values of BLOCK and HELD that `fits` takes."""
    wanted = block(problem.columns)
    return {"BLOCK": (wanted,), "HELD": (problem.columns <= wanted,)}


def programs(problem: Any, config: Any) -> tuple[int]:
    """The grid: a workgroup for every ROWS rows."""
    return (-(-problem.rows // config.ROWS),)


def prefers(problem: Any, config: Any) -> float:
    """How many times a tile has more or fewer than `USUAL_ELEMENTS` for each lane."""
    each: float = config.BLOCK * config.ROWS / (32 * config.num_warps)
    return max(each / USUAL_ELEMENTS, USUAL_ELEMENTS / each)
