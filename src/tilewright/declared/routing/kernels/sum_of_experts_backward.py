"""Gradients of the rows that a token's experts made, and of the routing's weights.

Idea. A row belongs to one choice at most. `owners` writes down whose it is; then a workgroup of
`spread` has one row: it reads what arrived for the row's token, writes it times the weight, and
sums its products with the row, which are the gradient of the weight. Rows without an owner get
zeros, and so do weights of choices without a row of their own: of choices with one place, one has
the row.

Order. Each element has one writer at a time, and a sum one order: the bits are the same in every
run, if no two choices have one place.

Data. Rows are read and their gradients written once; what arrives is read k times, some of it from
the cache.

What limits it: memory. Times: docs/operations.md.
"""

import triton
import triton.language as tl

CHOICES = tl.constexpr(1024)
"""Choices of a workgroup of `owners`."""


@triton.jit
def owners(places, dweights, owner, choices, slots, has_weights: tl.constexpr):
    """CHOICES choices. owner: 1 + a row's choice, 0 before."""
    at = tl.program_id(0) * CHOICES + tl.arange(0, CHOICES)
    place = tl.load(places + at, at < choices, -1)
    there = (place >= 0) & (place < slots)
    tl.store(owner + tl.where(there, place, 0), at + 1, there)
    if has_weights:
        tl.store(dweights + at, 0.0, at < choices)


@triton.jit
def spread(
    rows, dy, weights, drows, dweights, owner, width, k, rows_stride, routed_scaling_factor,
    BLOCK: tl.constexpr, has_weights: tl.constexpr,
):  # fmt: skip
    """One row. Its owner is 0 again afterwards."""
    slot = tl.program_id(0).to(tl.int64)
    choice = tl.load(owner + slot).to(tl.int64) - 1
    there = choice >= 0
    token = tl.where(there, choice, 0) // k
    factor = tl.where(there, routed_scaling_factor, 0.0)
    if has_weights:
        factor *= tl.load(weights + choice, there, 0.0).to(tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        inside = column < width
        arrived = tl.load(dy + token * width + column, there & inside, 0.0).to(tl.float32)
        tl.store(drows + slot * width + column, arrived * factor, inside)
        if has_weights:
            row = tl.load(rows + slot * rows_stride + column, there & inside, 0.0)
            sums += row.to(tl.float32) * arrived
    tl.store(owner + slot, 0, there)
    if has_weights:
        tl.store(dweights + choice, tl.sum(sums, 0) * routed_scaling_factor, there)
