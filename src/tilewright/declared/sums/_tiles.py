"""Which tiles reductions read: results by the elements that are reduced to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

AXES: dict[str, tuple[Any, ...]] = {
    "COLUMNS": (False, True),
    "KEPT": (1, 2, 4, 8, 16, 32, 64, 128),
    "BLOCK": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "num_warps": (4, 8),
}
"""COLUMNS: whether neighbours in memory belong to different results; else the elements of one
result are neighbours. KEPT: results of a tile. BLOCK: elements of each of them in a tile."""

LANE_ELEMENTS = 32
"""Elements of a tile for each lane, at most: each has a running result in a register."""
MOST = 2**31 - 2**13
"""What kernels count in 32 bits, at most: less than fits, since tiles reach beyond it."""
USUAL_ELEMENTS = 16
"""Elements for each lane that are preferred until a measurement decides: 32 bytes of bf16, so that
1024 lanes of an SM have 32 KiB in flight."""


def up(count: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, count - 1).bit_length()


def by_columns(problem: Any) -> bool:
    """Whether the elements of one result lie apart."""
    return bool(problem.inner > 1 or (problem.near > 1 and problem.near_stride > 1))


def tiles(problem: Any, config: Any) -> int:
    """Tiles that all results take."""
    groups = problem.outer * problem.middle
    if config.COLUMNS:
        return int(groups * -(-problem.inner // config.KEPT))
    return int(-(-groups // config.KEPT))


def pieces(problem: Any, config: Any) -> int:
    """Tiles that the elements of one result take."""
    return int(problem.far * -(-problem.near // config.BLOCK))


def each(config: Any) -> float:
    """Elements of a tile for each lane."""
    return float(config.KEPT * config.BLOCK / (32 * config.num_warps))


def narrows(problem: Any) -> Mapping[str, Sequence[Any]]:
    """Two or three sizes of tiles: as many elements as there are, within a tile's limits."""
    columns, block = by_columns(problem), min(4096, up(problem.near))
    if columns:
        kept = min(64, up(problem.inner))
        several: Sequence[int] = (kept,) if problem.inner <= kept else (kept, 2 * kept)
        return {
            "COLUMNS": (True,),
            "KEPT": several,
            "BLOCK": tuple(dict.fromkeys(min(block, size // kept) for size in (2048, 4096))),
        }
    most = min(128, up(problem.outer * problem.middle))
    several = [max(1, min(most, size // block)) for size in (1024, 2048, 4096)]
    return {
        "COLUMNS": (False,),
        "KEPT": tuple(dict.fromkeys(several)),
        "BLOCK": (block,) if block < 4096 else (2048, 4096),
    }


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile is one for a problem."""
    columns = by_columns(problem)
    if columns != config.COLUMNS:
        return f"COLUMNS = {config.COLUMNS}, where elements of one result are {_lie(columns)}"
    if each(config) > LANE_ELEMENTS:
        return f"{each(config):.0f} elements for each lane"
    if up(problem.near) < config.BLOCK:
        return f"BLOCK = {config.BLOCK} for {problem.near} elements"
    if up(problem.inner if columns else problem.outer * problem.middle) < config.KEPT:
        return f"KEPT = {config.KEPT} for fewer results"
    return True


def _lie(columns: bool) -> str:
    return "apart" if columns else "neighbours"


def prefers(problem: Any, config: Any) -> float:
    """How many times a tile has more or fewer than `USUAL_ELEMENTS` for each lane."""
    count = each(config)
    return max(count / USUAL_ELEMENTS, USUAL_ELEMENTS / count)


def multiples(config: Any) -> tuple[str, ...]:
    """What aligned kernels take for multiples of 16: strides that are not 1, and the number of
    neighbours in memory, which masks end at."""
    strides = ("outer_stride", "far_stride", "middle_stride")
    return (*strides, "near_stride", "inner") if config.COLUMNS else (*strides, "near")


def refused(problem: Any) -> str:
    """Why sizes are too large for kernels that count in 32 bits; "" if they are not."""
    if problem.far * problem.near > MOST:
        return f"{problem.far * problem.near} elements for each result; at most {MOST}"
    if problem.outer * problem.middle * problem.inner > MOST:
        return f"{problem.outer * problem.middle * problem.inner} results; at most {MOST}"
    return ""
