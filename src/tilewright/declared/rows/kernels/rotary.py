"""Rotary embedding of q and k. Idea and data: `_rotations`.

What limits it: memory: q and k are read once and written once; cos and sin come from L2 after the
first group of heads. Times: docs/operations.md.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._rotations import copy_rest, heads, turn
from tilewright.ops.device.division import quotient


@triton.jit
def rotary(
    q, k, cos, sin, positions, q_out, k_out, tokens, q_heads, k_heads, head_dim, length, half,
    q_stride, q_head_stride, k_stride, k_head_stride, cos_stride, by_tiles, shift_tiles,
    HALF: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, form: tl.constexpr,
    inverse: tl.constexpr, has_positions: tl.constexpr,
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
        to = heads(q_out, token, head, q_heads.to(tl.int64) * head_dim, head_dim)
        turn(x, to, there, by, half, HALF, form, has_positions, inverse)
        copy_rest(x, to, there, half, head_dim, HALF)
    else:
        head = (tile - q_tiles) * HEADS + tl.arange(0, HEADS)
        there = (token < tokens)[:, None, None] & (head < k_heads)[None, :, None]
        x = heads(k, token, head, k_stride, k_head_stride)
        to = heads(k_out, token, head, k_heads.to(tl.int64) * head_dim, head_dim)
        turn(x, to, there, by, half, HALF, form, has_positions, inverse)
        copy_rest(x, to, there, half, head_dim, HALF)
