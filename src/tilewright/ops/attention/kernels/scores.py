"""What becomes of a tile of products before the softmax, and which tiles of keys need a mask.

All scores are in units of log2(e), so that an exponential is one `exp2`.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LARGE = tl.constexpr(2.0**40)
"""Numbers beyond it differ by over 2^16 if they differ at all, so that of two such scores one has
no weight, in whatever units the difference is."""
STEEPEST = tl.constexpr(2.0**90)
"""A slope of this size, times a distance of up to 2^31, is finite, and drowns every product."""


@triton.jit
def in_base2(x):
    """A score of natural units, of any finite size, in units of log2(e), finite too: a number
    beyond LARGE keeps its own size, and its order among others."""
    return x + (LOG2E - 1.0) * tl.clamp(x, -LARGE, LARGE)


@triton.jit
def natural(x):
    """What `in_base2` makes `x` of."""
    most: tl.constexpr = (LOG2E - 1.0) * LARGE
    return x - tl.clamp(x * (1.0 - 1.0 / LOG2E), -most, most)


@triton.jit
def slope_of(x):
    """A slope in units of log2(e), such that its products with distances are finite."""
    return tl.clamp(x, -STEEPEST, STEEPEST, propagate_nan=tl.PropagateNan.ALL) * LOG2E


@triton.jit
def spans(
    i0, i1, shift, left, right, first, begin, end, TILE_KV: tl.constexpr, MASK: tl.constexpr
):  # fmt: skip
    """Which tiles of the keys from `begin` (a multiple of TILE_KV) to `end` queries `i0` to `i1`
    need, those without a mask apart.

    Returns (lo, full_lo, full_hi, firsts, lefts, rights): tiles from full_lo to full_hi need no
    mask. Tiles with a mask are `firsts` from begin, `lefts` from lo and `rights` from full_hi;
    `masked_tile` numbers them.
    """
    hi = end
    lo = begin
    full_lo = begin
    full_hi = end
    firsts = 0
    if MASK != "none":
        hi = min(end, i1 + shift + right + 1)
        full_hi = min(end, i0 + shift + right + 1)
    if MASK == "window":
        lo = max(begin, max(i0 + shift - left, 0) // TILE_KV * TILE_KV)
        firsts = tl.cdiv(max(min(first, min(hi, lo)) - begin, 0), TILE_KV)
        full_lo = max(lo, tl.cdiv(max(i1 + shift - left, 0), TILE_KV) * TILE_KV)
    hi = max(hi, lo)
    full_lo = min(full_lo, tl.cdiv(hi, TILE_KV) * TILE_KV)
    full_hi = max(full_lo, max(full_hi, 0) // TILE_KV * TILE_KV)
    lefts = max(full_lo - lo, 0) // TILE_KV
    rights = tl.cdiv(max(hi - full_hi, 0), TILE_KV)
    return lo, full_lo, full_hi, firsts, lefts, rights


@triton.jit
def masked_tile(
    t, begin, lo, full_hi, firsts, lefts, TILE_KV: tl.constexpr, MASK: tl.constexpr
):  # fmt: skip
    """The first key of masked tile `t` of those that `spans` counted."""
    j0 = full_hi + (t - firsts - lefts) * TILE_KV
    if MASK == "window":
        inner = lo + (t - firsts) * TILE_KV
        j0 = tl.where(t < firsts, begin + t * TILE_KV, tl.where(t < firsts + lefts, inner, j0))
    return j0


@triton.jit
def seen(i, j, n_kv, shift, left, right, first, MASK: tl.constexpr):
    """[queries, keys]: whether each query sees each key (see `mask`). The distance is compared with
    scalars: bounds for each query would be kept in registers."""
    found = (j < n_kv)[None, :]
    if MASK != "none":
        distance = j[None, :] - i[:, None]
        found = found & (distance <= shift + right)
        if MASK == "window":
            found = found & ((distance >= shift - left) | (j < first)[None, :])
    return found


@triton.jit
def capped(s, cap):
    """cap·tanh(s / cap), where s is in units of log2(e), and so is the result.

    By exp2, which overflows to the right limit on both sides. It is off by some 1e-7 of the cap;
    the tanh of sm_75 and later by 5e-4 of it."""
    top = cap * LOG2E
    return top - (2.0 * top) / (1.0 + tl.exp2(s * (2.0 / cap)))


@triton.jit
def biased(s, bias, i, j, n_q, n_kv, kv_len, MASKED: tl.constexpr):
    """`s` with a bias added, in units of log2(e), or -inf where a boolean one says no. bias: of the
    tile's rows; [rows] of pointers."""
    where = bias[:, None] + j[None, :]
    inside = (i < n_q)[:, None]
    if MASKED:
        inside = inside & (j < n_kv)[None, :]
    if bias.dtype.element_ty == tl.uint8:  # booleans
        s = tl.where(tl.load(where, mask=inside, other=0) != 0, s, float("-inf"))
    elif bias.dtype.element_ty == tl.float16:  # its largest number is small
        s += tl.load(where, mask=inside, other=0.0).to(tl.float32) * LOG2E
    else:
        s += in_base2(tl.load(where, mask=inside, other=0.0).to(tl.float32))
    return s


@triton.jit
def sloped(s, slope, i, j, shift):
    """`s` without the slope times the distance. slope: of the rows' heads, from `slope_of`."""
    distance = tl.abs(j[None, :] - i[:, None] - shift)
    return s - slope * distance.to(tl.float32)
