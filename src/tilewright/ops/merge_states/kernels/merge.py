"""States of attention over different keys, merged into that over all of them.

Idea. A workgroup has some rows (a head of a query), and all columns. It joins STATES states at a
time, as the kernel that combines splits of keys does (`attention.kernels.combine`), then the other
state of a pair. In place, what it wrote is what it read: it waits for all its threads to have
read.

What limits it: memory, which each state is read from once; with few rows, a launch and a load.
Not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.joining import joined, logarithm
from tilewright.ops.device.epilogue import rounded


@triton.jit
def merge(
    o, lse, other_o, other_lse, mask, to_o, to_lse, count, states, heads, head_dim, o_strides,
    lse_strides, other_o_strides, other_lse_strides, to_o_strides, to_lse_strides,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, STATES: tl.constexpr, FORM: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """TILE_M of `count` rows, which are heads of queries."""
    place = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    there = place < count
    # Of a row that is not there, the first is read.
    row = tl.where(there, place // heads, 0).to(tl.int64)
    head = tl.where(there, place % heads, 0).to(tl.int64)
    d = tl.arange(0, TILE_N)
    inside = there[:, None] & (d < head_dim)[None, :]
    at = tl.arange(0, STATES)
    m = tl.full((TILE_M,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_M,), tl.float32)
    sums = tl.zeros((TILE_M, TILE_N), tl.float32)
    from_o = o + (row * o_strides[0] + head * o_strides[2])
    from_lse = lse + (row * lse_strides[0] + head * lse_strides[2])
    for first in range(0, states, STATES):
        state = first + at
        live = there[:, None] & (state < states)[None, :]
        state = tl.where(state < states, state, 0).to(tl.int64)
        log = tl.load(
            from_lse[:, None] + state[None, :] * lse_strides[1], mask=live, other=float("-inf")
        )
        part = tl.load(
            from_o[:, None, None] + (state * o_strides[1])[None, :, None] + d[None, None, :],
            mask=live[:, :, None] & (d < head_dim)[None, None, :],
            other=0.0,
        ).to(tl.float32)
        m, total, sums = joined(m, total, sums, log, 1.0, part, 1)
    if FORM != "stack":
        log = tl.load(
            other_lse + (row * other_lse_strides[0] + head * other_lse_strides[1]),
            mask=there,
            other=float("-inf"),
        )
        from_other = other_o + (row * other_o_strides[0] + head * other_o_strides[1])
        part = tl.load(from_other[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
        m, total, sums = joined(m, total, sums, log[:, None], 1.0, part[:, None, :], 1)
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    if FORM == "in_place":
        tl.debug_barrier()
        if MASK:
            there = there & (tl.load(mask + row) != 0)
            inside = inside & there[:, None]
    into = to_o + (row * to_o_strides[0] + head * to_o_strides[1])
    tl.store(into[:, None] + d[None, :], rounded(sums, to_o.dtype.element_ty, 0), mask=inside)
    into_lse = to_lse + (row * to_lse_strides[0] + head * to_lse_strides[1])
    tl.store(into_lse, logarithm(m, total), mask=there)
