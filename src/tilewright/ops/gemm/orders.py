"""The order in which kernels should walk the tiles of C (`group_m`), where nothing was measured.

Workgroups with neighbouring numbers should read the same columns of B, which is the larger operand
where M is small: then L2 takes each line in once, and the others find it there or on its way. So a
group should hold all rows of tiles, and not leave a few of them over; where A and B are swapped,
groups should be narrow. What each order takes, by kind of tile: docs/notes/gemm-orders.md.
"""

from __future__ import annotations

from tilewright.ops.gemm.config import GemmConfig

WIDER, WIDE, NARROW = 16, 8, 2
OVER = range(WIDE + 1, 13)
"""Rows of tiles of which an order of `WIDE` leaves too few over."""
TALL = (64, 128, 192, 256)
"""Rows of whole tiles."""


def usual_order(swap_ab: bool, reduction: str, tiles_m: int = 1) -> int:
    """The `group_m` that was mostly the fastest for kernels with these fields and so many rows of
    tiles."""
    if swap_ab != (reduction == "cluster"):
        return NARROW
    return WIDER if reduction == "none" and tiles_m in OVER else WIDE


def usual(config: GemmConfig, tiles_m: int) -> int:
    """`usual_order` of a kernel."""
    return usual_order(config.swap_ab, config.reduction, tiles_m)


def wider(m: int) -> tuple[int, ...]:
    """The heights of whole tiles for which `m` rows of A take `WIDER` groups."""
    return tuple(rows for rows in TALL if -(-m // rows) in OVER)
