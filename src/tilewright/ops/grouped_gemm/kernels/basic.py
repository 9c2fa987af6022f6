"""Grouped GEMM through pointers: every form, shape, layout, dtype and architecture.

Idea. As many workgroups as compute units walk the tiles of all groups (`walk`). For each tile the
pointers are moved to its group's matrices; the rest is a tile of an ordinary GEMM: K in steps of
TILE_K, software-pipelined over `num_stages`.

Form ``weights``. Every group has all of C's rows, and its own part of K: A and B are moved along K,
and a step's elements behind the group's end are zeros in both operands, since 0 times a NaN of the
next group is NaN. A ``contiguous`` product whose C is column-major is one of groups of columns,
turned round.

Data movement. Ordinary loads, which Triton turns into asynchronous copies to shared memory (sm_80
and later) or plain vector loads. Offsets within a group are 32-bit. The start of a group is a
64-bit offset, so the weights of all experts may take any amount of memory.

Gathered rows. A map says which row of A each row of a tile is; rows that it does not say are not
read. Each row is TILE_K elements that lie together, so the copies are those of rows in order.

Edges. Rows past a group's end wrap around to its beginning, and so do columns if they are B's outer
dimension: addresses stay inside the group, and the results are never stored. The innermost
dimensions are masked if MASK_N and MASK_K say so.

The limit is that of a GEMM's `basic`: addresses take issue slots. This is the only pipeline of the
``list`` form, because no tensor maps exist for the addresses of its matrices.
"""

import triton
import triton.language as tl

from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.rounding import BLOCK, scale_of_block
from tilewright.ops.device.scale import scales_of_step
from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.device.widen import widened
from tilewright.ops.grouped_gemm.kernels.operands import of_group, scales_of_group
from tilewright.ops.grouped_gemm.kernels.turned import added, added_scaled, sums, upright
from tilewright.ops.grouped_gemm.kernels.walk import (
    FIELDS,
    cleared,
    find,
    group_rows,
    tile_ends,
)


