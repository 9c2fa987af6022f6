"""Rows by a map.

Idea. A workgroup copies a piece of a row, or writes zeros where there is none. Elements are passed
on as they are.

What limits it: memory. Times: docs/operations.md.
"""

import triton
import triton.language as tl


@triton.jit
def take_rows(
    x, order, y, tokens, width, x_stride, BLOCK: tl.constexpr, per_row: tl.constexpr
):  # fmt: skip
    """BLOCK columns of one row."""
    slot = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(order + slot)
    there = (number >= 0) & (number < tokens * per_row)
    row = (tl.where(there, number, 0) // per_row).to(tl.int64)
    inside = column < width
    found = tl.load(x + row * x_stride + column, there & inside, 0.0)
    tl.store(y + slot * width + column, found, inside)
