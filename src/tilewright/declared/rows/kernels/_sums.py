"""Partial sums over rows added up, in the order of the workgroups that made them."""

import triton
import triton.language as tl


@triton.jit
def added(partial, to, column, inside, columns, programs):
    acc = tl.zeros((16, 64), tl.float32)
    for start in range(0, programs, 16):
        one = start + tl.arange(0, 16)
        there = (one < programs)[:, None] & inside[None, :]
        at = one.to(tl.int64)[:, None] * columns + column[None, :]
        acc += tl.load(partial + at, there, 0.0)
    tl.store(to + column, tl.sum(acc, 0).to(to.dtype.element_ty), inside)


@triton.jit
def weights(dw_parts, dw, columns, programs):
    """64 columns of the gradient of a weight."""
    column = tl.program_id(0) * 64 + tl.arange(0, 64)
    added(dw_parts, dw, column, column < columns, columns, programs)


@triton.jit
def weights_and_bias(
    dw_parts, db_parts, dw, db, columns, programs, has_w: tl.constexpr, has_b: tl.constexpr
):
    """64 columns of the gradients of a weight and a bias."""
    column = tl.program_id(0) * 64 + tl.arange(0, 64)
    if has_w:
        added(dw_parts, dw, column, column < columns, columns, programs)
    if has_b:
        added(db_parts, db, column, column < columns, columns, programs)
