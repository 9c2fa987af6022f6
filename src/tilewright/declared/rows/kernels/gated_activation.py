"""Gated activations of rows, with rounding to 8 bits behind them.

Idea. A workgroup has a piece of a row, or several short rows: it reads the piece of both halves and
writes that of the result. Interleaved halves are read as one piece of twice the width, so that
loads stay wide, and are split in registers. Rounding by row needs the row's largest value, so a
workgroup then has whole rows. A row that registers hold is read once. A longer row is read twice:
for its largest value, and for the result.

What limits it: memory, and instructions: 22 for each element of SwiGLU on sm_90 (counted). Each
lane takes 16 elements where there are enough, so that both halves are on their way at once. Times
on an H200, and counts: docs/notes/declared-rows.md.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._quantise import put
from tilewright.ops.device.division import quotient
from tilewright.ops.device.epilogue import gelu, gelu_tanh, relu
from tilewright.ops.device.rounding import scale_of_block
from tilewright.ops.device.sigmoid import sigmoid


@triton.jit
def halves(
    x, up, row, there, start, columns, x_stride, up_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    has_up: tl.constexpr, interleaved: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of both halves from column `start` on, in fp32; 0 outside."""
    from_x = x + row[:, None] * x_stride
    if interleaved:
        at = 2 * start + tl.arange(0, 2 * BLOCK)
        inside = there & (at < 2 * columns)[None, :]
        both = tl.load(from_x + at[None, :], inside, 0.0).to(tl.float32)
        a, b = tl.split(both.reshape(ROWS, BLOCK, 2))
    else:
        column = start + tl.arange(0, BLOCK)
        inside = there & (column < columns)[None, :]
        a = tl.load(from_x + column[None, :], inside, 0.0).to(tl.float32)
        if has_up:
            from_up = up + row[:, None] * up_stride
        else:
            from_up = from_x + columns
        b = tl.load(from_up + column[None, :], inside, 0.0).to(tl.float32)
    return a, b


@triton.jit
def gated(a, b, limit, alpha, shift, gate: tl.constexpr):
    """The activation of one half, times the other."""
    z = alpha * tl.minimum(a, limit, propagate_nan=tl.PropagateNan.ALL)
    if gate == "silu":
        found = z * sigmoid(z)
    elif gate == "gelu":
        found = gelu(z)
    elif gate == "gelu_tanh":
        found = gelu_tanh(z)
    elif gate == "relu":
        found = relu(z)
    else:
        found = sigmoid(z)
    b = tl.minimum(b, limit, propagate_nan=tl.PropagateNan.ALL)
    b = tl.maximum(b, -limit, propagate_nan=tl.PropagateNan.ALL)
    return found * (1.0 / alpha) * (b + shift)


@triton.jit
def gated_activation(
    x, up, scale, y, row_scales, block_scales, rows, columns, x_stride, up_stride, limit, alpha,
    shift, by_pieces, shift_pieces, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr,
    has_up: tl.constexpr, gate: tl.constexpr, interleaved: tl.constexpr, quant: tl.constexpr,
):  # fmt: skip
    """ROWS rows, of which BLOCK columns, unless results are rounded by row."""
    program = tl.program_id(0)
    start = 0
    if quant != "row":
        above = quotient(program, by_pieces, shift_pieces)
        start = (program - above * tl.cdiv(columns, BLOCK)) * BLOCK
        program = above
    row = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    by = 1.0
    if quant == "tensor":
        by = tl.load(scale)
    if HELD:
        a, b = halves(
            x, up, row, there, start, columns, x_stride, up_stride, ROWS, BLOCK, has_up, interleaved
        )
        values = gated(a, b, limit, alpha, shift, gate)
        if quant == "row":
            # Beyond the last column a and b are 0, and sigmoid's values there are not.
            inside = there & (start + tl.arange(0, BLOCK) < columns)[None, :]
            most = tl.max(tl.where(inside, tl.abs(values), 0.0), 1)
            scales = scale_of_block(most, y.dtype.element_ty)
            tl.store(row_scales + row, scales, row < rows)
            by = scales[:, None]
        put(y, block_scales, values, row, there, start, columns, by, quant)
    else:
        most = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, columns, BLOCK):
            a, b = halves(
                x, up, row, there, start, columns, x_stride, up_stride, ROWS, BLOCK, has_up,
                interleaved,
            )  # fmt: skip
            inside = there & (start + tl.arange(0, BLOCK) < columns)[None, :]
            values = tl.abs(gated(a, b, limit, alpha, shift, gate))
            most = tl.maximum(most, tl.where(inside, values, 0.0))
        scales = scale_of_block(tl.max(most, 1), y.dtype.element_ty)
        tl.store(row_scales + row, scales, row < rows)
        for start in range(0, columns, BLOCK):
            a, b = halves(
                x, up, row, there, start, columns, x_stride, up_stride, ROWS, BLOCK, has_up,
                interleaved,
            )  # fmt: skip
            values = gated(a, b, limit, alpha, shift, gate)
            put(y, block_scales, values, row, there, start, columns, scales[:, None], quant)
