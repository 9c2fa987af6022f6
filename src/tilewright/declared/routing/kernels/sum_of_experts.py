"""For each token, the weighted sum of its experts' rows.

Idea. A workgroup has BLOCK columns of one token. It reads the places of TERMS choices, then the
pieces of their rows at once, and adds them up. No workgroup adds to another's elements, and the
order is that of the choices' numbers, so the sum has the same bits in every run.

Data. Each row is read once, BLOCK columns that lie together; a choice without a row is not read.
The places and the weights of a token come from the cache after the first of its workgroups.

What limits it: memory; of few tokens, latency. Times: docs/operations.md.
"""

import triton
import triton.language as tl


@triton.jit
def sum_of_experts(
    rows, places, weights, shared, y, slots, width, k, rows_stride, routed_scaling_factor,
    BLOCK: tl.constexpr, TERMS: tl.constexpr, has_weights: tl.constexpr, has_shared: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    found = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, k, TERMS):
        at = first + tl.arange(0, TERMS)
        place = tl.load(places + token * k + at, at < k, -1)
        there = (place >= 0) & (place < slots)
        place = tl.where(there, place, 0).to(tl.int64)
        terms = tl.load(
            rows + place[:, None] * rows_stride + column[None, :],
            there[:, None] & inside[None, :],
            0.0,
        ).to(tl.float32)
        if has_weights:
            weight = tl.load(weights + token * k + at, there, 0.0).to(tl.float32)
            # A row that is not there has weight 0 and holds 0.
            terms *= weight[:, None]
        found += tl.sum(terms, 0)
    found *= routed_scaling_factor
    if has_shared:
        found += tl.load(shared + token * width + column, inside, 0.0).to(tl.float32)
    tl.store(y + token * width + column, found, inside)
