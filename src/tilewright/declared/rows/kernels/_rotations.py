"""Heads of q or k turned by the angles of their tokens' positions.

Idea. A workgroup has HEADS heads of TOKENS tokens. It reads each token's cos and sin once, for all
those heads (or from L1), and every pair of elements once. Pairs that are `half` apart are two
loads, each of neighbours; pairs of neighbours are read as one piece of twice the width and split in
registers.
"""

import triton
import triton.language as tl


@triton.jit
def angles(
    cos, sin, positions, token, tokens, length, cos_stride, half, HEADS: tl.constexpr,
    HALF: tl.constexpr, form: tl.constexpr, has_positions: tl.constexpr, inverse: tl.constexpr,
):  # fmt: skip
    """cos and sin of each token in fp32 [TOKENS, 1, HALF]; NaN where a position is no row. Of pairs
    that are `half` apart they are [TOKENS, HEADS, HALF]: a lane then reads those of its own pairs,
    and none are moved between lanes."""
    if has_positions:
        at = tl.load(positions + token, token < tokens, 0).to(tl.int64)
    else:
        at = token % length
    pair = tl.arange(0, HALF)[None, :]
    inside = ((at >= 0) & (at < length))[:, None] & (pair < half)
    where = at[:, None] * cos_stride + pair
    if form == "half":
        inside = tl.broadcast_to(inside[:, None, :], (token.shape[0], HEADS, HALF))
        where = tl.broadcast_to(where[:, None, :], (token.shape[0], HEADS, HALF))
    c = tl.load(cos + where, inside, float("nan")).to(tl.float32)
    s = tl.load(sin + where, inside, float("nan")).to(tl.float32)
    if inverse:
        s = -s
    if form != "half":
        c, s = c[:, None, :], s[:, None, :]
    return c, s


@triton.jit
def pairs(x, there, half, HALF: tl.constexpr, form: tl.constexpr):
    """The elements of every pair, in fp32, of heads at the pointers `x` [TOKENS, HEADS, 1]."""
    if form == "half":
        pair = tl.arange(0, HALF)[None, None, :]
        inside = there & (pair < half)
        a = tl.load(x + pair, inside, 0.0).to(tl.float32)
        b = tl.load(x + half + pair, inside, 0.0).to(tl.float32)
    else:
        at = tl.arange(0, 2 * HALF)[None, None, :]
        both = tl.load(x + at, there & (at < 2 * half), 0.0).to(tl.float32)
        a, b = tl.split(both.reshape(x.shape[0], x.shape[1], HALF, 2))
    return a, b


@triton.jit
def put_pairs(to, a, b, there, half, HALF: tl.constexpr, form: tl.constexpr):
    """Store what `pairs` reads, in the type of the pointers `to`."""
    if form == "half":
        pair = tl.arange(0, HALF)[None, None, :]
        inside = there & (pair < half)
        tl.store(to + pair, a, inside)
        tl.store(to + half + pair, b, inside)
    else:
        at = tl.arange(0, 2 * HALF)[None, None, :]
        both = tl.join(a, b).reshape(to.shape[0], to.shape[1], 2 * HALF)
        tl.store(to + at, both, there & (at < 2 * half))


@triton.jit
def turned(a, b, c, s):
    """Pairs after their turn."""
    return a * c - b * s, b * c + a * s


@triton.jit
def turn(
    x, to, there, by, half, HALF: tl.constexpr, form: tl.constexpr, has_positions: tl.constexpr,
    inverse: tl.constexpr,
):  # fmt: skip
    """Turn heads from the pointers `x` to the pointers `to`. by: what `angles` takes first."""
    a, b = pairs(x, there, half, HALF, form)
    cos, sin, positions, token, tokens, length, cos_stride = by
    c, s = angles(
        cos, sin, positions, token, tokens, length, cos_stride, half, x.shape[1], HALF, form,
        has_positions, inverse,
    )  # fmt: skip
    a, b = turned(a, b, c, s)
    kind: tl.constexpr = to.dtype.element_ty
    put_pairs(to, a.to(kind), b.to(kind), there, half, HALF, form)


@triton.jit
def copy_rest(x, to, there, half, head_dim, HALF: tl.constexpr):
    """Copy what does not turn."""
    for start in range(2 * half, head_dim, HALF):
        at = start + tl.arange(0, HALF)[None, None, :]
        inside = there & (at < head_dim)
        tl.store(to + at, tl.load(x + at, inside), inside)


@triton.jit
def heads(x, token, head, stride, head_stride):
    """Pointers to heads [TOKENS, HEADS, 1]."""
    return x + token[:, None, None] * stride + head[None, :, None] * head_stride
