"""How far a result may be from the reference, by dtype and length of the sum. All tolerances are in
this file.

The reference is computed in float64 from the rounded operands, so the remaining error is the
kernel's own: rounding of the output, and of the partial sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Element by element:
    ``|out - ref| <= relative * |ref| + scaled * rms(ref) + by_row * rms(row) + absolute``.

    A row is what the last dimension has, of the reference too. All zero means equal.
    """

    relative: float
    scaled: float
    absolute: float = 0.0
    by_row: float = 0.0

    def __str__(self) -> str:
        said = f"{self.relative:.3g} of each element + {self.scaled:.3g} of the result's rms"
        return said + (f" + {self.by_row:.3g} of its row's rms" if self.by_row else "")


_SUM_ERROR: dict[str, float] = {
    # Share of rms(ref) by which a sum of one term may be off. It grows with the root of the
    # number of terms, as the error of independent roundings does.
    "fp32": 2.0**-21,
    "fp16": 2.0**-20,
    "bf16": 2.0**-20,
    # fp8 matrix units of sm_89 and sm_90 keep about 14 bits of a partial sum (found by
    # DeepSeek-V3's report, arXiv:2412.19437, section 3.3); other units are better.
    "e4m3fn": 2.0**-11,
    "e5m2": 2.0**-11,
    "e4m3fnuz": 2.0**-11,
    "e5m2fnuz": 2.0**-11,
    # Block-scaled units (sm_100, sm_120, gfx950): none was available, so the same is assumed.
    "mxfp8": 2.0**-11,
    "mxfp4": 2.0**-11,
}

_CUT = 2.0**-24 / 16
"""Share of rms(ref) by which each term of 16 bits moves a sum, beside that. Matrix units cut the
last bits of a sum after every 16 terms instead of rounding them: the error has the sum's sign, so
it grows with the number of terms. On an H200, sums of 200,704 terms in one accumulator were off
by up to 4.7e-4, and as a few partial sums by 1.5e-4; random errors may be 4.3e-4."""

_OPERAND_ERROR: dict[str, float] = {"tf32": 2.0**-7}
"""Share of rms(ref) lost because the matrix unit reads fewer bits than were stored: tf32 keeps 10
of the 23 mantissa bits of both fp32 operands, and some GPUs cut instead of rounding."""


_LEAST_STEP: dict[str, float] = {
    # Spacing of the values next to zero, or the least normal value if smaller ones may be
    # flushed. A relative error has no meaning there.
    "fp32": 2.0**-126,
    "bf16": 2.0**-126,
    "fp16": 2.0**-24,
    "e4m3fn": 2.0**-9,
    "e5m2": 2.0**-16,
    "e4m3fnuz": 2.0**-10,
    "e5m2fnuz": 2.0**-17,
}

_FP32_ERROR = 2.0**-21
"""Share of rms(ref) by which elementwise fp32 arithmetic on a sum may be off, including approximate
division, exp and erf."""


