"""Gradients of RMS norm.

Idea. With t = x + residual, n = t / rms(t) and g = dy · (w + offset):

    dx = (g - n · mean(g · n)) / rms + dtotal

A workgroup takes TURNS tiles of ROWS rows one after another and sums dy · n over them, in
registers where a row is held, else in its own row of the partial sums; a second kernel adds these
up in a fixed order. Neither rms nor n is kept by the forward pass: making them again reads nothing
more. With AHEAD, a workgroup reads the next tile before it computes with the present one: few
workgroups fit on an SM, so that memory would else wait for their arithmetic.

What limits it: memory: x and dy are read once where rows are held. Times: docs/operations.md.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from tilewright.declared.rows.kernels._norms import summed
from tilewright.declared.rows.kernels._slopes import add_to, fetched, slopes, weighted, widened


@triton.jit
def rms_norm_backward(
    x, dy, w, residual, dtotal, dx, dw_parts, rows, columns, x_stride, residual_stride, eps, offset,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr, TURNS: tl.constexpr,
    AHEAD: tl.constexpr, has_w: tl.constexpr, has_residual: tl.constexpr, has_dtotal: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """TURNS tiles of ROWS rows."""
    if DEPENDENT and has_w:
        gdc_launch_dependents()
    program = tl.program_id(0).to(tl.int64)
    parts = dw_parts
    if has_w:
        parts = dw_parts + program * columns
    acc = tl.zeros((ROWS, BLOCK), tl.float32)
    row = program * TURNS * ROWS + tl.arange(0, ROWS)
    if AHEAD:
        xs, dys, rs = fetched(
            x, dy, residual, row, row < rows, columns, x_stride, residual_stride, BLOCK,
            has_residual,
        )  # fmt: skip
    for turn in range(TURNS):
        row = (program * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        there = (row < rows)[:, None]
        from_x = x + row[:, None] * x_stride
        from_residual = residual
        if has_residual:
            from_residual = residual + row[:, None] * residual_stride
        squares = tl.zeros((ROWS, BLOCK), tl.float32)
        products = tl.zeros((ROWS, BLOCK), tl.float32)
        if HELD:
            column = tl.arange(0, BLOCK)
            inside = there & (column < columns)[None, :]
            at = row[:, None] * columns + column[None, :]
            if not AHEAD:
                xs, dys, rs = fetched(
                    x, dy, residual, row, row < rows, columns, x_stride, residual_stride, BLOCK,
                    has_residual,
                )  # fmt: skip
            total, arrived = widened(xs, dys, rs, has_residual)
            if AHEAD:
                further = row + ROWS
                xs, dys, rs = fetched(
                    x, dy, residual, further, (further < rows) & (turn + 1 < TURNS), columns,
                    x_stride, residual_stride, BLOCK, has_residual,
                )  # fmt: skip
            through = weighted(arrived, w, column, columns, offset, has_w)
            squares = total * total
            products = total * through
        else:
            for start in range(0, columns, BLOCK):
                column = start + tl.arange(0, BLOCK)
                inside = there & (column < columns)[None, :]
                at = row[:, None] * columns + column[None, :]
                total = summed(from_x, from_residual, column[None, :], inside, has_residual)
                arrived, through = slopes(dy, w, at, column, inside, columns, offset, has_w)
                squares += total * total
                products += total * through
        rstd = tl.rsqrt(tl.sum(squares, 1) / columns + eps)[:, None]
        shared = tl.sum(products, 1)[:, None] * rstd * rstd / columns
        if HELD:
            made = (through - total * shared) * rstd
            if has_dtotal:
                made += tl.load(dtotal + at, inside, 0.0).to(tl.float32)
            tl.store(dx + at, made.to(dx.dtype.element_ty), inside)
            if has_w:
                acc += arrived * total * rstd
        else:
            for start in range(0, columns, BLOCK):
                column = start + tl.arange(0, BLOCK)
                inside = there & (column < columns)[None, :]
                at = row[:, None] * columns + column[None, :]
                total = summed(from_x, from_residual, column[None, :], inside, has_residual)
                arrived, through = slopes(dy, w, at, column, inside, columns, offset, has_w)
                made = (through - total * shared) * rstd
                if has_dtotal:
                    made += tl.load(dtotal + at, inside, 0.0).to(tl.float32)
                tl.store(dx + at, made.to(dx.dtype.element_ty), inside)
                if has_w:
                    add_to(parts, column, columns, arrived * total * rstd, turn)
    if HELD and has_w:
        column = tl.arange(0, BLOCK)
        tl.store(parts + column, tl.sum(acc, 0), column < columns)
