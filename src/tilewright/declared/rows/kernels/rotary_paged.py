"""Rotary embedding of q where it lies, and of k on its way into pages, beside v.

Idea. That of `_rotations`.

Data. A workgroup has heads of q, of k or of v: v is copied by tiles like those of k. Where heads of
k and v go follows from the tokens' slots, which are read beside their positions.

What limits it: memory: q, k and v are read once and written once. Times: docs/operations.md.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._quantise import narrow
from tilewright.declared.rows.kernels._rotations import (
    angles,
    heads,
    pairs,
    put_pairs,
    turn,
    turned,
)
from tilewright.ops.device.division import quotient


@triton.jit
def places(
    cache, slots, token, head, tokens, page_size, pages, page_stride, slot_stride,
    cache_head_stride,
):  # fmt: skip
    """Pointers to heads in the pages [TOKENS, HEADS, 1], and which tokens have a slot there."""
    slot = tl.load(slots + token, token < tokens, -1)
    kept = (slot >= 0) & (slot < pages.to(tl.int64) * page_size)
    slot = tl.where(kept, slot, 0)
    base = cache + slot // page_size * page_stride + slot % page_size * slot_stride
    return base[:, None, None] + head[None, :, None] * cache_head_stride, kept[:, None, None]


@triton.jit
def put_rest(x, to, there, written, start, head_dim, by, HALF: tl.constexpr):
    """Copy the elements of heads from `start` on, divided by `by`."""
    for first in range(start, head_dim, HALF):
        at = first + tl.arange(0, HALF)[None, None, :]
        inside = there & written & (at < head_dim)
        values = tl.load(x + at, inside, 0.0).to(tl.float32) / by
        tl.store(to + at, narrow(values, to.dtype.element_ty), inside)


@triton.jit
def rotary_paged(
    q, k, v, cos, sin, key_cache, value_cache, slots, positions, k_scale, v_scale, tokens, q_heads,
    k_heads, head_dim, length, half, pages, page_size, q_stride, q_head_stride, k_stride,
    k_head_stride, v_stride, v_head_stride, page_stride, slot_stride, cache_head_stride, cos_stride,
    by_tiles, shift_tiles, HALF: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
    form: tl.constexpr, has_positions: tl.constexpr, has_k_scale: tl.constexpr,
    has_v_scale: tl.constexpr,
):  # fmt: skip
    """HEADS heads of q, k or v, of TOKENS tokens."""
    q_tiles = tl.cdiv(q_heads, HEADS)
    k_tiles = tl.cdiv(k_heads, HEADS)
    tiles = q_tiles + 2 * k_tiles
    above = quotient(tl.program_id(0), by_tiles, shift_tiles)
    tile = tl.program_id(0) - above * tiles
    token = above.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    if tile >= q_tiles + k_tiles:
        head = (tile - q_tiles - k_tiles) * HEADS + tl.arange(0, HEADS)
        there = (token < tokens)[:, None, None] & (head < k_heads)[None, :, None]
        x = heads(v, token, head, v_stride, v_head_stride)
        to, written = places(
            value_cache, slots, token, head, tokens, page_size, pages, page_stride, slot_stride,
            cache_head_stride,
        )  # fmt: skip
        by = 1.0
        if has_v_scale:
            by = tl.load(v_scale)
        put_rest(x, to, there, written, 0, head_dim, by, HALF)
    else:
        turns = (cos, sin, positions, token, tokens, length, cos_stride)
        if tile < q_tiles:
            head = tile * HEADS + tl.arange(0, HEADS)
            there = (token < tokens)[:, None, None] & (head < q_heads)[None, :, None]
            x = heads(q, token, head, q_stride, q_head_stride)
            turn(x, x, there, turns, half, HALF, form, has_positions, False)
        else:
            head = (tile - q_tiles) * HEADS + tl.arange(0, HEADS)
            there = (token < tokens)[:, None, None] & (head < k_heads)[None, :, None]
            x = heads(k, token, head, k_stride, k_head_stride)
            to, written = places(
                key_cache, slots, token, head, tokens, page_size, pages, page_stride, slot_stride,
                cache_head_stride,
            )  # fmt: skip
            by = 1.0
            if has_k_scale:
                by = tl.load(k_scale)
            a, b = pairs(x, there & written, half, HALF, form)
            c, s = angles(
                cos, sin, positions, token, tokens, length, cos_stride, half, HEADS, HALF,
                form, has_positions, False,
            )  # fmt: skip
            a, b = turned(a, b, c, s)
            a = narrow(a / by, to.dtype.element_ty)
            b = narrow(b / by, to.dtype.element_ty)
            put_pairs(to, a, b, there & written, half, HALF, form)
            put_rest(x, to, there, written, 2 * half, head_dim, by, HALF)