@triton.jit
def _sum(
    a, b, scales, m, n, k, lda, ldb, row, col, row_map, rows_a, per_row, between, onward,
    GATHERED: tl.constexpr, PAIRS: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    MASK_N: tl.constexpr, MASK_K: tl.constexpr, SCALES: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """The sum over K for the tile at (row, col) of one group's product, whose map of rows begins at
    `row_map`. PAIRS: columns that become one lie `between` apart, and `onward` from the next."""
    rows = row + tl.arange(0, TILE_M)
    cols = col + tl.arange(0, TILE_N)
    in_m = (rows < m)[:, None]
    in_n = (cols < n)[None, :]
    steps = tl.arange(0, TILE_K)
    from_a = tl.where(rows < m, rows, 0)
    in_b = tl.where(cols < n, cols, 0)
    if GATHERED:
        numbers = tl.load(row_map + rows, mask=rows < m, other=-1)
        there = (numbers >= 0) & (numbers < rows_a * per_row)
        from_a = tl.where(there, numbers, 0) // per_row
        in_m = there[:, None]
        a_ptrs = a + from_a.to(tl.int64)[:, None] * lda + steps[None, :]
        a_step = TILE_K
    elif A_ROW:
        a_ptrs = a + (rows % m)[:, None] * lda + steps[None, :]
        a_step = TILE_K
    else:
        a_ptrs = a + rows[:, None] + steps[None, :] * lda
        a_step = TILE_K * lda
    if B_ROW:
        b_ptrs = b + steps[:, None] * ldb + cols[None, :]
        b_step = TILE_K * ldb
    else:
        in_b = cols % n if MASK_N else cols
        if PAIRS:
            in_b = in_b % 2 * between + in_b // 2 * onward
        b_ptrs = b + steps[:, None] + in_b[None, :] * ldb
        b_step = TILE_K

    acc = sums(TILE_M, TILE_N, INT_ACC, TURNED)
    APART: tl.constexpr = GATHERED or PAIRS
    if SCALES != "":
        x, y = scales_of_step(
            scales, row, col, from_a, in_b, 0, m, n, APART, TILE_M, TILE_N, SCALES
        )
    for k0 in range(0, k, TILE_K):
        in_k = steps < k - k0
        if not A_ROW or GATHERED:
            a_tile = tl.load(
                a_ptrs, mask=in_m & (in_k[None, :] if MASK_K else True), other=0.0
            )  # fmt: skip
        elif MASK_K:
            a_tile = tl.load(a_ptrs, mask=in_k[None, :], other=0.0)
        else:
            a_tile = tl.load(a_ptrs)
        if B_ROW and MASK_N:
            b_tile = tl.load(
                b_ptrs, mask=in_n & (in_k[:, None] if MASK_K else True), other=0.0
            )  # fmt: skip
        elif MASK_K:
            b_tile = tl.load(b_ptrs, mask=in_k[:, None], other=0.0)
        else:
            b_tile = tl.load(b_ptrs)
        b_tile = widened(b_tile, a_tile)
        if SCALES != "":
            acc = added_scaled(acc, a_tile, b_tile, x, y, SCALES, PRECISION, TURNED)
            k1 = min(k0 + TILE_K, k - 1)
            x, y = scales_of_step(
                scales, row, col, from_a, in_b, k1, m, n, APART, TILE_M, TILE_N, SCALES
            )
        else:
            acc = added(acc, a_tile, b_tile, PRECISION, TURNED)
        a_ptrs += a_step
        b_ptrs += b_step
    return upright(acc, TURNED)


@triton.jit
def write(
    c, acc, extra, group, begin, rows, n, ldc, row, tile_n,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, C_ROW: tl.constexpr,
    TAKES: tl.constexpr, WIDTHS: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    CHAIN: tl.constexpr, quants,
):  # fmt: skip
    """The epilogue of a whole sum, and its tile of a group's C. The group has `rows` rows, and
    begins at row `begin` of all. quants: where the scales of blocks go, if C is rounded by them."""
    acc = apply(
        acc, of_group(extra, group, n, WIDTHS), begin + row, tile_n * TILE_N, begin + rows, n,
        CHAIN, TAKES, C_ROW, True, True,
    )  # fmt: skip
    out_rows = row + tl.arange(0, TILE_M)
    if len(quants) > 0:
        COUNT: tl.constexpr = TILE_N // FOLD // BLOCK
        blocks = acc.reshape(TILE_M, COUNT, BLOCK)
        by = scale_of_block(tl.max(tl.abs(blocks), 2), c.dtype.element_ty)
        acc = (blocks * (1.0 / by)[:, :, None]).reshape(TILE_M, TILE_N // FOLD)
        across = n // FOLD // BLOCK
        block = tile_n * COUNT + tl.arange(0, COUNT)
        to = quants[0] + (begin + out_rows).to(tl.int64)[:, None] * across + block[None, :]
        tl.store(to, by, mask=(out_rows < rows)[:, None] & (block < across)[None, :])
    out = rounded(acc, c.dtype.element_ty, LARGEST)
    out_cols = tile_n * (TILE_N // FOLD) + tl.arange(0, TILE_N // FOLD)
    if C_ROW:
        c_ptrs = c + out_rows[:, None] * ldc + out_cols[None, :]
    else:
        c_ptrs = c + out_rows[:, None] + out_cols[None, :] * ldc
    tl.store(c_ptrs, out, mask=(out_rows < rows)[:, None] & (out_cols < n // FOLD)[None, :])


@triton.jit
def grouped_gemm_basic(
    a, b, c, table, m, n, k, lda, ldb, ldc, stride_b, groups, lead, zero_rest,
    row_map, rows_a, per_row, between, onward, extra, scales, quants,
    FORM: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, WIDTHS: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    ELEMENTS: tl.constexpr, ELEMENTS_C: tl.constexpr, CHAIN: tl.constexpr,
    SCALES: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group.

    table: the offsets (from element `lead` on, the ends of groups), the counts, or a list's table
        (see `walk`).
    m: rows of A (``contiguous``) or of each group (``masked``, ``weights``).
    k: of ``weights``, K of all groups.
    row_map, rows_a, per_row: under ``gathered``, the number of A's row for each row of C, of
        `rows_a` rows that each are meant by `per_row` numbers.
    between, onward: where FOLD is 2 and B is column-major, from a column of B to the one that it
        makes one column of C with, and to the next pair.
    zero_rest: if not 0, rows of no group become 0; else they stay as they are.
    ELEMENTS, ELEMENTS_C: sizes and leading dimensions in a list's table are multiples of ELEMENTS
        (those of C: ELEMENTS_C).
    extra, TAKES, WIDTHS, CHAIN: see `operands` and the GEMM's `epilogue`; C has n / FOLD columns.
    scales, SCALES: see `operands` and `ops/device/scale.py`.
    TURNED: see `turned`.
    quants: (block_scales,) if C is rounded by blocks, [rows of C, columns of C / 128]; else ().
    """
    if FORM != "list":  # noqa: SIM102 (a constant, then an argument)
        if zero_rest != 0:
            cleared(
                c, ldc if C_ROW else 1, 1 if C_ROW else ldc, table, m, groups, lead, n // FOLD,
                FORM == "masked",
            )  # fmt: skip
    ends, tiles = tile_ends(table, m, n, groups, lead, FORM, TILE_M, TILE_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        group, first = find(tile, ends)
        if FORM == "list":
            at = table + group * FIELDS
            begin = 0
            # A promise belongs to the operation that makes a value; a function would lose it.
            rows = tl.load(at + 3).to(tl.int32)
            n_g = tl.multiple_of(tl.load(at + 4).to(tl.int32), ELEMENTS if B_ROW else 1)
            k_g = tl.load(at + 5).to(tl.int32)
            k_g = tl.multiple_of(k_g, ELEMENTS if A_ROW or not B_ROW else 1)
            lda_g = tl.multiple_of(tl.load(at + 6).to(tl.int32), ELEMENTS)
            ldb_g = tl.multiple_of(tl.load(at + 7).to(tl.int32), ELEMENTS)
            ldc_g = tl.multiple_of(tl.load(at + 8).to(tl.int32), ELEMENTS_C)
            a_g = a + tl.multiple_of(tl.load(at), ELEMENTS)
            b_g = b + tl.multiple_of(tl.load(at + 1), ELEMENTS)
            c_g = c + tl.multiple_of(tl.load(at + 2), ELEMENTS_C)
        elif FORM == "weights":
            begin_k, k_g = group_rows(table, group, k, lead, False)
            begin = group * m
            rows = m
            n_g = n
            lda_g = lda
            ldb_g = ldb
            ldc_g = ldc
            a_g = a + begin_k.to(tl.int64) * (1 if A_ROW else lda)
            b_g = b + begin_k.to(tl.int64) * (ldb if B_ROW else 1)
            c_g = c + group.to(tl.int64) * m * ldc
        else:
            begin, rows = group_rows(table, group, m, lead, FORM == "masked")
            n_g = n
            k_g = k
            lda_g = lda
            ldb_g = ldb
            ldc_g = ldc
            a_g = a
            if FORM != "gathered":
                a_g += begin.to(tl.int64) * (lda if A_ROW else 1)
            b_g = b + group.to(tl.int64) * stride_b
            c_g = c + begin.to(tl.int64) * (ldc if C_ROW else 1)
        tile_m, tile_n = tile_coordinates(
            tile - first, tl.cdiv(rows, TILE_M), tl.cdiv(n_g, TILE_N), GROUP_M
        )
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        own_scales = scales_of_group(scales, begin, group, FORM, SCALES)
        acc = _sum(
            a_g, b_g, own_scales, rows, n_g, k_g, lda_g, ldb_g, row, col,
            row_map + begin if FORM == "gathered" else 0, rows_a, per_row, between, onward,
            FORM == "gathered", FOLD == 2 and FORM != "list" and not B_ROW, TILE_M, TILE_N, TILE_K,
            A_ROW, B_ROW, PRECISION, INT_ACC, MASK_N, MASK_K or FORM == "weights", SCALES, TURNED,
        )  # fmt: skip
        write(
            c_g, acc, extra, group, begin, rows, n_g, ldc_g, row, tile_n, TILE_M, TILE_N, C_ROW,
            TAKES, WIDTHS, FOLD, LARGEST, CHAIN, quants,
        )  # fmt: skip
