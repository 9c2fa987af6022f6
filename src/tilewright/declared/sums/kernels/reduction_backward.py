"""The gradient of reductions.

Idea. A workgroup has a tile of KEPT results by BLOCK elements of each, as the reduction reads them.
It reads what arrives for the results once, and x only for the gradient of a norm.

Data. fp32 in registers; the gradient of x is contiguous, whatever strides x has.

What limits it: memory, mostly writing the gradient. Times: docs/operations.md.
"""

import triton
import triton.language as tl


@triton.jit
def arrived(pointer, kept, there):
    return tl.load(pointer + kept, there, 0.0).to(tl.float32)


@triton.jit
def reduction_backward(
    x, d_sum, d_mean, d_norm, norm, d_max, max_at, d_min, min_at, dx, outer, far, middle, near,
    inner, outer_stride, far_stride, middle_stride, near_stride,
    COLUMNS: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
    has_d_sum: tl.constexpr, has_d_mean: tl.constexpr, has_d_norm: tl.constexpr,
    has_d_max: tl.constexpr, has_d_min: tl.constexpr,
):  # fmt: skip
    """KEPT by BLOCK elements."""
    blocks = tl.cdiv(near, BLOCK)
    piece = tl.program_id(0) % (far * blocks)
    program = tl.program_id(0) // (far * blocks)
    turn = piece // blocks
    one = (piece % blocks) * BLOCK + tl.arange(0, BLOCK)
    if COLUMNS:
        tiles = tl.cdiv(inner, KEPT)
        group = program // tiles
        column = (program % tiles) * KEPT + tl.arange(0, KEPT)
        there = column < inner
        kept = group * inner + column
        from_at = one.to(tl.int64) * near_stride
        to_at = one.to(tl.int64) * inner
    else:
        group = program * KEPT + tl.arange(0, KEPT)
        there = group < outer * middle
        column = 0
        kept = group
        from_at = one
        to_at = one
    inside = there[:, None] & (one < near)[None, :]
    here = tl.zeros((KEPT,), tl.float32)
    if has_d_sum:
        here += arrived(d_sum, kept, there)
    if has_d_mean:
        here += arrived(d_mean, kept, there) / (far.to(tl.float32) * near)
    made = tl.zeros((KEPT, BLOCK), tl.float32) + here[:, None]
    if has_d_norm:
        long = arrived(norm, kept, there)
        share = tl.where(long == 0.0, 0.0, arrived(d_norm, kept, there) / long)
        ahead = (group // middle).to(tl.int64) * outer_stride + turn.to(tl.int64) * far_stride
        ahead += (group % middle).to(tl.int64) * middle_stride
        from_x = x + ahead + column
        made += (
            tl.load(from_x[:, None] + from_at[None, :], inside, 0.0).to(tl.float32)
            * (share[:, None])
        )
    place = turn * near + one[None, :]
    if has_d_max:
        at = tl.load(max_at + kept, there, -1).to(tl.int32)
        made += tl.where(place == at[:, None], arrived(d_max, kept, there)[:, None], 0.0)
    if has_d_min:
        at = tl.load(min_at + kept, there, -1).to(tl.int32)
        made += tl.where(place == at[:, None], arrived(d_min, kept, there)[:, None], 0.0)
    row = ((group // middle).to(tl.int64) * far + turn) * middle + group % middle
    to = dx + row * near * inner + column
    tl.store(to[:, None] + to_at[None, :], made.to(dx.dtype.element_ty), inside)
