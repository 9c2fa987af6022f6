"""The k largest of each row.

Idea. A workgroup holds ROWS whole rows in registers and takes the largest k times (`_largest`).
Values are then read once more at the places that were found, from L1: so they keep their bits.

What limits it: memory for small k, reductions between lanes for large k. Not timed.
"""

import triton
import triton.language as tl

from tilewright.declared.routing.kernels._largest import NOTHING, largest, ordered, power_of_two


@triton.jit
def topk(
    x, values, indices, rows, columns, x_stride, k: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    from_x = x + row[:, None] * x_stride
    column = tl.arange(0, BLOCK)[None, :]
    held = tl.load(from_x + column, there & (column < columns), 0.0).to(tl.float32)
    keys = tl.where(column < columns, ordered(held), NOTHING)
    SLOTS: tl.constexpr = power_of_two(k)
    places, _ = largest(keys, column, k, SLOTS)
    slot = tl.arange(0, SLOTS)[None, :]
    inside = there & (slot < k)
    to = row[:, None] * k + slot
    tl.store(indices + to, places, inside)
    tl.store(values + to, tl.load(from_x + places, inside), inside)
