"""Grouped GEMM of gathered rows, B and C through tensor descriptors (sm_90 and later).

Idea. That of `tma`, but rows of A lie anywhere, and the copy engine gathers none: threads copy
them, as in `basic`. With few rows for each group B is nearly all that is read, and the engine's
copies of B take no issue slots.

Edges. Rows that the map does not mean, and those behind the group's end, are not read; zeros stand
for them. Of C as in `tma`.

What limits it. With few rows, memory. A kernel of this kind without a walk took 0.92 to 1.01 of
the time of one with pointers alone, in first products of eight layers of few tokens on an H200
(docs/notes/moe-layers.md).
"""

import triton
import triton.language as tl

from tilewright.ops.device.scale import scales_at
from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.grouped_gemm.kernels.operands import of_group, scales_of_group
from tilewright.ops.grouped_gemm.kernels.tma import store_tile
from tilewright.ops.grouped_gemm.kernels.turned import added, added_scaled, sums, upright
from tilewright.ops.grouped_gemm.kernels.walk import cleared, find, group_rows, tile_ends


@triton.jit
def grouped_gathered_tma(
    a, b, c, table, m, n, k, lda, groups, lead, c_rows, ldc, zero_rest,
    row_map, rows_a, per_row, extra, scales,
    FORM: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    B_ROW: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr, MASK_K: tl.constexpr,
    TAKES: tl.constexpr, WIDTHS: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    SPLIT: tl.constexpr, CHAIN: tl.constexpr, SCALES: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, whose rows of A the map says, with b and c tensor descriptors
    and a a pointer. Other arguments as in `basic` and `tma`."""
    if zero_rest != 0:
        cleared(c_rows, ldc, 1, table, m, groups, lead, n // FOLD, False)
    ends, tiles = tile_ends(table, m, n, groups, lead, FORM, TILE_M, TILE_N)
    tiles_n = tl.cdiv(n, TILE_N)
    steps = tl.arange(0, TILE_K)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        group, first = find(tile, ends)
        begin, rows = group_rows(table, group, m, lead, False)
        tile_m, tile_n = tile_coordinates(tile - first, tl.cdiv(rows, TILE_M), tiles_n, GROUP_M)
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        at = row + tl.arange(0, TILE_M)
        numbers = tl.load(row_map + begin + at, mask=at < rows, other=-1)
        there = (numbers >= 0) & (numbers < rows_a * per_row)
        from_a = tl.where(there, numbers, 0) // per_row
        a_ptrs = a + from_a.to(tl.int64)[:, None] * lda + steps[None, :]
        columns = tl.minimum(col + tl.arange(0, TILE_N), n - 1)
        acc = sums(TILE_M, TILE_N, INT_ACC, TURNED)
        own_scales = scales_of_group(scales, begin, group, FORM, SCALES)
        if SCALES != "":
            x, y = scales_at(own_scales, from_a, columns, 0, SCALES)
        for k0 in range(0, k, TILE_K):
            in_a = there[:, None]
            if MASK_K:
                in_a &= (steps < k - k0)[None, :]
            a_tile = tl.load(a_ptrs + k0, mask=in_a, other=0.0)
            if B_ROW:
                b_tile = tl.reshape(b.load([group, k0, col]), (TILE_K, TILE_N))
            elif FOLD == 2:  # gates and ups by turns
                b_tile = tl.reshape(b.load([group, col // 2, 0, k0]), (TILE_N, TILE_K)).T
            else:
                b_tile = tl.reshape(b.load([group, col, k0]), (TILE_N, TILE_K)).T
            if SCALES != "":
                acc = added_scaled(acc, a_tile, b_tile, x, y, SCALES, PRECISION, TURNED)
                k1 = min(k0 + TILE_K, k - 1)
                x, y = scales_at(own_scales, from_a, columns, k1, SCALES)
            else:
                acc = added(acc, a_tile, b_tile, PRECISION, TURNED)
        acc = upright(acc, TURNED)
        own = of_group(extra, group, n, WIDTHS)
        if SPLIT:
            halves = tl.permute(tl.reshape(acc, (TILE_M, 2, TILE_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            middle = col + TILE_N // 2
            store_tile(c, left, begin, rows, row, col, n, own, TAKES, FOLD, LARGEST, CHAIN)
            store_tile(c, right, begin, rows, row, middle, n, own, TAKES, FOLD, LARGEST, CHAIN)
        else:
            store_tile(c, acc, begin, rows, row, col, n, own, TAKES, FOLD, LARGEST, CHAIN)
