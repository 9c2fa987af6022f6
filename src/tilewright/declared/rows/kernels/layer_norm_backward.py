"""Gradients of layer norm.

Idea. With t = x + residual, n = (t - mean(t)) · rstd and g = dy · (w + offset):

    dx = (g - mean(g) - n · mean(g · n)) · rstd + dtotal

A workgroup takes TURNS tiles of ROWS rows one after another and sums dy · n and dy over them, in
registers where a row is held, else in its own row of the partial sums; a second kernel adds these
up in a fixed order. Neither the mean nor rstd is kept by the forward pass: making them again reads
nothing more. With AHEAD, the next tile is read before the present one is computed, as in
`rms_norm_backward`. A row that is read in pieces is read three times: for its statistics, which
lose nothing to a large mean (`_norms`), for the two means of the formula, and for the result.

What limits it: memory: x and dy are read once where rows are held. Times: docs/operations.md.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from tilewright.declared.rows.kernels._norms import held_statistics, read_statistics, summed
from tilewright.declared.rows.kernels._slopes import add_to, fetched, slopes, weighted, widened


@triton.jit
def layer_norm_backward(
    x, dy, w, residual, dtotal, dx, dw_parts, db_parts, rows, columns, x_stride, residual_stride,
    eps, offset, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr, TURNS: tl.constexpr,
    AHEAD: tl.constexpr, has_w: tl.constexpr, has_b: tl.constexpr, has_residual: tl.constexpr,
    has_dtotal: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """TURNS tiles of ROWS rows."""
    if DEPENDENT and (has_w or has_b):
        gdc_launch_dependents()
    program = tl.program_id(0).to(tl.int64)
    dw_part = dw_parts
    if has_w:
        dw_part = dw_parts + program * columns
    db_part = db_parts
    if has_b:
        db_part = db_parts + program * columns
    dw_acc = tl.zeros((ROWS, BLOCK), tl.float32)
    db_acc = tl.zeros((ROWS, BLOCK), tl.float32)
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
        if HELD:
            column = tl.arange(0, BLOCK)
            inside = there & (column < columns)[None, :]
            at = row[:, None] * columns + column[None, :]
            if not AHEAD:
                xs, dys, rs = fetched(
                    x, dy, residual, row, row < rows, columns, x_stride, residual_stride, BLOCK,
                    has_residual,
                )  # fmt: skip
            values, arrived = widened(xs, dys, rs, has_residual)
            if AHEAD:
                further = row + ROWS
                xs, dys, rs = fetched(
                    x, dy, residual, further, (further < rows) & (turn + 1 < TURNS), columns,
                    x_stride, residual_stride, BLOCK, has_residual,
                )  # fmt: skip
            through = weighted(arrived, w, column, columns, offset, has_w)
            mean, rstd = held_statistics(values, inside, columns, eps, True)
            normed = tl.where(inside, (values - mean[:, None]) * rstd[:, None], 0.0)
            level = tl.sum(through, 1)[:, None] / columns
            shared = tl.sum(through * normed, 1)[:, None] / columns
            made = (through - level - normed * shared) * rstd[:, None]
            if has_dtotal:
                made += tl.load(dtotal + at, inside, 0.0).to(tl.float32)
            tl.store(dx + at, made.to(dx.dtype.element_ty), inside)
            if has_w:
                dw_acc += arrived * normed
            if has_b:
                db_acc += arrived
        else:
            mean, rstd = read_statistics(
                from_x, from_residual, there, columns, eps, BLOCK, True, has_residual
            )
            levels = tl.zeros((ROWS, BLOCK), tl.float32)
            products = tl.zeros((ROWS, BLOCK), tl.float32)
            for start in range(0, columns, BLOCK):
                column = start + tl.arange(0, BLOCK)
                inside = there & (column < columns)[None, :]
                at = row[:, None] * columns + column[None, :]
                values = summed(from_x, from_residual, column[None, :], inside, has_residual)
                arrived, through = slopes(dy, w, at, column, inside, columns, offset, has_w)
                levels += through
                products += through * (values - mean[:, None]) * rstd[:, None]
            level = tl.sum(levels, 1)[:, None] / columns
            shared = tl.sum(products, 1)[:, None] / columns
            for start in range(0, columns, BLOCK):
                column = start + tl.arange(0, BLOCK)
                inside = there & (column < columns)[None, :]
                at = row[:, None] * columns + column[None, :]
                values = summed(from_x, from_residual, column[None, :], inside, has_residual)
                arrived, through = slopes(dy, w, at, column, inside, columns, offset, has_w)
                normed = tl.where(inside, (values - mean[:, None]) * rstd[:, None], 0.0)
                made = (through - level - normed * shared) * rstd[:, None]
                if has_dtotal:
                    made += tl.load(dtotal + at, inside, 0.0).to(tl.float32)
                tl.store(dx + at, made.to(dx.dtype.element_ty), inside)
                if has_w:
                    add_to(dw_part, column, columns, arrived * normed, turn)
                if has_b:
                    add_to(db_part, column, columns, arrived, turn)
    if HELD:
        column = tl.arange(0, BLOCK)
        if has_w:
            tl.store(dw_part + column, tl.sum(dw_acc, 0), column < columns)
        if has_b:
            tl.store(db_part + column, tl.sum(db_acc, 0), column < columns)
