"""Block scales: a K step's products times their scales; shared by the kernels of GEMM and of
grouped GEMM.

Idea. The products of one K step (TILE_K of K, which a rule keeps within one block of scales) have
one scale of A for each row and one of B for each column. The matrix units sum them alone, starting
from zero; the sum is then added to the fp32 accumulator times both scales. If a tile lies within
one block, its scale is a scalar. Scalars and vectors over rows are multiplied with each other
before the tile, which then costs one multiply-add an element.

This also keeps sums of 8-bit products short: the matrix units of sm_89 and sm_90 hold about 14 bits
of a sum.

Scales are read one K step ahead of their use, which hides part of the latency.

What limits it. The multiply-adds run on the ordinary units while the matrix units wait: on an H200
with fp8, 128x128 tiles and `tma`, this reaches about half of the rate without scales. A second warp
group can keep the matrix units busy meanwhile: see `gluon_scaled`.

SCALES is ``"1x128,128x128"``: rows and K of A's block, then K and columns of B's; 0x0 for an
operand without scales. The run-time tuple `scales` has a pointer and two strides in elements for
each operand with scales.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def size_of(blocks, operand, axis):
    """From SCALES: rows (axis 0) or columns of the block of A (operand 0) or B."""
    return int(blocks.split(",")[operand].split("x")[axis])


@triton.constexpr_function
def covers(block, size):
    """Whether a block consists of whole tiles of `size`, so that one scale serves each tile."""
    return block % size == 0


@triton.jit
def number(x):
    """Scales as fp32. e8m0 scales come as bytes with the value 2^(byte - 127), or NaN for 255."""
    if x.dtype == tl.uint8:
        # The byte is fp32's exponent, except that 0 and 255 have another meaning there.
        bits = x.to(tl.uint32) << 23
        bits = tl.where(x == 0, 0x00400000, tl.where(x == 255, 0x7FC00000, bits))
        out = bits.to(tl.uint32).to(tl.float32, bitcast=True)
    else:
        out = x.to(tl.float32)
    return out


@triton.jit
def _load(
    scales, FIRST: tl.constexpr, along, across, size,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """Scales of a tile that begins at `along` of `size` rows (columns, if AXIS is 1): a vector, or
    a scalar if BLOCK covers all of its SIZE. `across` is its block along K."""
    step = scales[FIRST + 1 + AXIS]
    there = scales[FIRST] + across * scales[FIRST + 2 - AXIS]
    if covers(BLOCK, SIZE):
        x = number(tl.load(there + along // BLOCK * step))
    else:
        at = along + tl.arange(0, SIZE)
        x = number(tl.load(there + at // BLOCK * step, mask=at < size, other=0))
    return x


@triton.jit
def load_scales(
    scales, row, col, k0, m, n,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """A's and B's scales of the K step at `k0` of the tile at (row, col), as factors that broadcast
    against it: fp32 columns, rows or scalars."""
    A_ROWS: tl.constexpr = size_of(SCALES, 0, 0)
    B_COLS: tl.constexpr = size_of(SCALES, 1, 1)
    x = 1.0
    y = 1.0
    if A_ROWS > 0:
        x = _load(scales, 0, row, k0 // size_of(SCALES, 0, 1), m, TILE_M, A_ROWS, 0)
        x = x if covers(A_ROWS, TILE_M) else x[:, None]
    if B_COLS > 0:
        FIRST: tl.constexpr = 3 if A_ROWS > 0 else 0
        y = _load(scales, FIRST, col, k0 // size_of(SCALES, 1, 0), n, TILE_N, B_COLS, 1)
        y = y if covers(B_COLS, TILE_N) else y[None, :]
    return x, y


@triton.jit
def scales_at(scales, rows, cols, k0, SCALES: tl.constexpr):
    """As `load_scales`, of a tile with any `rows` of A and `cols` of B, which lie inside."""
    A: tl.constexpr = 1 if size_of(SCALES, 0, 0) > 0 else 0
    x = 1.0
    y = 1.0
    if A > 0:
        at = rows // size_of(SCALES, 0, 0) * scales[1] + k0 // size_of(SCALES, 0, 1) * scales[2]
        x = number(tl.load(scales[0] + at))[:, None]
    if size_of(SCALES, 1, 1) > 0:
        FIRST: tl.constexpr = 3 * A
        at = cols // size_of(SCALES, 1, 1) * scales[FIRST + 2]
        at += k0 // size_of(SCALES, 1, 0) * scales[FIRST + 1]
        y = number(tl.load(scales[FIRST] + at))[None, :]
    return x, y


@triton.jit
def scales_of_step(
    scales, row, col, rows, cols, k0, m, n, APART: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """The scales of the K step at `k0` of the tile at (row, col); or, if its `rows` and `cols` are
    APART, of those."""
    if APART:
        x, y = scales_at(scales, rows, cols, k0, SCALES)
    else:
        x, y = load_scales(scales, row, col, k0, m, n, TILE_M, TILE_N, SCALES)
    return x, y


@triton.jit
def scaled(products, x, y, SCALES: tl.constexpr):
    """A K step's products, as fp32 and times the scales of both operands."""
    out = products.to(tl.float32)
    B_COLS: tl.constexpr = size_of(SCALES, 1, 1)
    if B_COLS > 0 and not covers(B_COLS, products.shape[1]):
        out = out * y * x
    else:
        out = out * (x * y)
    return out


@triton.jit
def _load_along(
    scales, FIRST: tl.constexpr, at, size, ks, k,
    BLOCK: tl.constexpr, K_BLOCK: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """Scales of rows `at` (columns, if AXIS is 1) at the places `ks` along K: [places, rows]."""
    rows = at // BLOCK * scales[FIRST + 1 + AXIS]
    there = scales[FIRST] + (ks // K_BLOCK * scales[FIRST + 2 - AXIS])[:, None] + rows[None, :]
    return number(tl.load(there, mask=(ks < k)[:, None] & (at < size)[None, :], other=0))


@triton.jit
def load_scales_along(
    scales, offs_m, offs_n, ks, m, n, k, TILE_N: tl.constexpr, SCALES: tl.constexpr
):  # fmt: skip
    """A's scales [places, rows of `offs_m`] and B's [places, columns of `offs_n`], or [places, 1]
    if a block of B covers the tile's TILE_N columns or B has none, at each place `ks` along K; 0
    behind the end of K."""
    A_ROWS: tl.constexpr = size_of(SCALES, 0, 0)
    B_COLS: tl.constexpr = size_of(SCALES, 1, 1)
    PLACES: tl.constexpr = ks.shape[0]
    x = tl.full((PLACES, 1), 1.0, tl.float32)
    y = tl.full((PLACES, 1), 1.0, tl.float32)
    if A_ROWS > 0:
        x = _load_along(scales, 0, offs_m, m, ks, k, A_ROWS, size_of(SCALES, 0, 1), 0)
    if B_COLS > 0:
        FIRST: tl.constexpr = 3 if A_ROWS > 0 else 0
        at = offs_n
        if covers(B_COLS, TILE_N):
            at = tl.min(offs_n, axis=0) + tl.arange(0, 1)
        y = _load_along(scales, FIRST, at, n, ks, k, B_COLS, size_of(SCALES, 1, 0), 1)
    return x, y
