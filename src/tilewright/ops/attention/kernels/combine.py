"""The results of splits, put together.

Each split gives, for each row, O of its own keys (normalised) and the logarithm of its sum of
exponentials. A workgroup adds up ROWS queries of one head: split after split, weighted by what the
split's sum is of all. A split that saw nothing has -inf there, and its O is not read. A sink joins
here, and only here.

What limits it: it reads [splits, rows, head dim] numbers of fp32 once. Nothing was timed yet.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.keys import row_places
from tilewright.ops.attention.kernels.scores import LOG2E
from tilewright.ops.device.epilogue import rounded

ROWS = tl.constexpr(16)
"""`launch.COMBINED_ROWS`."""


@triton.constexpr_function
def wide(size):
    """The least power of two that is no less."""
    return 1 << (size - 1).bit_length()


@triton.jit
def combine(
    partial_o, partial_lse, o, lse, sinks, q_offsets, q_used, o_scale, o_strides, batch, heads,
    q_len, total_q, rows, splits,
    HEAD_DIM_V: tl.constexpr, LSE: tl.constexpr, SINKS: tl.constexpr, PACKEDQ: tl.constexpr,
    USEDQ: tl.constexpr, OSCALE: tl.constexpr, LARGEST_O: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(q_len, ROWS)
    tile = tl.program_id(0) % tiles
    head = tl.program_id(0) // tiles % heads
    b = tl.program_id(0) // tiles // heads
    q_start = b * 0
    n_q = b * 0 + q_len
    if PACKEDQ:
        q_start = tl.load(q_offsets + b)
        n_q = tl.load(q_offsets + b + 1) - q_start
    if USEDQ:
        n_q = tl.load(q_used + b)
    r = tl.arange(0, ROWS)
    i = tile * ROWS + r
    there = i < n_q
    at = (b.to(tl.int64) * heads + head) * q_len + i
    if PACKEDQ:
        at = head.to(tl.int64) * total_q + q_start + i
    d = tl.arange(0, wide(HEAD_DIM_V))

    m = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    if SINKS:
        m = total + tl.load(sinks + head) * LOG2E
        total = tl.where(m == float("-inf"), 0.0, 1.0)
    sums = tl.zeros((ROWS, wide(HEAD_DIM_V)), tl.float32)
    for _ in range(splits):
        one = tl.load(partial_lse + at, mask=there, other=float("-inf")) * LOG2E
        has = one > float("-inf")
        part = tl.load(
            partial_o + at[:, None] * HEAD_DIM_V + d[None, :],
            mask=has[:, None] & (d < HEAD_DIM_V)[None, :],
            other=0.0,
        )
        most = tl.maximum(m, one)
        base = tl.where(most == float("-inf"), 0.0, most)
        again = tl.exp2(m - base)
        weight = tl.exp2(one - base)
        total = total * again + weight
        sums = sums * again[:, None] + part * weight[:, None]
        m = most
        at += rows
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    if OSCALE:
        sums = sums / tl.load(o_scale)
    if LSE:
        at -= splits * rows.to(tl.int64)
        log_sum = tl.where(total == 0.0, float("-inf"), (m + tl.log2(total)) / LOG2E)
        tl.store(lse + at, log_sum, mask=there)
    o_base, o_rows = row_places(o, o_strides, b, q_start, tile * ROWS, r, head)
    far = d
    if not UNIT:
        far = d * o_strides[3]
    out = rounded(sums, o.dtype.element_ty, LARGEST_O)
    tl.store(
        o_base + (o_rows[:, None] + far[None, :]),
        out,
        mask=there[:, None] & (d < HEAD_DIM_V)[None, :],
    )
