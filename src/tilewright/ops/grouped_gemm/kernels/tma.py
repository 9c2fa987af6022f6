"""Grouped GEMM through tensor descriptors: the copy engine moves the tiles (sm_90 and later).

Idea. As `basic`, but the bulk tensor copy engine (TMA) moves the tiles, for the forms whose
matrices lie in one tensor. The loops over tiles and over K are flattened into one, so that the
loads of the next tile, of any group, run during the epilogue of the current one.

Data movement. A is one matrix of all rows. A tile begins at any row, and results from the next
group's rows are never stored. B has three dimensions, the group first, so that K and N end
correctly in every group. C leaves through a descriptor that ends with the group: three of its
dimensions walk the rows (`launch._ragged` explains this), and the engine does not write past the
extent of the last dimension. So whole and partial tiles are stored in the same way.

Edges. The engine fills elements outside with zeros and does not write there; base addresses and
rows must be multiples of 16 bytes. Operands of an epilogue come through pointers, masked.

What limits it. With few rows an expert, memory; with thousands, it is an ordinary large GEMM.
Measured on an H200 in bf16 with skewed loads: 1.067 to 1.460 times the speed of torch._grouped_mm.
More measurements: docs/notes/grouped_gemm-gluon_ws.md.
"""

import triton
import triton.language as tl

from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.scale import load_scales
from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.grouped_gemm.kernels.operands import of_group, scales_of_group
from tilewright.ops.grouped_gemm.kernels.turned import added, added_scaled, sums, upright
from tilewright.ops.grouped_gemm.kernels.walk import (
    RAGGED_ROWS,
    cleared,
    find,
    group_rows,
    tile_ends,
)


@triton.jit
def _store(
    c, acc, begin, rows, row, col, n, extra,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Apply the epilogue to the tile at (row, col) of a group's `rows` rows from `begin` on, and
    write the tile to C."""
    acc = apply(
        acc, extra, begin + row, col, begin + rows, n, CHAIN, TAKES, True, True, True
    )  # fmt: skip
    out = rounded(acc, c.dtype, LARGEST)
    if FOLD != 1:
        col = col // FOLD
    at = [RAGGED_ROWS, begin + rows, RAGGED_ROWS - rows + row, col]
    c.store(at, tl.reshape(out, (1, 1, out.shape[0], out.shape[1])))


@triton.jit
def grouped_gemm_tma(
    a, b, c, table, m, n, k, groups, lead, c_rows, ldc, zero_rest, extra,
    scales,
    FORM: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, B_ROW: tl.constexpr, C_ROW: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, WIDTHS: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    SPLIT: tl.constexpr, CHAIN: tl.constexpr, SCALES: tl.constexpr,
    TURNED: tl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with a, b, c tensor descriptors. c_rows: a pointer to C. Other
    arguments as in `basic`."""
    if zero_rest != 0:
        cleared(c_rows, ldc, 1, table, m, groups, lead, n // FOLD, FORM == "masked")
    ends, tiles = tile_ends(table, m, n, groups, lead, FORM, TILE_M, TILE_N)
    tiles_n = tl.cdiv(n, TILE_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        group, first = find(tile, ends)
        begin, rows = group_rows(table, group, m, lead, FORM == "masked")
        tile_m, tile_n = tile_coordinates(tile - first, tl.cdiv(rows, TILE_M), tiles_n, GROUP_M)
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        acc = sums(TILE_M, TILE_N, INT_ACC, TURNED)
        own_scales = scales_of_group(scales, begin, group, FORM, SCALES)
        if SCALES != "":
            x, y = load_scales(own_scales, row, col, 0, rows, n, TILE_M, TILE_N, SCALES)
        for k0 in range(0, k, TILE_K):
            a_tile = a.load([begin + row, k0])
            if B_ROW:
                b_tile = tl.reshape(b.load([group, k0, col]), (TILE_K, TILE_N))
            elif FOLD == 2:  # gates and ups by turns
                b_tile = tl.reshape(b.load([group, col // 2, 0, k0]), (TILE_N, TILE_K)).T
            else:
                b_tile = tl.reshape(b.load([group, col, k0]), (TILE_N, TILE_K)).T
            if SCALES != "":
                acc = added_scaled(acc, a_tile, b_tile, x, y, SCALES, PRECISION, TURNED)
                k1 = min(k0 + TILE_K, k - 1)
                x, y = load_scales(own_scales, row, col, k1, rows, n, TILE_M, TILE_N, SCALES)
            else:
                acc = added(acc, a_tile, b_tile, PRECISION, TURNED)
        acc = upright(acc, TURNED)
        own = of_group(extra, group, n, WIDTHS)
        if SPLIT:
            halves = tl.permute(tl.reshape(acc, (TILE_M, 2, TILE_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            middle = col + TILE_N // 2
            _store(c, left, begin, rows, row, col, n, own, TAKES, FOLD, LARGEST, CHAIN)
            _store(c, right, begin, rows, row, middle, n, own, TAKES, FOLD, LARGEST, CHAIN)
        else:
            _store(c, acc, begin, rows, row, col, n, own, TAKES, FOLD, LARGEST, CHAIN)