_MOST_SIGMAS = 6
"""Largest deviation of a normally distributed error among the elements of a large result."""

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

    operands: a dtype name or ``"tf32"``.
    splits: number of partial sums. Each beyond the first is kept in fp32 and adds one rounding of
        it.
    amplified: how much elementwise arithmetic on the sum can raise the share of a value's rms by
        which the value is off; 0: no arithmetic follows. A result that is then rounded to an
        integer is at most half a step from the reference, which is not rounded.
    combined: the same for elementwise arithmetic on the operands, before they are rounded to their
        dtype.

    Integer results without such arithmetic must be equal.
    """
    to_integer = DTYPES[output].kind == "int"
    if to_integer and not amplified:
        return Tolerance(0.0, 0.0)
    stored = "fp32" if operands == "tf32" else operands
    scaled = _SUM_ERROR.get(stored, 0.0) * math.sqrt(terms) + _OPERAND_ERROR.get(operands, 0.0)
    scaled += (splits - 1) * DTYPES["fp32"].eps
    if stored in ("fp16", "bf16"):
        scaled += _CUT * terms
    if combined:
        scaled += _boundaries(stored, terms, combined)
    if amplified:
        scaled = (scaled + _FP32_ERROR) * amplified
    if to_integer:
        return Tolerance(DTYPES["fp32"].eps, scaled, 0.5)
    return Tolerance(DTYPES[output].eps, scaled, _LEAST_STEP.get(output, 0.0))


def _boundaries(stored: str, terms: int, combined: float) -> float:
    """What sums of `terms` products may be off by, as a share of their rms, where elements were
    rounded to `stored` after elementwise arithmetic (`combined` as in `tolerance`)."""
    # The reference rounds each element as the kernel does, from nearly the same value. If a
    # rounding boundary lies between the two values, the results are a whole step apart. This
    # happens to a random share `error / step` of the elements, so sums are off by
    # `step * sqrt(error / step)`; a sum of few terms, by one step of a large term.
    error, step = combined * _FP32_ERROR, DTYPES[stored].eps
    found = _MOST_SIGMAS * (math.sqrt(error * step) + error)
    return found + _LARGE_TERM * step / math.sqrt(max(1, terms))


# --- softmax -----------------------------------------------------------------------------------

SCORES = 2.0
"""The standard deviation of the scores whose softmax is checked. An error of a score is the same
share of its weight."""

_WEIGHT_ERROR = _MOST_SIGMAS * 0.21
"""Largest deviation of a sum of rounded weights, in steps of their dtype: a value between two
powers of two is off by a step over 2·sqrt(3) of the larger's, which is 0.21 of its own."""

_TANH_ERROR = 2.0**-10
"""Share by which the GPU's own tanh may be off: twice what PTX says of ``tanh.approx.f32``.
Kernels of fp32 do not use it."""

_SOFTMAX_ERROR = 2.0**-19
"""Share by which a weight may be off by exponentials, running maxima and the sum in fp32."""

_UNEVEN = 2.0
"""How many times the rms of all rows a row's may be: under a causal mask the first rows have few
keys, and rows of few keys are long."""

_LIFT = 2.0**7
"""What kernels that begin a row's maximum with its sink multiply weights of 8 bits by, at least:
small ones keep more bits."""

_HEAVY_TERMS = 6.0
"""How much further, beside the rms of all sums, one is off whose terms are far heavier than usual
and cancel: their roundings do not. Without it 1 of 67 million gradients of a bias, each a sum of
two terms, was off by 2.04 times what is allowed."""

_SHORT_ROW = 1.6
"""How many times smaller than expected a row's own rms may be, which is that of few elements. At
1.5, 1 of 134 million elements was off by 1.01 times what is allowed, by every kernel."""


def score_error(operands: str, depth: int, *, capped: bool = False, combined: float = 0.0) -> float:
    """By how much scores may be off: sums of `depth` products of `operands` with a standard
    deviation of `SCORES`.

    capped: whether a tanh follows. combined: as in `tolerance`.
    """
    share = _SUM_ERROR[operands] * math.sqrt(depth) + _FP32_ERROR
    share += _boundaries(operands, depth, combined) if combined else 0.0
    share += _TANH_ERROR if capped and operands != "fp32" else 0.0
    return SCORES * share


def softmax_tolerance(
    operands: str, output: str, terms: int, scores: float, uneven: float = 1.0
) -> Tolerance:
    """The tolerance for sums of `terms` values with the weights of a softmax.

    operands: the dtype that weights are rounded to before they are multiplied by the values. The
        reference does not round them.
    scores: by how much scores may be off (`score_error`).
    uneven: how many times larger than usual a row's rms may be beside that of all rows: those
        without keys are zero, and count.
    """
    scaled = _UNEVEN * uneven * _softmax_share(operands, terms, scores)
    return Tolerance(DTYPES[output].eps, scaled, _LEAST_STEP.get(output, 0.0))


