"""Grouped GEMM with groups along K, through tensor descriptors (sm_90 and later).

Idea. The gradient of a mixture's weights: every group has a whole matrix of C, and its own part of
the sum, whose length is known on the device alone. The tiles are as many for every group, so a
tile's number says its group. Only the number of K steps is looked up.

Data movement. K is the outer dimension of both operands (layout ``crr``), as the rows of
activations and of their gradients lie: nothing is transposed in memory. A group begins at any row.
Its last step reaches into the rows of the next one, and both operands must be zeros there, since 0
times a NaN of another group is NaN. So both come through descriptors that end with the group
(`catalogue._ragged`): the copy engine fills the rest of the box with zeros, and no element is
masked in registers. C leaves through a descriptor with the group as a dimension.

Edges. A group without rows takes no step, and stores its zeros.

What limits it. With thousands of rows a group, it is a large GEMM; with few, writing C: a group's
matrix is written whatever its rows. The loop over K has another length for every tile, so Triton
does not flatten the two loops, and each tile waits for its first loads.
"""

import triton
import triton.language as tl

from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.grouped_gemm.kernels.operands import of_group
from tilewright.ops.grouped_gemm.kernels.walk import RAGGED_ROWS, group_rows


@triton.jit
def _store(
    c, acc, group, row, col, m, n, extra,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """Apply the epilogue to the tile at (row, col) of a group's matrix, and write it to C."""
    first = group * m
    acc = apply(acc, extra, first + row, col, first + m, n, CHAIN, TAKES, True, True, True)
    out = rounded(acc, c.dtype, LARGEST)
    if FOLD != 1:
        col = col // FOLD
    c.store([group, row, col], tl.reshape(out, (1, out.shape[0], out.shape[1])))


@triton.jit
def grouped_weights_tma(
    a, b, c, table, m, n, k, groups, lead, extra,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, WIDTHS: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr,
    SPLIT: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with a, b, c tensor descriptors.

    k: K of all groups together. Other arguments as in `basic`.
    """
    tiles_m = tl.cdiv(m, TILE_M)
    tiles_n = tl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    for tile in tl.range(tl.program_id(0), groups * each, tl.num_programs(0)):
        group = tile // each
        begin, size = group_rows(table, group, k, lead, False)
        tile_m, tile_n = tile_coordinates(tile % each, tiles_m, tiles_n, GROUP_M)
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        end = begin + size
        acc = tl.zeros((TILE_M, TILE_N), dtype=tl.int32 if INT_ACC else tl.float32)
        for k0 in range(0, size, TILE_K):
            at = RAGGED_ROWS - size + k0
            a_tile = tl.reshape(a.load([RAGGED_ROWS, end, at, row]), (TILE_K, TILE_M)).T
            b_tile = tl.reshape(b.load([RAGGED_ROWS, end, at, col]), (TILE_K, TILE_N))
            acc = tl.dot(a_tile, b_tile, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        own = of_group(extra, group, n, WIDTHS)
        if SPLIT:
            halves = tl.permute(tl.reshape(acc, (TILE_M, 2, TILE_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            middle = col + TILE_N // 2
            _store(c, left, group, row, col, m, n, own, TAKES, FOLD, LARGEST, CHAIN)
            _store(c, right, group, row, middle, m, n, own, TAKES, FOLD, LARGEST, CHAIN)
        else:
            _store(c, acc, group, row, col, m, n, own, TAKES, FOLD, LARGEST, CHAIN)
