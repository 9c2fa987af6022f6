"""Grouped GEMM with operands of 4 bits, or a B of 8 beside an A of 16: converted in registers,
multiplied as fp16 or bf16.

Idea. The walk of `basic`, and for each tile the sum of the GEMM kernel of the same name
(`tilewright.ops.gemm.kernels.weights`), which explains the conversion, the scales and the units.

Data movement and edges. Those of that kernel within a group; gathered rows as in `mx`. Several
workgroups share a compute unit: instructions limit the kernel, and few warps issue few.

What limits it. Instructions: each expert's weights are unpacked once for each row of tiles. On an
H200 it was right in every case of the tests, with zero points too; it was not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.gemm.kernels.weights import accumulate
from tilewright.ops.grouped_gemm.kernels.basic import write
from tilewright.ops.grouped_gemm.kernels.operands import scales_of_group
from tilewright.ops.grouped_gemm.kernels.places import columns_of, rows_of
from tilewright.ops.grouped_gemm.kernels.walk import cleared, find, group_rows, tile_ends


@triton.jit
def grouped_gemm_weights(
    a, b, c, table, m, n, k, lda, ldb, ldc, stride_b, groups, lead, zero_rest,
    row_map, rows_a, per_row, between, onward, extra, scales, zeros,
    FORM: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    MASK_K: tl.constexpr,
    TAKES: tl.constexpr, WIDTHS: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    SCALES: tl.constexpr, ZEROS: tl.constexpr,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, BF16: tl.constexpr, ELEMENTWISE: tl.constexpr,
    PART: tl.constexpr, UNIT: tl.constexpr,
    A_WORDS: tl.constexpr, A_WORD: tl.constexpr, B_WORD: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with B, and perhaps A, of 4-bit elements, or B of 8 bits
    beside A of 16. Arguments as in `basic`, and from A_FORMAT on as in the GEMM's kernel; `ld*` and
    `stride_b` of packed operands count bytes. zeros, ZEROS: the zero points of B's blocks, their
    strides and the step from group to group."""
    if zero_rest != 0:
        cleared(c, ldc, 1, table, m, groups, lead, n // FOLD, FORM == "masked")
    GATHERED: tl.constexpr = FORM == "gathered"
    ELEMENT: tl.constexpr = a.dtype.element_ty
    FORMAT: tl.constexpr = ELEMENT if A_FORMAT == "" else A_FORMAT
    OF_B: tl.constexpr = b.dtype.element_ty if B_FORMAT == "" else B_FORMAT
    DTYPE: tl.constexpr = tl.bfloat16 if BF16 else tl.float16
    PAIRS: tl.constexpr = FOLD == 2
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
        own_zeros = zeros
        if ZEROS:
            own_zeros = (zeros[0] + group.to(tl.int64) * zeros[3], zeros[1], zeros[2])
        acc = accumulate(
            a_g, b_g, own_scales, own_zeros, in_a, in_b, tile_m, tile_n, rows, n, k, lda, ldb, 0, k,
            GATHERED or PAIRS, ZEROS, TILE_M, TILE_N, TILE_K, True, MASK_K, SCALES, FORMAT,
            OF_B, DTYPE, ELEMENTWISE, PART, UNIT, A_WORDS, A_WORD, B_WORD,
        )  # fmt: skip
        if GATHERED:
            acc = tl.where(there[:, None], acc, 0.0)
        write(
            c + begin.to(tl.int64) * ldc, acc, extra, group, begin, rows, n, ldc, row, tile_n,
            TILE_M, TILE_N, True, TAKES, WIDTHS, FOLD, LARGEST, CHAIN, (),
        )  # fmt: skip
