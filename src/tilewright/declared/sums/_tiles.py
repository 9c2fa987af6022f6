"""Which tiles reductions read: results by the elements that are reduced to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch.figures import DEVICE
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.powers import power_of_two

AXES: dict[str, tuple[Any, ...]] = {
    "COLUMNS": (False, True),
    "KEPT": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "BLOCK": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    "num_warps": (4, 8),
}
"""COLUMNS: whether neighbours in memory belong to different results; else the elements of one
result are neighbours. KEPT: results of a tile. BLOCK: elements of each of them in a tile."""

WIDE = (64, 256, 1024)
"""Results of a tile whose elements lie apart: 128 bytes of bf16, what a warp loads at once at most,
and what four warps do."""
LANE_ELEMENTS = 32
"""Elements of a tile for each lane, at most: each has a running result in a register."""
MOST = 2**31 - 2**13
"""What kernels count in 32 bits, at most: less than fits, since tiles reach beyond it."""
USUAL_ELEMENTS = 16
"""Elements for each lane that are preferred until a measurement decides: 32 bytes of bf16, so that
1024 lanes of an SM have 32 KiB in flight."""

_SMS, _LANES, _REGISTERS = 132, 2048, 65536
"""SMs of an H200, and what each holds (its data sheet)."""
_BYTES_PER_US = 4.8e6
_ISSUED_PER_US = 4 * 1755.0
"""Instructions that an SM issues: four in a cycle."""
_ISSUED_BY_ONE = 0.5 * 1755.0
"""Instructions of one warp in a microsecond: one in two cycles, since it waits for its results."""
_INSTRUCTIONS = 3.0
"""For each element: to convert it, to add it, and its share of the rest (read off builds for
sm_90). A load, its address and its mask are 10."""
_LATENCY_US = DEVICE.LATENCY_US
_START_US = 0.3
"""Before the first load, and after the last, which a workgroup waits for by itself (a guess)."""


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
    """A few sizes of tiles: as many elements as there are, within a tile's limits."""
    columns, block = by_columns(problem), min(4096, power_of_two(problem.near))
    if columns:
        kept = {min(one, power_of_two(problem.inner)) for one in WIDE}
        sizes = {min(block, max(1, size // one)) for size in (2048, 4096) for one in kept}
        return {"COLUMNS": (True,), "KEPT": sorted(kept), "BLOCK": sorted(sizes)}
    most = min(1024, power_of_two(problem.outer * problem.middle))
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
    if power_of_two(problem.near) < config.BLOCK:
        return f"BLOCK = {config.BLOCK} for {problem.near} elements"
    if power_of_two(problem.inner if columns else problem.outer * problem.middle) < config.KEPT:
        return f"KEPT = {config.KEPT} for fewer results"
    return True


def _lie(columns: bool) -> str:
    return "apart" if columns else "neighbours"


def prefers(problem: Any, config: Any) -> float:
    """How many times a tile has more or fewer than `USUAL_ELEMENTS` for each lane."""
    count = each(config)
    return max(count / USUAL_ELEMENTS, USUAL_ELEMENTS / count)


def pace(problem: Any, config: Any, parts: int, running: int) -> float:
    """About the microseconds in which `_SMS` SMs read the elements, to compare configs by.

    parts: workgroups that share the elements of a result. running: numbers that a lane keeps for
        each element of its tile.

    The busiest SM decides. It reads its bytes at its share of the bandwidth, but no faster than the
    loads of the workgroups that it holds at once arrive; and it issues their instructions.
    """
    size, lanes, one = DTYPES[problem.dtype].bytes, 32 * config.num_warps, each(config)
    vector = max(1, min(16 // size, config.alignment))
    alone = -(-tiles(problem, config) * parts // _SMS)
    turns = -(-pieces(problem, config) // parts)
    across = config.KEPT if config.COLUMNS else config.BLOCK
    lines = max(1.0, one / max(8 // vector, across / (vector * lanes)) / vector)
    lines = 0.0 if config.COLUMNS else lines
    registers = 20 + one * (running + size / 4) + 3 * lines
    held = max(1, min(_LANES // lanes, _REGISTERS // int(registers * lanes)))
    moved = problem.outer * problem.far * problem.middle * problem.near * problem.inner * size
    uneven = alone * _SMS / (tiles(problem, config) * parts)
    stream = moved / _BYTES_PER_US * uneven
    added = vector if config.COLUMNS and across < vector * lanes else lines
    issued = 150 + 25 * added + turns * (one * _INSTRUCTIONS + 10 * one / vector)
    by_itself = _START_US + turns * _LATENCY_US + issued / _ISSUED_BY_ONE
    arrival = max(1.0, alone / held) * by_itself
    issue = alone * config.num_warps * issued / _ISSUED_PER_US
    return float(physics.together_us(issue, physics.together_us(stream, arrival)))


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
