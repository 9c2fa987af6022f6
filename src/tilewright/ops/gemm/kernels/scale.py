"""Block scales: a K step's products times their scales, shared by every GEMM kernel in Triton.

Idea. The products of one K step (TILE_K of K, which a rule keeps within one block of scales) have
one scale of A for each row and one of B for each column. They are summed by the matrix units on
their own, from zero, and then added to the fp32 accumulator times both scales. Where a tile lies
within one block, its scale is a scalar, and scalars and vectors over rows are multiplied with each
other before the tile, which then costs one multiply-add an element.

That also keeps sums of 8-bit products short: the matrix units of sm_89 and sm_90 hold about 14
bits of theirs.

What limits it. The multiply-adds run on the ordinary units while the matrix units wait, unless
another warp group keeps them busy: see `gluon_scaled`.

SCALES is ``"1x128,128x128"``: rows and K of A's block, K and columns of B's, 0x0 for an operand
that is not scaled. The run-time tuple `scales` has, for each that is, a pointer and two strides
in elements.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def size_of(blocks, operand, axis):
    """From SCALES: rows (axis 0) or columns of the block of A (operand 0) or B."""
    return int(blocks.split(",")[operand].split("x")[axis])


@triton.constexpr_function
def _covers(block, size):
    return block % size == 0


@triton.jit
def _load(
    scales, FIRST: tl.constexpr, along, across, size,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """Scales of a tile that begins at `along` of `size` rows (columns, if AXIS is 1): a vector, or
    a scalar where BLOCK covers all of its SIZE; `across` is its block along K."""
    step = scales[FIRST + 1 + AXIS]
    there = scales[FIRST] + across * scales[FIRST + 2 - AXIS]
    if _covers(BLOCK, SIZE):
        x = tl.load(there + along // BLOCK * step).to(tl.float32)
    else:
        at = along + tl.arange(0, SIZE)
        x = tl.load(there + at // BLOCK * step, mask=at < size, other=0.0).to(tl.float32)
    return x


@triton.jit
def scaled(partial, scales, row, col, k0, m, n, SCALES: tl.constexpr):
    """`partial`, the products of one K step at `k0` of the tile at (row, col), as fp32 and times
    the scales of both operands."""
    A_ROWS: tl.constexpr = size_of(SCALES, 0, 0)
    A_K: tl.constexpr = size_of(SCALES, 0, 1)
    B_K: tl.constexpr = size_of(SCALES, 1, 0)
    B_COLS: tl.constexpr = size_of(SCALES, 1, 1)
    TILE_M: tl.constexpr = partial.shape[0]
    TILE_N: tl.constexpr = partial.shape[1]
    factor = 1.0
    if A_ROWS > 0:
        x = _load(scales, 0, row, k0 // A_K, m, TILE_M, A_ROWS, 0)
        factor = x if _covers(A_ROWS, TILE_M) else x[:, None]
    out = partial.to(tl.float32)
    if B_COLS > 0:
        FIRST: tl.constexpr = 3 if A_ROWS > 0 else 0
        y = _load(scales, FIRST, col, k0 // B_K, n, TILE_N, B_COLS, 1)
        if _covers(B_COLS, TILE_N):
            factor = factor * y
        else:
            out = out * y[None, :]
    return out * factor
