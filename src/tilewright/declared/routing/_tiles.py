"""Which tiles hold whole rows of logits, several rows of a workgroup."""

from __future__ import annotations

from typing import Any

AXES: dict[str, tuple[Any, ...]] = {
    "BLOCK": (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    "ROWS": (1, 2, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8),
}
"""BLOCK: elements of a row with padding. ROWS: rows of a workgroup."""

MOST_COLUMNS = 8192
USUAL_ELEMENTS = 8
"""Elements for each lane that are preferred until a measurement decides."""
TILE = 2048
"""Elements of a tile of several rows, at most: 64 for each lane of one warp."""
FEW_PROGRAMS = 256
"""Workgroups that are preferred to larger tiles."""


def fits(wanted: int, problem: Any, config: Any) -> bool | str:
    """Whether a config's tile is one for rows that take `wanted` elements with padding."""
    for axis, values in narrows(wanted, problem).items():
        if getattr(config, axis) not in values:
            return f"{axis} = {getattr(config, axis)}, where it may be {values}"
    return True


def narrows(wanted: int, problem: Any) -> dict[str, tuple[Any, ...]]:
    """The values of the axes that rows of `wanted` elements with padding are served with."""
    rows = (n for n in AXES["ROWS"] if n == 1 or (n * wanted <= TILE and n <= problem.rows))
    warps = (1, 2, 4) if wanted <= TILE else (4, 8)
    return {"BLOCK": (wanted,), "ROWS": tuple(rows), "num_warps": warps}


def programs(problem: Any, config: Any) -> tuple[int]:
    """The grid: a workgroup for every ROWS rows."""
    return (-(-problem.rows // config.ROWS),)


def prefers(problem: Any, config: Any) -> tuple[float, int]:
    """How many times a tile has more or fewer than `USUAL_ELEMENTS` for each lane, and how many
    times fewer workgroups there are than could be; then more warps, up to four: an SM has room for
    32 workgroups, and for 64 warps. A row that fills a warp is by itself instead: of 256 experts in
    groups an H200 took 3.9 and 24.0 µs for 1024 and 16384 such rows, and 7.2 and 41.5 of four by
    four warps."""
    each = config.BLOCK * config.ROWS / (32 * config.num_warps)
    fills = config.BLOCK >= 32 * USUAL_ELEMENTS
    alone: int = config.ROWS if fills else -min(4, config.num_warps)
    few = min(FEW_PROGRAMS, problem.rows) / min(FEW_PROGRAMS, *programs(problem, config))
    return max(each / USUAL_ELEMENTS, USUAL_ELEMENTS / each) * few, alone


TOKENS = (1, 64, 1024, 16384)


def of_tokens(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Problems with these fields, of few to many tokens."""
    return [{"rows": rows, **fields} for rows in TOKENS]
