"""Sums of a tile, upright or turned; shared by the grouped kernels in Triton.

Idea. Matrix instructions that read shared memory (wgmma) take 64 rows at least, and any multiple of
8 columns. A low tile is one of few rows of A: turned, its columns of B are the rows, and its rows
are the columns. Both operands then come from shared memory as they are. Upright, the compiler takes
instructions that read registers, and makes fp16 of every 8-bit float first.

Only the sums are turned while K is walked; what comes after them sees the tile upright.
"""

import triton
import triton.language as tl

from tilewright.ops.device.scale import scaled


@triton.jit
def sums(TILE_M: tl.constexpr, TILE_N: tl.constexpr, INT_ACC: tl.constexpr, TURNED: tl.constexpr):
    """Sums of a tile that nothing is added to yet."""
    KIND: tl.constexpr = tl.int32 if INT_ACC else tl.float32
    if TURNED:
        acc = tl.zeros((TILE_N, TILE_M), dtype=KIND)
    else:
        acc = tl.zeros((TILE_M, TILE_N), dtype=KIND)
    return acc


@triton.jit
def added(acc, a, b, PRECISION: tl.constexpr, TURNED: tl.constexpr):
    """`acc` and the products of a step's tiles."""
    if TURNED:
        out = tl.dot(tl.trans(b), tl.trans(a), acc, input_precision=PRECISION, out_dtype=acc.dtype)
    else:
        out = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    return out


@triton.jit
def added_scaled(
    acc, a, b, x, y, SCALES: tl.constexpr, PRECISION: tl.constexpr, TURNED: tl.constexpr
):  # fmt: skip
    """`acc` and the products of a step's tiles times their scales (see `ops/device/scale.py`)."""
    if TURNED:
        partial = tl.dot(tl.trans(b), tl.trans(a), input_precision=PRECISION)
        out = acc + tl.trans(scaled(tl.trans(partial), x, y, SCALES))
    else:
        out = acc + scaled(tl.dot(a, b, input_precision=PRECISION), x, y, SCALES)
    return out


@triton.jit
def upright(acc, TURNED: tl.constexpr):
    """The sums as a tile of C has them."""
    return tl.trans(acc) if TURNED else acc
