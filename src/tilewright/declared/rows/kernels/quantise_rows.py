"""Rows rounded to 8 bits, after each column was multiplied by a smooth scale.

Idea. A workgroup has ROWS rows. Where BLOCK elements hold a row, it is read once and stays in
registers. A longer row is read in pieces: once for its largest value if it is quantised by row, and
once for the result. With experts, a token's row is read once where it is held, and rounded once for
each of its slots, by the smooth scales of the slot's expert.

What limits it: memory. In graphs, an H200 (2026-11-30) took 2.78 µs to round 16 rows of 16,384 in
bf16 to fp8, where compiled torch took 5.85, and 2.61 for 5,241 rows of 128 in fp32, where it took
2.81.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._quantise import put
from tilewright.ops.device.rounding import scale_of_block


@triton.jit
def smoothed(values, smooth, column, inside, HAS: tl.constexpr):
    """Values times the smooth scales of their columns, if there are any; then 0 outside. smooth:
    where they begin, for each row or for all."""
    found = values
    if HAS:
        found = tl.where(inside, values * tl.load(smooth + column, inside, 0.0), 0.0)
    return found


@triton.jit
def read(x, column, inside):
    """Pieces of rows that begin at `x`, in fp32; 0 outside."""
    return tl.load(x + column, inside, 0.0).to(tl.float32)


@triton.jit
def quantise(
    held, x, smooth, y, row_scales, block_scales, row, there, known, columns, by,
    BLOCK: tl.constexpr, HELD: tl.constexpr, has_smooth: tl.constexpr, quant: tl.constexpr,
):  # fmt: skip
    """The rows `row` of y, from rows that are held, else from rows that begin at `x`. there: which
    of them are stored. known: which of them have smooth scales; others become zeros."""
    ROWS: tl.constexpr = there.shape[0]
    DTYPE: tl.constexpr = y.dtype.element_ty
    first = tl.arange(0, BLOCK)[None, :]
    if HELD:  # smooth scales, which are twice as many bytes as the row, are loaded once
        values = smoothed(held, smooth, first, known & (first < columns), has_smooth)
    if quant == "row":
        if HELD:
            most = tl.max(tl.abs(values), 1)
        else:
            mosts = tl.zeros((ROWS, BLOCK), tl.float32)
            for start in range(0, columns, BLOCK):
                column = start + first
                inside = known & (column < columns)
                values = smoothed(read(x, column, inside), smooth, column, inside, has_smooth)
                mosts = tl.maximum(mosts, tl.abs(values))
            most = tl.max(mosts, 1)
        by = scale_of_block(most, DTYPE)[:, None]
        tl.store(row_scales + row[:, None], by, there)
    if HELD:
        put(y, block_scales, values, row, there, 0, columns, by, quant)
    else:
        for start in range(0, columns, BLOCK):
            column = start + first
            inside = there & (column < columns)
            values = read(x, column, inside)
            values = smoothed(values, smooth, column, known & inside, has_smooth)
            put(y, block_scales, values, row, there, start, columns, by, quant)


@triton.jit
def quantise_rows(
    x, smooth, scale, y, row_scales, block_scales, rows, columns, x_stride, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, HELD: tl.constexpr, has_smooth: tl.constexpr, quant: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    rows_at = x + row[:, None] * x_stride
    held = 0.0
    if HELD:
        column = tl.arange(0, BLOCK)[None, :]
        held = read(rows_at, column, there & (column < columns))
    by = 1.0
    if quant == "tensor":
        by = tl.load(scale)
    quantise(
        held, rows_at, smooth, y, row_scales, block_scales, row, there, there, columns, by, BLOCK,
        HELD, has_smooth, quant,
    )  # fmt: skip


@triton.jit
def quantise_expert_rows(
    x, smooth, expert, scale, y, row_scales, block_scales, tokens, columns, experts, slots,
    x_stride, BLOCK: tl.constexpr, ROWS: tl.constexpr, HELD: tl.constexpr, quant: tl.constexpr,
    slots_first: tl.constexpr,
):  # fmt: skip
    """All slots of ROWS tokens."""
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = (token < tokens)[:, None]
    rows_at = x + token[:, None] * x_stride
    held = 0.0
    if HELD:
        column = tl.arange(0, BLOCK)[None, :]
        held = read(rows_at, column, there & (column < columns))
    by = 1.0
    if quant == "tensor":
        by = tl.load(scale)
    for slot in range(slots):
        chosen = tl.load(expert + token * slots + slot, token < tokens, -1)
        known = (chosen >= 0) & (chosen < experts)
        smooth_at = smooth + tl.where(known, chosen, 0).to(tl.int64)[:, None] * columns
        row = token * slots + slot
        if slots_first:
            row = tl.cast(tokens, tl.int64) * slot + token
        quantise(
            held, rows_at, smooth_at, y, row_scales, block_scales, row, there, known[:, None],
            columns, by, BLOCK, HELD, True, quant,
        )  # fmt: skip
