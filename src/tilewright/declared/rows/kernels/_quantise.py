"""Rows rounded to 8 bits, by a scale of the row, of 128 elements, or of the whole."""

import triton
import triton.language as tl

from tilewright.ops.device.epilogue import rounded
from tilewright.ops.device.rounding import largest, scale_of_block


@triton.jit
def narrow(values, DTYPE: tl.constexpr):
    """fp32 values in the type in which they are stored; 8 bits saturate. A limit that NaN passes is
    one instruction where comparison and choice are two, and of both signs one for both: rounding to
    8 bits is what SMs are limited by otherwise."""
    top: tl.constexpr = largest(DTYPE)
    if top == 0 or DTYPE.is_int8():
        return rounded(values, DTYPE, 0)
    return tl.clamp(values, -top, top, propagate_nan=tl.PropagateNan.ALL).to(DTYPE)


@triton.jit
def put(y, block_scales, values, row, there, start, columns, by, quant: tl.constexpr):
    """Store values of rows, from column `start` on, divided by `by`, or by the scale of each 128 of
    them, which is stored too. there: which rows there are [ROWS, 1]."""
    ROWS: tl.constexpr = values.shape[0]
    BLOCK: tl.constexpr = values.shape[1]
    if quant == "block":
        GROUPS: tl.constexpr = BLOCK // 128
        groups = values.reshape(ROWS, GROUPS, 128)
        scales = scale_of_block(tl.max(tl.abs(groups), 2), y.dtype.element_ty)
        values = (groups * (1.0 / scales)[:, :, None]).reshape(ROWS, BLOCK)
        group = start // 128 + tl.arange(0, GROUPS)[None, :]
        to = row[:, None] * (columns // 128) + group
        tl.store(block_scales + to, scales, there & (group < columns // 128))
    elif quant == "row":
        values = values * (1.0 / by)
    elif quant == "tensor":
        values = values / by
    column = start + tl.arange(0, BLOCK)[None, :]
    at = row[:, None] * columns + column
    tl.store(y + at, narrow(values, y.dtype.element_ty), there & (column < columns))
