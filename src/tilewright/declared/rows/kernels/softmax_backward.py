"""Gradients of softmax and of its logarithm, made from their results.

Idea. Of y = softmax(scale · x) and of l = log softmax(scale · x):

    dx = scale · (dy - sum(dy · y)) · y
    dx = scale · (dl - sum(dl) · exp(l))

A workgroup has ROWS rows. Where BLOCK elements hold a row, it is read once and stays in registers;
a longer one is read once for the sum, and once more for the result, its last piece first. Where
such rows are fewer than SMs, SPLIT workgroups share each, in two kernels, as of softmax itself.

What limits it: memory. Times: docs/operations.md.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.declared.rows.kernels._online import piece, share, vector


@triton.jit
def loaded(y, dy, column, inside, LOG: tl.constexpr):
    """The softmax, what arrives for the result, and the terms of the row's sum; 0 outside."""
    made = tl.load(y + column, inside, 0.0).to(tl.float32)
    arrived = tl.load(dy + column, inside, 0.0).to(tl.float32)
    if LOG:
        made = tl.exp(made)
        terms = arrived
    else:
        terms = arrived * made
    return made, arrived, terms


@triton.jit
def slopes(made, arrived, total, scale, LOG: tl.constexpr):
    """The gradient."""
    if LOG:
        found = arrived - total * made
    else:
        found = (arrived - total) * made
    return found * scale


@triton.jit
def of_rows(
    y, dy, dx, rows, columns, scale, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr,
    ALIGNMENT: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    if HELD:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        column = tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < columns)
        made, arrived, terms = loaded(y + row * columns, dy + row * columns, column, inside, LOG)
        found = slopes(made, arrived, tl.sum(terms, 1)[:, None], scale, LOG)
        tl.store(dx + row * columns + column, found.to(dx.dtype.element_ty), inside)
    else:
        first = tl.program_id(0).to(tl.int64) * columns
        VECTOR: tl.constexpr = vector(y.dtype.element_ty, ALIGNMENT)
        sums = tl.zeros((BLOCK // 16,), tl.float32)
        for start in range(0, columns, BLOCK):
            column = piece(start, BLOCK, VECTOR)
            made, arrived, terms = loaded(y + first, dy + first, column, column < columns, LOG)
            sums += tl.sum(tl.sum(terms, 2), 1)
        total = tl.sum(sums, 0)
        pieces = tl.cdiv(columns, BLOCK)
        for turn in range(pieces):
            column = (pieces - 1 - turn) * BLOCK + tl.arange(0, BLOCK)
            inside = column < columns
            made, arrived, terms = loaded(y + first, dy + first, column, inside, LOG)
            found = slopes(made, arrived, total, scale, LOG)
            tl.store(dx + first + column, found.to(dx.dtype.element_ty), inside)


@triton.jit
def sums_of_shares(
    y, dy, parts, columns, BLOCK: tl.constexpr, SPLIT: tl.constexpr, ALIGNMENT: tl.constexpr,
    DEPENDENT: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
    row, part, begin, end = share(columns, BLOCK, SPLIT)
    first = row * columns
    VECTOR: tl.constexpr = vector(y.dtype.element_ty, ALIGNMENT)
    sums = tl.zeros((BLOCK // 16,), tl.float32)
    for turn in range(begin, end):
        column = piece(turn * BLOCK, BLOCK, VECTOR)
        _, _, terms = loaded(y + first, dy + first, column, column < columns, LOG)
        sums += tl.sum(tl.sum(terms, 2), 1)
    tl.store(parts + row * SPLIT + part, tl.sum(sums, 0))


@triton.jit
def slopes_of_shares(
    y, dy, dx, parts, columns, scale, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_wait()
    row, _, begin, end = share(columns, BLOCK, SPLIT)
    first = row * columns
    total = tl.sum(tl.load(parts + row * SPLIT + tl.arange(0, SPLIT)), 0)
    for turn in range(begin, end):
        column = (begin + end - 1 - turn) * BLOCK + tl.arange(0, BLOCK)
        inside = column < columns
        made, arrived, _terms = loaded(y + first, dy + first, column, inside, LOG)
        found = slopes(made, arrived, total, scale, LOG)
        tl.store(dx + first + column, found.to(dx.dtype.element_ty), inside)


@triton.jit
def softmax_backward_parts(
    y, dy, parts, columns, BLOCK: tl.constexpr, SPLIT: tl.constexpr, alignment: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The sum of a share of a row, to parts [rows, SPLIT]."""
    sums_of_shares(y, dy, parts, columns, BLOCK, SPLIT, alignment, DEPENDENT, False)


@triton.jit
def log_softmax_backward_parts(
    y, dy, parts, columns, BLOCK: tl.constexpr, SPLIT: tl.constexpr, alignment: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The same of the logarithm."""
    sums_of_shares(y, dy, parts, columns, BLOCK, SPLIT, alignment, DEPENDENT, True)


@triton.jit
def softmax_backward_finish(
    y, dy, dx, parts, columns, scale, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A share of a row's gradient, of the sums of all shares."""
    slopes_of_shares(y, dy, dx, parts, columns, scale, BLOCK, SPLIT, DEPENDENT, False)


@triton.jit
def log_softmax_backward_finish(
    y, dy, dx, parts, columns, scale, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The same of the logarithm."""
    slopes_of_shares(y, dy, dx, parts, columns, scale, BLOCK, SPLIT, DEPENDENT, True)


@triton.jit
def softmax_backward(
    y, dy, dx, rows, columns, scale, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr,
    alignment: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    of_rows(y, dy, dx, rows, columns, scale, BLOCK, ROWS, HELD, alignment, False)


@triton.jit
def log_softmax_backward(
    y, dy, dx, rows, columns, scale, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr,
    alignment: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    of_rows(y, dy, dx, rows, columns, scale, BLOCK, ROWS, HELD, alignment, True)
