"""Partial sums over rows added up, in the order of the workgroups that made them.

A workgroup adds up 32 columns, 128 bytes of each partial sum, of 128 sums at a time: reading them
is a matter of latency, and the more of them are on their way the better. Times: docs/operations.md.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit
def added(partial, to, column, inside, columns, programs):
    acc = tl.zeros((128, 32), tl.float32)
    for start in range(0, programs, 128):
        one = start + tl.arange(0, 128)
        there = (one < programs)[:, None] & inside[None, :]
        at = one.to(tl.int64)[:, None] * columns + column[None, :]
        acc += tl.load(partial + at, there, 0.0)
    tl.store(to + column, tl.sum(acc, 0).to(to.dtype.element_ty), inside)


@triton.jit
def weights(dw_parts, dw, columns, programs, DEPENDENT: tl.constexpr):
    """32 columns of the gradient of a weight."""
    if DEPENDENT:
        gdc_wait()
    column = tl.program_id(0) * 32 + tl.arange(0, 32)
    added(dw_parts, dw, column, column < columns, columns, programs)


@triton.jit
def weights_and_bias(
    dw_parts, db_parts, dw, db, columns, programs, has_w: tl.constexpr, has_b: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """32 columns of the gradients of a weight and a bias."""
    if DEPENDENT:
        gdc_wait()
    column = tl.program_id(0) * 32 + tl.arange(0, 32)
    if has_w:
        added(dw_parts, dw, column, column < columns, columns, programs)
    if has_b:
        added(db_parts, db, column, column < columns, columns, programs)