def softmax_row_tolerance(
    operands: str,
    output: str,
    terms: int,
    scores: float,
    *,
    beside: float = 0.0,
    further: float = 1.0,
) -> Tolerance:
    """As `softmax_tolerance`, where each row of the output has weights of its own. A row's errors
    are shares of its weights, as its elements are: they are judged beside the row's own rms. A row
    with one heavy weight among rows of thousands of light ones has ten times their rms, and their
    errors.

    beside: the rms of the values where more than they have a weight (sinks), else 0. Weights are
        then rounded beside the sink's, so small ones are off by steps that are no share of
        their row.
    further: how many times further than a sum whose weights alone are rounded one may be off.
    """
    by_row = further * _SHORT_ROW * _softmax_share(operands, terms, scores)
    absolute = _LEAST_STEP.get(output, 0.0) + 2.0 * beside * _least_weights(operands, terms)
    # Where a row has one weight, rounding it moves the whole row by up to half a step. For 8 bits
    # this is not allowed for: it is so much that a wrong soft cap would pass.
    alone = DTYPES[operands].eps / 2 if DTYPES[operands].bytes > 1 else 0.0
    relative = max(DTYPES[output].eps, alone)
    return Tolerance(relative, 0.0, absolute, by_row)


def _softmax_share(operands: str, terms: int, scores: float) -> float:
    """By which share of their rms sums with the weights of a softmax may be off."""
    # Small weights have a step of their own, and each row's largest weight is 1 before the
    # division.
    rounding = _WEIGHT_ERROR * DTYPES[operands].eps + _least_weights(operands, terms)
    sums = _SUM_ERROR[operands] * math.sqrt(terms)
    return rounding + sums + scores + _SOFTMAX_ERROR


def _least_weights(operands: str, terms: int) -> float:
    """What weights too small for their dtype add, beside a weight of 1."""
    step = _LEAST_STEP[operands] / (_LIFT if DTYPES[operands].bytes == 1 else 1.0)
    return step * math.sqrt(terms)


def logsumexp_tolerance(scores: float) -> Tolerance:
    """The tolerance for logarithms of sums of exponentials of scores that may be off by
    `scores`."""
    return Tolerance(_FP32_ERROR, 0.0, scores + _SOFTMAX_ERROR)


def cancelling(one: Tolerance, operands: str, depth: int, magnitude: float) -> Tolerance:
    """`one`, of sums whose terms may cancel to nothing: they are differences of sums of `depth`
    products, and are multiplied by something of up to `magnitude`, all of them together."""
    error = _MOST_SIGMAS * _SUM_ERROR[operands] * math.sqrt(depth)
    return replace(one, absolute=one.absolute + magnitude * error)


def heavy_element(one: Tolerance, operands: str, elements: int) -> Tolerance:
    """`one`, of elements that are weights times a difference of sums of products with something
    rounded to `operands`. In a row of `elements`, one may have most of the weight; it is then off
    by a share of itself, which is the row's rms times the root of `elements`."""
    share = _WEIGHT_ERROR * DTYPES[operands].eps * math.sqrt(elements)
    return replace(one, by_row=one.by_row + share)


def rounded_terms(one: Tolerance) -> Tolerance:
    """`one`, of sums of a few terms that are rounded to the dtype of the output before they are
    added, and then again."""
    return replace(one, relative=2 * one.relative, scaled=_HEAVY_TERMS * one.scaled)


# --- norms -------------------------------------------------------------------------------------


def norm_gradient(one: Tolerance, rows: int, degrees: int, eps: float) -> Tolerance:
    """`one`, of gradients of a norm of standard normal values: differences of terms in proportion
    to 1 / sqrt(var + eps) of their row. Of rows of few values some are steep, and their terms
    cancel: a layer norm of two values is a sign.

    degrees: independent values that a row's variance is made of. That of the steepest of `rows`
        rows falls with their number to the power of 2 / `degrees`.
    """
    steepest = min(eps**-0.5, (4.0 * max(1, rows)) ** (1.0 / max(1, degrees)))
    return replace(one, absolute=one.absolute + 8.0 * _FP32_ERROR * steepest)
