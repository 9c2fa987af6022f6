"""Softmax of rows, and its logarithm.

Idea. A workgroup has ROWS rows. Where BLOCK elements hold a row, it is read once and stays in
registers. A longer row is read once for its maximum and sum together (`_online`), and once more for
the result, its last piece first: that is the likeliest to be in L2 still. Where such rows are
fewer than SMs, SPLIT workgroups share each: one kernel leaves what each of them found, another
puts that together, once for each of them, and makes its share of the result.

Data. Values are multiplied by `scale` in fp32. Elements of -inf give 0 (their logarithm -inf); rows
of nothing else give NaN, as torch's do.

What limits it: memory. In graphs, an H200 (2026-11-30) took 181.9 µs for 2,048 rows of 65,536 in
bf16, where torch took 253.7, and 131.5 for 7,517 of 14,496 in fp16, where it took 203.8.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.declared.rows.kernels._online import (
    base,
    joined,
    piece,
    share,
    vector,
    whole,
)


@triton.jit
def scaled(x, column, inside, scale):
    """Values times `scale` in fp32; -inf outside."""
    values = tl.load(x + column, inside, 0.0).to(tl.float32) * scale
    return tl.where(inside, values, -float("inf"))


@triton.jit
def result(below, powers, total, LOG: tl.constexpr):
    """The softmax, or its logarithm, of values that lie `below` what `powers` are taken against."""
    if LOG:
        made = below - tl.log(total)
    else:
        made = powers / total
    return made


@triton.jit
def of_rows(
    x, y, rows, columns, x_stride, scale, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, ALIGNMENT: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    if HELD:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        column = tl.arange(0, BLOCK)[None, :]
        inside = (row < rows) & (column < columns)
        values = scaled(x + row * x_stride, column, inside, scale)
        below = values - base(tl.max(values, 1))[:, None]
        powers = tl.exp(below)
        made = result(below, powers, tl.sum(powers, 1)[:, None], LOG)
        tl.store(y + row * columns + column, made.to(y.dtype.element_ty), inside)
    else:
        row = tl.program_id(0).to(tl.int64)
        VECTOR: tl.constexpr = vector(x.dtype.element_ty, ALIGNMENT)
        most = tl.full((BLOCK // 16,), -float("inf"), tl.float32)
        total = tl.zeros((BLOCK // 16,), tl.float32)
        for start in range(0, columns, BLOCK):
            column = piece(start, BLOCK, VECTOR)
            values = scaled(x + row * x_stride, column, column < columns, scale)
            most, total = joined(most, total, values)
        against, sum_ = whole(most, total)
        pieces = tl.cdiv(columns, BLOCK)
        for turn in range(pieces):
            column = (pieces - 1 - turn) * BLOCK + tl.arange(0, BLOCK)
            inside = column < columns
            below = scaled(x + row * x_stride, column, inside, scale) - against
            made = result(below, tl.exp(below), sum_, LOG)
            tl.store(y + row * columns + column, made.to(y.dtype.element_ty), inside)


@triton.jit
def parts_of_rows(
    x, parts, rows, columns, x_stride, scale, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    alignment: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The maximum and the sum of a share of a row, to parts [2, rows, SPLIT]."""
    if DEPENDENT:
        gdc_launch_dependents()
    row, part, first, end = share(columns, BLOCK, SPLIT)
    VECTOR: tl.constexpr = vector(x.dtype.element_ty, alignment)
    most = tl.full((BLOCK // 16,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK // 16,), tl.float32)
    for turn in range(first, end):
        column = piece(turn * BLOCK, BLOCK, VECTOR)
        values = scaled(x + row * x_stride, column, column < columns, scale)
        most, total = joined(most, total, values)
    _, sum_ = whole(most, total)
    at = row * SPLIT + part
    tl.store(parts + at, tl.max(most, 0))
    tl.store(parts + tl.cast(rows, tl.int64) * SPLIT + at, sum_)


@triton.jit
def shares(
    x, y, parts, rows, columns, x_stride, scale, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_wait()
    row, _, first, end = share(columns, BLOCK, SPLIT)
    at = row * SPLIT + tl.arange(0, SPLIT)
    mosts = tl.load(parts + at)
    against, sum_ = whole(mosts, tl.load(parts + tl.cast(rows, tl.int64) * SPLIT + at))
    for turn in range(first, end):
        column = (first + end - 1 - turn) * BLOCK + tl.arange(0, BLOCK)
        inside = column < columns
        below = scaled(x + row * x_stride, column, inside, scale) - against
        made = result(below, tl.exp(below), sum_, LOG)
        tl.store(y + row * columns + column, made.to(y.dtype.element_ty), inside)


@triton.jit
def softmax_finish(
    x, y, parts, rows, columns, x_stride, scale, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A share of a row, of what `parts_of_rows` left."""
    shares(x, y, parts, rows, columns, x_stride, scale, BLOCK, SPLIT, DEPENDENT, False)


@triton.jit
def log_softmax_finish(
    x, y, parts, rows, columns, x_stride, scale, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The same of the logarithm."""
    shares(x, y, parts, rows, columns, x_stride, scale, BLOCK, SPLIT, DEPENDENT, True)


@triton.jit
def softmax(
    x, y, rows, columns, x_stride, scale, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, alignment: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    of_rows(x, y, rows, columns, x_stride, scale, BLOCK, ROWS, HELD, alignment, False)


@triton.jit
def log_softmax(
    x, y, rows, columns, x_stride, scale, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, alignment: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    of_rows(x, y, rows, columns, x_stride, scale, BLOCK, ROWS, HELD, alignment, True)
