"""From products to scores and weights, for one warp group's rows, in Gluon for sm_90.

Exponentials are taken to base 2, so scores are multiplied by log₂e: with the scale, in the same
multiply-add that subtracts the row's maximum; before that if a soft cap or ALiBi changes them.
"""

from tilewright.ops.device.gluon_api import clamp, gl, jit

LOG2E = gl.constexpr(1.4426950408889634)
LN2 = gl.constexpr(0.6931471805599453)
LEAST_SCALE = gl.constexpr(1e-30)
LARGE = gl.constexpr(2.0**40)
STEEPEST = gl.constexpr(2.0**90)
"""Both as in `scores`."""


@jit
def in_base2(x):
    """`scores.in_base2`. The clamp is one instruction of each element of a bias."""
    return x + (LOG2E - 1.0) * clamp(x, -LARGE, LARGE)


@jit
def natural(x):
    """`scores.natural`."""
    most: gl.constexpr = (LOG2E - 1.0) * LARGE
    return x - clamp(x * (1.0 - LN2), -most, most)


@jit
def bias_in_base2(found):
    """What is added to scores of base 2, from elements of a bias."""
    x = found.to(gl.float32)
    if found.dtype == gl.float16:  # its largest number is small
        x = x * LOG2E
    else:
        x = in_base2(x)
    return x


@jit
def slope_of(x):
    """`scores.slope_of`, of a number."""
    steep = gl.maximum(gl.minimum(x, STEEPEST), -STEEPEST)
    return gl.where(x == x, steep, x) * LOG2E


@jit
def base2(scale):
    """The factor from a product to a score in base 2. A scale of 0 becomes one so small that all
    scores are equal, as masked ones must stay at minus infinity."""
    return gl.where(scale == 0.0, LEAST_SCALE, scale) * LOG2E


@jit
def keys(s, col, EIGHT: gl.constexpr):
    """The keys of the columns of scores `s` of the block from key `col` on.

    EIGHT: the block's left half has keys 0, 1, 4, 5, 8, 9…, and its right half 2, 3, 6, 7…; so they
    come from memory, as a thread then has the weights of four keys in a row, which is what one of
    wgmma's registers holds of an 8-bit operand.
    """
    at = gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    if EIGHT:
        HALF: gl.constexpr = s.shape[1] // 2
        at = at % HALF * 2 - at % 2 + at // HALF * 2
    return col + at


@jit
def changed(
    s, row, col, shift, scale, softcap, slope, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr,
    EIGHT: gl.constexpr = False,
):  # fmt: skip
    """Scores in base 2 from products `s`, whose first is of query `row` and key `col`, with a soft
    cap and ALiBi, whose slope comes from `slope_of`.

    The hyperbolic tangent comes from an exponential and a division: the hardware's own is off by
    2⁻¹¹, which times a cap of 50 is two percent of a weight."""
    if SOFTCAP:
        e = gl.exp2(s * (scale / softcap * (2.0 * LOG2E)))
        s = (softcap * LOG2E) * (1.0 - 2.0 / (1.0 + e))
    else:
        s = s * base2(scale)
    if ALIBI:
        i = row + shift + gl.arange(0, s.shape[0], gl.SliceLayout(1, s.type.layout))
        j = keys(s, col, EIGHT)
        far = gl.abs(gl.expand_dims(i, 1) - gl.expand_dims(j, 0))
        s = s - slope * far.to(gl.float32)
    return s


@jit
def masked(
    s, row, col, n_kv, shift, left, right, first, MASK: gl.constexpr, EIGHT: gl.constexpr
):  # fmt: skip
    """Minus infinity where a query does not see a key."""
    j = keys(s, col, EIGHT)
    if MASK == "none":
        seen = gl.expand_dims(j < n_kv, 0)
    else:
        i = row + shift + gl.arange(0, s.shape[0], gl.SliceLayout(1, s.type.layout))
        last = gl.minimum(i + right, n_kv - 1)
        seen = gl.expand_dims(j, 0) <= gl.expand_dims(last, 1)
    if MASK == "window":
        near = gl.expand_dims(j, 0) >= gl.expand_dims(i - left, 1)
        seen = seen & (near | gl.expand_dims(j < first, 0))
    return gl.where(seen, s, float("-inf"))


@jit
def rows(column, like):
    """A number for each row of the scores, for the rows of another tensor."""
    OF: gl.constexpr = gl.SliceLayout(1, like.type.layout)
    return gl.expand_dims(gl.convert_layout(column, OF, assert_trivial=True), 1)


@jit
def weights_of(s, most, total, scale, SCALED: gl.constexpr, MASKED: gl.constexpr):
    """(weights, maximum, sum, what earlier sums are multiplied by) after one more block.

    SCALED: `s` is in base 2 already. MASKED: a row may have seen nothing yet, and its maximum is
    minus infinity.
    """
    block = gl.max(s, 1)
    if not SCALED:
        block = block * scale
    new = gl.maximum(most, block)
    base = new
    if MASKED:
        base = gl.where(new == float("-inf"), 0.0, new)
    again = gl.exp2(most - base)
    below = gl.expand_dims(base, 1)
    if SCALED:
        p = gl.exp2(s - below)
    else:
        p = gl.exp2(gl.fma(s, gl.full_like(s, scale), gl.full_like(s, 0.0) - below))
    total = total * again + gl.sum(p, 1)
    return p, new, total, again
