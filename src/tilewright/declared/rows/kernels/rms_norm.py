"""RMS norm of rows, with a sum before it and rounding to 8 bits behind it.

Idea. A workgroup has ROWS rows. Where BLOCK elements hold a row, it is read once and stays in
registers: mean of squares, norm, largest value and result are made of it. A longer row is read once
for the mean, once for its largest value if it is quantised by row, and once for the result; the
second and third time mostly from L2.

Data. x and the residual are read in the type in which they lie; sums are in fp32. The norm is made
of the sum before the sum is rounded.

What limits it: memory. Not timed.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._quantise import narrow, scale_of


@triton.jit
def summed(x, residual, at, inside, HAS: tl.constexpr):
    """x, with the residual added if there is one, in fp32; 0 outside."""
    found = tl.load(x + at, inside, 0.0).to(tl.float32)
    if HAS:
        found += tl.load(residual + at, inside, 0.0).to(tl.float32)
    return found


@triton.jit
def weighted(
    values, rstd, w, smooth, column, inside, offset, has_w: tl.constexpr, has_smooth: tl.constexpr
):
    """Values times 1 / rms, and times what each column is multiplied by."""
    found = values * rstd[:, None]
    if has_w:
        found *= (tl.load(w + column, inside, 0.0).to(tl.float32) + offset)[None, :]
    if has_smooth:
        found *= tl.load(smooth + column, inside, 0.0)[None, :]
    return found


@triton.jit
def put(
    y, block_scales, values, row, at, column, inside, columns, by, quant: tl.constexpr,
):  # fmt: skip
    """Store values, divided by `by`, or by the scale of each 128 of them, which is stored too."""
    if quant == "block":
        ROWS: tl.constexpr = values.shape[0]
        GROUPS: tl.constexpr = values.shape[1] // 128
        groups = values.reshape(ROWS, GROUPS, 128)
        scales = scale_of(tl.max(tl.abs(groups), 2), y.dtype.element_ty)
        values = (groups / scales[:, :, None]).reshape(ROWS, GROUPS * 128)
        group = tl.min(column.reshape(GROUPS, 128), 1) // 128
        to = row[:, None] * (columns // 128) + group[None, :]
        first = tl.max(inside.to(tl.int32).reshape(ROWS, GROUPS, 128), 2) > 0
        tl.store(block_scales + to, scales, first)
    elif quant == "row" or quant == "tensor":
        values = values / by
    tl.store(y + at, narrow(values, y.dtype.element_ty), inside)


@triton.jit
def rms_norm(
    x, w, residual, smooth, scale, y, total, row_scales, block_scales, rows, columns, x_stride,
    residual_stride, eps, offset, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr,
    has_w: tl.constexpr, has_residual: tl.constexpr, has_smooth: tl.constexpr, quant: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    from_x = x + row[:, None] * x_stride
    from_residual = residual
    if has_residual:
        from_residual = residual + row[:, None] * residual_stride
    by = 1.0
    if quant == "tensor":
        by = tl.load(scale)
    if HELD:
        column = tl.arange(0, BLOCK)
        inside = there & (column < columns)[None, :]
        at = row[:, None] * columns + column[None, :]
        values = summed(from_x, from_residual, column[None, :], inside, has_residual)
        rstd = tl.rsqrt(tl.sum(values * values, 1) / columns + eps)
        if has_residual:
            tl.store(total + at, values.to(total.dtype.element_ty), inside)
        values = weighted(
            values, rstd, w, smooth, column, column < columns, offset, has_w, has_smooth
        )
        if quant == "row":
            scales = scale_of(tl.max(tl.abs(values), 1), y.dtype.element_ty)
            tl.store(row_scales + row, scales, row < rows)
            by = scales[:, None]
        put(y, block_scales, values, row, at, column, inside, columns, by, quant)
    else:
        squares = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = there & (column < columns)[None, :]
            values = summed(from_x, from_residual, column[None, :], inside, has_residual)
            squares += values * values
            if has_residual:
                at = row[:, None] * columns + column[None, :]
                tl.store(total + at, values.to(total.dtype.element_ty), inside)
        rstd = tl.rsqrt(tl.sum(squares, 1) / columns + eps)
        if quant == "row":
            most = tl.zeros((ROWS, BLOCK), tl.float32)
            for start in range(0, columns, BLOCK):
                column = start + tl.arange(0, BLOCK)
                inside = there & (column < columns)[None, :]
                values = summed(from_x, from_residual, column[None, :], inside, has_residual)
                values = weighted(
                    values, rstd, w, smooth, column, column < columns, offset, has_w, has_smooth
                )
                most = tl.maximum(most, tl.abs(values))
            scales = scale_of(tl.max(most, 1), y.dtype.element_ty)
            tl.store(row_scales + row, scales, row < rows)
            by = scales[:, None]
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = there & (column < columns)[None, :]
            at = row[:, None] * columns + column[None, :]
            values = summed(from_x, from_residual, column[None, :], inside, has_residual)
            values = weighted(
                values, rstd, w, smooth, column, column < columns, offset, has_w, has_smooth
            )
            put(y, block_scales, values, row, at, column, inside, columns, by, quant)
