"""Grouped GEMM of the MX formats, by matrix instructions that take the scales.

Idea. The walk of `basic`, and for each tile the sum of the GEMM kernel of the same name
(`tilewright.ops.gemm.kernels.mx`), which says what the compiler makes of it where.

Data movement and edges. Those of that kernel within a group. Rows of A may be gathered by a map,
and with them their scales: a row that the map does not mean is read as A's first row, and its sums
become zeros.

What limits it. With few rows an expert, memory: fp4 weights are a quarter of bf16's. On an H200 it
was right in every case of the tests; it was not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.gemm.kernels.mx import accumulate
from tilewright.ops.grouped_gemm.kernels.basic import write
from tilewright.ops.grouped_gemm.kernels.operands import scales_of_group
from tilewright.ops.grouped_gemm.kernels.places import columns_of, rows_of
from tilewright.ops.grouped_gemm.kernels.walk import cleared, find, group_rows, tile_ends


@triton.jit
def grouped_gemm_mx(
    a, b, c, table, m, n, k, lda, ldb, ldc, stride_b, groups, lead, zero_rest,
    row_map, rows_a, per_row, between, onward, extra, scales,
    FORM: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    B_ROW: tl.constexpr, MASK_K: tl.constexpr,
    TAKES: tl.constexpr, WIDTHS: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    SCALES: tl.constexpr, A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group. Arguments as in `basic`, and A_FORMAT, B_FORMAT as in the
    GEMM's kernel; `ld*` and `stride_b` of e2m1 count bytes."""
    if zero_rest != 0:
        cleared(c, ldc, 1, table, m, groups, lead, n // FOLD, FORM == "masked")
    GATHERED: tl.constexpr = FORM == "gathered"
    PAIRS: tl.constexpr = FOLD == 2 and not B_ROW
    A_SCALED: tl.constexpr = A_FORMAT != "fp16" and A_FORMAT != "bf16"
    ends, tiles = tile_ends(table, m, n, groups, lead, FORM, TILE_M, TILE_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        group, first = find(tile, ends)
        begin, rows = group_rows(table, group, m, lead, FORM == "masked")
        tile_m, tile_n = tile_coordinates(
            tile - first, tl.cdiv(rows, TILE_M), tl.cdiv(n, TILE_N), GROUP_M
        )
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        a_g = a
        if not GATHERED:
            a_g += begin.to(tl.int64) * lda
        b_g = b + group.to(tl.int64) * stride_b
        own_scales = scales_of_group(scales, begin, group, FORM, SCALES)
        in_a, there = rows_of(
            row, rows, row_map + begin if GATHERED else 0, rows_a, per_row, TILE_M, GATHERED
        )
        in_b = columns_of(col, n, between, onward, TILE_N, PAIRS)
        acc = accumulate(
            a_g, b_g, own_scales, in_a, in_b, k, lda, ldb, 0, k, TILE_M, TILE_N, TILE_K,
            True, B_ROW, MASK_K, A_SCALED, A_FORMAT, B_FORMAT,
        )  # fmt: skip
        if GATHERED:
            acc = tl.where(there[:, None], acc, 0.0)
        write(
            c + begin.to(tl.int64) * ldc, acc, extra, group, begin, rows, n, ldc, row, tile_n,
            TILE_M, TILE_N, True, TAKES, WIDTHS, FOLD, LARGEST, CHAIN, (),
        )  # fmt: skip
