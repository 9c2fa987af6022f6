"""Which tiles move rows: a workgroup has a piece of a row, 16 bytes for each lane."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DTYPES

AXES: dict[str, tuple[Any, ...]] = {
    "BLOCK": (64, 128, 256, 512, 1024, 2048),
    "num_warps": (1, 2, 4, 8),
}
"""BLOCK: columns of a workgroup."""

LANE_BYTES = 16


def block(problem: Any, num_warps: int) -> int:
    """Columns of a workgroup of so many warps."""
    return int(32 * num_warps * LANE_BYTES // DTYPES[problem.dtype].bytes)


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile is one for rows of this length."""
    for axis, values in narrows(problem).items():
        if getattr(config, axis) not in values:
            return f"{axis} = {getattr(config, axis)}, where it may be {values}"
    wanted = block(problem, config.num_warps)
    return bool(wanted == config.BLOCK) or f"BLOCK = {config.BLOCK} of {config.num_warps} warps"


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The values of the axes that a problem is served with: pieces that are no longer than a row,
    and one of a single warp."""
    warps = [n for n in AXES["num_warps"] if n == 1 or block(problem, n) < 2 * problem.width]
    return {"BLOCK": tuple(block(problem, n) for n in warps), "num_warps": tuple(warps)}


def prefers(problem: Any, config: Any) -> int:
    """Four warps, or fewer where rows are short."""
    return int(abs(config.num_warps - 4))
