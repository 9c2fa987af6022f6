"""The steps of an fp32 division with one rounding.

The compiler divides n by d so: `v_div_scale` brings both into a range where a reciprocal and
Newton's steps neither overflow nor become denormal, `v_div_fmas` makes the last step and takes the
scaling back, and `v_div_fixup` gives the special cases. The manuals' text of the first two cannot
be meant literally (a denominator of 2**126 would be scaled up, and the result by 2**32); what is
here is what makes quotients right in every range, as tests show.
"""

from __future__ import annotations

import numpy as np

from tilewright.emulate.isa.access import (
    destination,
    mask_reader,
    put_lane_mask,
    source,
)
from tilewright.emulate.isa.elementwise import elementwise
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.rounding import odd, two_sum
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.operand import operand
from tilewright.listing.text import Instruction

_TINY = float(np.finfo(np.float32).tiny)
_UP, _DOWN = np.float32(2.0**64), np.float32(2.0**-64)


def _exponent(x: Array) -> Array:
    """The biased exponent field of fp32."""
    return ((x.view(np.uint32) >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int32)


def scaled(x: Array, d: Array, n: Array) -> tuple[Array, Array]:
    """x (which is d or n) as the division n / d wants it, and whether `v_div_fmas` must scale."""
    wide_d, wide_n = d.astype(np.float64), n.astype(np.float64)
    is_d, is_n = x == d, x == n
    reciprocal, quotient = np.abs(1 / wide_d), np.abs(wide_n / wide_d)
    large = _exponent(n) - _exponent(d) >= 96
    small_d = (np.abs(wide_d) < _TINY) & (d != 0)
    large_d = (reciprocal < _TINY) & (reciprocal > 0)
    small = (quotient < _TINY) & (quotient > 0)
    tiny_n = _exponent(n) <= 23
    cases = [
        (n == 0) | (d == 0),
        large,
        small_d,
        large_d & small,
        large_d,
        small,
        tiny_n,
    ]
    one = np.float32(1)
    factor = np.select(
        cases,
        [
            np.float32(np.nan),
            np.where(is_d, _UP, one),
            _UP,
            np.where(is_d, _DOWN, one),
            _DOWN,
            np.where(is_n, _UP, one),
            _UP,
        ],
        one,
    ).astype(np.float32)
    flagged = np.select(cases, [False, True, False, True, False, True, False], False)
    return x * factor, flagged


@means("v_div_scale_f32")
def _scale(ins: Instruction, context: Context) -> Executor:
    """Operands: result, mask, the one to scale, denominator, numerator."""
    target = context.target
    x, d, n = (source(ins, i, "f32", target, i - 2) for i in (2, 3, 4))
    write, flag = destination(ins, 0, "f32", target, sources=3), put_lane_mask(ins, 1, target)

    def execute(waves: Waves) -> None:
        shape = waves.active.shape
        given = (np.broadcast_to(each(waves), shape) for each in (x, d, n))
        made, flagged = scaled(*(np.ascontiguousarray(each) for each in given))
        write(waves, made)
        flag(waves, flagged)

    return execute


@means("v_div_fmas_f32")
def _last_step(ins: Instruction, context: Context) -> Executor:
    """a × b + c, where VCC is set times 2**64 (c is 2 or more) or 2**-64; rounded once."""
    target = context.target
    a, b, c = (source(ins, i, "f32", target) for i in (1, 2, 3))
    chosen = mask_reader(operand("vcc" if target.lanes == 64 else "vcc_lo"), target)
    write = destination(ins, 0, "f32", target)

    def execute(waves: Waves) -> None:
        addend = c(waves)
        product = a(waves).astype(np.float64) * b(waves).astype(np.float64)
        total = odd(*two_sum(product, addend.astype(np.float64)))
        scale = np.where(_exponent(addend) > 127, 2.0**64, 2.0**-64)
        write(waves, np.where(chosen(waves), total * scale, total).astype(np.float32))

    return execute


def _fixed(quotient: Array, d: Array, n: Array) -> Array:
    """The quotient with the sign of n / d, or what a special case gives. Newton's steps make NaN of
    a quotient far beyond the largest number; what the manual gives for that is infinity."""
    sign = np.where(np.signbit(d) ^ np.signbit(n), np.float32(-1), np.float32(1))
    nan = np.float32(np.nan)
    zero, infinite = np.float32(0), np.float32(np.inf)
    return np.select(
        [
            np.isnan(n) | np.isnan(d),
            ((d == 0) & (n == 0)) | (np.isinf(d) & np.isinf(n)),
            (d == 0) | np.isinf(n),
            np.isinf(d) | (n == 0),
            _exponent(n) - _exponent(d) < -150,
            np.isnan(quotient),
        ],
        [nan, nan, sign * infinite, sign * zero, sign * zero, sign * infinite],
        np.copysign(quotient, sign),
    ).astype(np.float32)


elementwise("v_div_fixup_f32", "f32 <- f32 f32 f32", _fixed)
