"""Gradients of softmax and of its logarithm, made from their results.

Idea. Of y = softmax(scale · x) and of l = log softmax(scale · x):

    dx = scale · (dy - sum(dy · y)) · y
    dx = scale · (dl - sum(dl) · exp(l))

A workgroup has ROWS rows. Where BLOCK elements hold a row, it is read once and stays in registers;
a longer one is read once for the sum, and once more for the result, its last piece first.

What limits it: memory. Not timed.
"""

import triton
import triton.language as tl


@triton.jit
def loaded(y, dy, at, inside, LOG: tl.constexpr):
    """The softmax, what arrives for the result, and the terms of the row's sum; 0 outside."""
    made = tl.load(y + at, inside, 0.0).to(tl.float32)
    arrived = tl.load(dy + at, inside, 0.0).to(tl.float32)
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
    LOG: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    there = row < rows
    if HELD:
        column = tl.arange(0, BLOCK)[None, :]
        inside, at = there & (column < columns), row * columns + column
        made, arrived, terms = loaded(y, dy, at, inside, LOG)
        found = slopes(made, arrived, tl.sum(terms, 1)[:, None], scale, LOG)
        tl.store(dx + at, found.to(dx.dtype.element_ty), inside)
    else:
        sums = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)[None, :]
            made, arrived, terms = loaded(
                y, dy, row * columns + column, there & (column < columns), LOG
            )
            sums += terms
        total = tl.sum(sums, 1)[:, None]
        pieces = tl.cdiv(columns, BLOCK)
        for turn in range(pieces):
            column = (pieces - 1 - turn) * BLOCK + tl.arange(0, BLOCK)[None, :]
            inside, at = there & (column < columns), row * columns + column
            made, arrived, terms = loaded(y, dy, at, inside, LOG)
            found = slopes(made, arrived, total, scale, LOG)
            tl.store(dx + at, found.to(dx.dtype.element_ty), inside)


@triton.jit
def softmax_backward(
    y, dy, dx, rows, columns, scale, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    of_rows(y, dy, dx, rows, columns, scale, BLOCK, ROWS, HELD, False)


@triton.jit
def log_softmax_backward(
    y, dy, dx, rows, columns, scale, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    of_rows(y, dy, dx, rows, columns, scale, BLOCK, ROWS, HELD, True)
