"""Which tiles copy elements: rows of neighbours, or squares that are turned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.ops.powers import power_of_two

AT_ONCE = (16, 8, 4, 2, 1)
"""Elements that lie together on a side, at least: as many are moved at once, up to 16 bytes."""
MOST_AT_ONCE = AT_ONCE[0]
LANE_BYTES = 32
"""Bytes of each lane that are preferred until a measurement decides: two loads of 16."""
LINE_BYTES = 128
"""Neighbouring bytes that a tile should have on either side."""
MOST_PROGRAMS = 2**31 - 1
MOST_ROWS = 2**31 - 2**14
"""Rows that a kernel counts in 32 bits, with those of a last tile that are none."""
TILES = (1024, 2048, 4096, 8192)
"""Elements of a workgroup's tile."""
SIDE = 32
"""Fewest elements of a side of a tile that is turned, of a matrix that has as many."""
LONGEST = 1024
"""Most elements of a side."""


def of_rows(rows: int, columns: int) -> set[tuple[int, int]]:
    """Rows and columns of tiles that copy rows: longer pieces where rows are few."""
    found = set()
    for tile in TILES:
        down = min(max(1, tile // min(power_of_two(columns), LONGEST)), power_of_two(rows))
        found.add((down, min(tile // down, power_of_two(columns))))
    return found


def turned(rows: int, columns: int) -> set[tuple[int, int]]:
    """Rows and columns of tiles that are turned."""
    down, across = min(power_of_two(rows), LONGEST), min(power_of_two(columns), LONGEST)
    if down * across < TILES[1]:
        return {(down, across)}
    sides = [1 << i for i in range(LONGEST.bit_length())]
    return {
        (i, j)
        for i in sides
        for j in sides
        if min(SIDE, down) <= i <= down
        and min(SIDE, across) <= j <= across
        and i * j in TILES[1:]
        and (max(i, j) <= 2 * min(i, j) or min(i, j) < SIDE)
    }


def programs(counts: tuple[int, ...], tile: tuple[int, ...]) -> int:
    """Workgroups for `counts` elements in each dimension, of which a tile has `tile`."""
    return math.prod(-(-n // side) for n, side in zip(counts, tile, strict=True))


def narrowed(form: Mapping[str, Any], pairs: set[tuple[int, int]]) -> dict[str, tuple[Any, ...]]:
    """The values of axes that problems are served with: those of `form`, and the sides of tiles."""
    rows, columns = zip(*pairs, strict=True)
    found = {name: (value,) for name, value in form.items()}
    return {**found, "ROWS": tuple(sorted({*rows})), "COLUMNS": tuple(sorted({*columns}))}


def fits(
    config: Any, form: Mapping[str, Any], pairs: set[tuple[int, int]], programs: int
) -> bool | str:
    """Whether a config's axes are those of `form`, and its tile one of `pairs`."""
    said = formed(config, form, programs)
    if said is True and (config.ROWS, config.COLUMNS) not in pairs:
        return f"tiles of {config.ROWS} × {config.COLUMNS}"
    return said


def formed(config: Any, form: Mapping[str, Any], programs: int) -> bool | str:
    """Whether a config's axes are those of `form`."""
    for name, value in form.items():
        if getattr(config, name) != value:
            return f"{name} = {getattr(config, name)}, where this problem takes {value}"
    if programs > MOST_PROGRAMS:
        return "more workgroups than a grid has"
    return True


def far(
    elements: int, warps: int, dtype: str, *sides: tuple[int, str], usual: int = LANE_BYTES
) -> float:
    """How far a tile is from what is preferred: `usual` bytes for each lane, and lines of at least
    `LINE_BYTES` along each of `sides`, (elements, their type)."""
    lane = elements * DTYPES[dtype].bytes / (32 * warps)
    short = (max(1.0, LINE_BYTES / (n * DTYPES[of].bytes)) for n, of in sides)
    return max(lane / usual, usual / lane) * math.prod(short)
