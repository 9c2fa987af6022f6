"""How far a result may be from the reference: the one table, by dtype and length of the sum.

The reference is computed in float64 from the operands as they were rounded, so what remains is
the kernel's own error: rounding of the output, and of the partial sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Element by element: ``|out - ref| <= relative * |ref| + scaled * rms(ref) + absolute``.

    All zero means equal.
    """

    relative: float
    scaled: float
    absolute: float = 0.0


_SUM_ERROR: dict[str, float] = {
    # Share of rms(ref) by which a sum of one term may be off; it grows with the root of the
    # number of terms, as independent roundings do.
    "fp32": 2.0**-21,
    "fp16": 2.0**-20,
    "bf16": 2.0**-20,
    # fp8 matrix units of sm_89 and sm_90 keep about 14 bits of a partial sum (as DeepSeek-V3's
    # report found, arXiv:2412.19437, section 3.3); the others are better.
    "e4m3fn": 2.0**-11,
    "e5m2": 2.0**-11,
    "e4m3fnuz": 2.0**-11,
    "e5m2fnuz": 2.0**-11,
    # The block-scaled units (sm_100, sm_120, gfx950), of which none was at hand: as those.
    "mxfp8": 2.0**-11,
    "mxfp4": 2.0**-11,
}

_OPERAND_ERROR: dict[str, float] = {"tf32": 2.0**-7}
"""Share of rms(ref) lost because the matrix unit reads fewer bits than were stored: tf32 keeps
10 of fp32's 23 mantissa bits of both operands, cut rather than rounded on some GPUs."""


_LEAST_STEP: dict[str, float] = {
    # Spacing of the values next to zero, or the least normal one where smaller ones may be
    # flushed: a relative error means nothing there.
    "fp32": 2.0**-126,
    "bf16": 2.0**-126,
    "fp16": 2.0**-24,
    "e4m3fn": 2.0**-9,
    "e5m2": 2.0**-16,
    "e4m3fnuz": 2.0**-10,
    "e5m2fnuz": 2.0**-17,
}

_FP32_ERROR = 2.0**-21
"""Share of rms(ref) that elementwise fp32 arithmetic on a sum (approximate division, exp and erf
among it) may be off."""


_MOST_SIGMAS = 6
"""How far a normally distributed error goes among the elements of a large result."""

_LARGE_TERM = 16.0
"""A large product of two elements, over the rms of such products."""


def tolerance(
    operands: str,
    output: str,
    terms: int,
    splits: int = 1,
    amplified: float = 0.0,
    combined: float = 0.0,
) -> Tolerance:
    """The tolerance for sums of `terms` products of `operands`, written as `output`.

    `operands` is a dtype name or ``"tf32"``; each of `splits` partial sums beyond the first is
    kept in fp32 and adds one rounding of it. Integer results must be equal. `amplified`,
    where elementwise arithmetic follows: by how much that can raise the share of its rms by
    which a value is off (0: nothing follows); what is rounded to an integer then is half a step
    from the reference, which is not, at most. `combined`: the same of elementwise arithmetic on
    the operands before they are rounded to their dtype.
    """
    to_integer = DTYPES[output].kind == "int"
    if to_integer and not amplified:
        return Tolerance(0.0, 0.0)
    stored = "fp32" if operands == "tf32" else operands
    scaled = _SUM_ERROR.get(stored, 0.0) * math.sqrt(terms) + _OPERAND_ERROR.get(operands, 0.0)
    scaled += (splits - 1) * DTYPES["fp32"].eps
    if combined:
        # The reference rounds each element as the kernel does, from nearly the same value: where
        # a rounding boundary lies between the two, they are a whole step apart. That befalls a
        # share `error / step` of the elements, at random, so sums are off by
        # `step * sqrt(error / step)`; a sum of few terms, by one step of a large term.
        error, step = combined * _FP32_ERROR, DTYPES[stored].eps
        scaled += _MOST_SIGMAS * (math.sqrt(error * step) + error)
        scaled += _LARGE_TERM * step / math.sqrt(terms)
    if amplified:
        scaled = (scaled + _FP32_ERROR) * amplified
    if to_integer:
        return Tolerance(DTYPES["fp32"].eps, scaled, 0.5)
    return Tolerance(DTYPES[output].eps, scaled, _LEAST_STEP.get(output, 0.0))
