"""Rotary embedding of q and k where they lie. Idea and data: `_rotations`.

What limits it: memory. The rotated elements are read once and written once. Times:
docs/operations.md.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._rotations import heads, turn
from tilewright.ops.device.division import quotient


@triton.jit
def rotary_in_place(
    q, k, cos, sin, positions, tokens, q_heads, k_heads, length, half, q_stride, q_head_stride,
    k_stride, k_head_stride, cos_stride, by_tiles, shift_tiles, HALF: tl.constexpr,
    HEADS: tl.constexpr, TOKENS: tl.constexpr, form: tl.constexpr, inverse: tl.constexpr,
    has_positions: tl.constexpr,
):  # fmt: skip
    """HEADS heads of q or of k, of TOKENS tokens."""
    q_tiles = tl.cdiv(q_heads, HEADS)
    tiles = q_tiles + tl.cdiv(k_heads, HEADS)
    above = quotient(tl.program_id(0), by_tiles, shift_tiles)
    tile = tl.program_id(0) - above * tiles
    token = above.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    by = (cos, sin, positions, token, tokens, length, cos_stride)
    if tile < q_tiles:
        head = tile * HEADS + tl.arange(0, HEADS)
        there = (token < tokens)[:, None, None] & (head < q_heads)[None, :, None]
        x = heads(q, token, head, q_stride, q_head_stride)
        turn(x, x, there, by, half, HALF, form, has_positions, inverse)
    else:
        head = (tile - q_tiles) * HEADS + tl.arange(0, HEADS)
        there = (token < tokens)[:, None, None] & (head < k_heads)[None, :, None]
        x = heads(k, token, head, k_stride, k_head_stride)
        turn(x, x, there, by, half, HALF, form, has_positions, inverse)
