"""The largest value of a long row and the sum of its exponentials, in one read (Milakov and
Gimelshein, arXiv:1805.02867).

A row is read in pieces of BLOCK elements, as tiles [BLOCK // 16, 16 // VECTOR, VECTOR]. VECTOR
neighbours are what a lane reads at once. The compiler gives lanes the first dimension and leaves
the second to each lane, so that a lane keeps one maximum and one sum for 16 elements of a piece.
Lanes are joined once, behind the last piece: no piece waits for another lane.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def vector(dtype, alignment):
    """Elements that a lane reads at once: 16 bytes, where addresses and columns allow it."""
    most = 128 // dtype.primitive_bitwidth
    return alignment if alignment < most else most


@triton.jit
def piece(start, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """The columns of a piece."""
    lane = tl.arange(0, BLOCK // 16)[:, None, None]
    turn = tl.arange(0, 16 // VECTOR)[None, :, None]
    return start + (turn * (BLOCK // 16) + lane) * VECTOR + tl.arange(0, VECTOR)[None, None, :]


@triton.jit
def share(columns, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    """Of a row that SPLIT workgroups share: the row, this workgroup's number there, and its first
    piece and the one behind its last."""
    row = (tl.program_id(0) // SPLIT).to(tl.int64)
    part = tl.program_id(0) % SPLIT
    pieces = tl.cdiv(columns, BLOCK)
    return row, part, part * pieces // SPLIT, (part + 1) * pieces // SPLIT


@triton.jit
def base(most):
    """What exponentials are taken against: the largest value; 0 where there are only -inf."""
    return tl.where(most == -float("inf"), 0.0, most)


@triton.jit
def joined(most, total, values):
    """The maxima and the sums of lanes, with those of a further piece."""
    found = tl.maximum(most, tl.max(tl.max(values, 2), 1))
    against = base(found)
    powers = tl.exp(values - against[:, None, None])
    return found, total * tl.exp(most - against) + tl.sum(tl.sum(powers, 2), 1)


@triton.jit
def whole(most, total):
    """A row's base and sum, of those of its lanes."""
    against = base(tl.max(most, 0))
    return against, tl.sum(total * tl.exp(most - against), 0)
