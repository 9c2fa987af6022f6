"""The order in which kernels should walk the tiles of C (`group_m`), where nothing was measured.

Workgroups with neighbouring numbers should read the same columns of B, which is the larger operand
where M is small: then L2 takes each line in once, and the others find it there or on its way. So a
group should hold all rows of tiles, and not leave a few of them over; where A and B are swapped,
groups should be narrow. Time over that in order 8, on H100s. Lines that end with a star are from
tunings of 2,400 products of 48 to 512 rows and of 120 of more rows, whose measurements are not
kept; the others are from benchmarks/results/gemm_orders_h100.json and gemm_orders_tall_h100.json:

    whole tiles, order 2; 3 to 8 rows of tiles, one wave         1.03 to 1.22 *
    whole tiles, order 1; 4 to 8 rows of tiles                   1.00 to 1.33
    whole tiles, order 16; 9 to 12 rows of tiles                 0.99 (0.92 to 1.02)
    whole tiles, order 16; 17 rows of tiles and more, 128x128    0.96 to 1.24 *
    swapped whole tiles, order 2; 3 to 8 rows of A's tiles       0.91 to 0.99 *
    swapped, K split, order 2                                    0.98 (0.84 to 1.13)
    clusters of two, order 2: plain, swapped                     0.97, 1.06 *

Nine rows of tiles and wide C gain most by order 16: of 35 kernels with 9 to 12 rows, some of which
were tried because they had been slow, it took 0.96 of the time of order 8 (0.86 to 1.01).

An H200, which has more of L2, tells orders apart less. In a tuning of 545 products of 65 to 2048
rows, whose measurements are not kept, time over that in order 8:

    swapped whole tiles, order 2; 3 to 8 rows of A's tiles       0.97 in one wave, 0.99 in more
    whole tiles, order 2; 3 to 8 rows of tiles                   1.03 in one wave, 1.10 in more
    whole tiles, order 16; 9 to 12 rows of tiles                 1.00 (0.83 to 1.10)
    whole tiles, order 2; 13 rows of tiles and more, one wave    0.97 (0.74 to 1.04)

The last is not in the rule: such products are left to the vendor's library, or have rows.

Two changes of the kernels did not help. In the first, neighbours had the same part of K of
different tiles, instead of different parts of one tile: the best order of each kernel took 1.02
times as long (0.57 to 1.22). In the second, groups were equally high, such as 5 and 4 rows of tiles
instead of 8 and 1: 0.98 for those 35 kernels, 1.00 where there are more rows. These and the figure
of 35 kernels came from scripts that are not kept.
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


def usual(config: GemmConfig, m: int) -> int:
    """The same of a kernel for `m` rows of A."""
    return usual_order(config.swap_ab, config.reduction, -(-m // config.tile_m))


def wider(m: int) -> tuple[int, ...]:
    """The heights of whole tiles for which `m` rows of A take `WIDER` groups."""
    return tuple(rows for rows in TALL if -(-m // rows) in OVER)
