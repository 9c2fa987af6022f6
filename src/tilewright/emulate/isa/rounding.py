"""Arithmetic with one rounding, and conversions of floating-point formats, over arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilewright.emulate.waves import Array

_TIE_32 = np.uint64(0x10000000)
_BELOW_32 = np.uint64(0x1FFFFFFF)
_SMALLEST_NORMAL = 2.0**-126


def odd(total: Array, error: Array) -> Array:
    """The float64 of `total` + `error` (an exact sum of two) with rounding to odd: where the sum is
    inexact, the neighbour whose last bit is set. Rounding that to half as many bits or fewer is as
    good as rounding the exact sum (Boldo and Melquiond, 2008)."""
    code = total.view(np.uint64)
    inexact = (error != 0) & ((code & np.uint64(1)) == 0) & np.isfinite(total)
    away = (error > 0) == (total > 0)
    return np.where(inexact, np.where(away, code + np.uint64(1), code - np.uint64(1)), code).view(
        np.float64
    )


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The float64 sum of two, and what its rounding lost (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a × b + c of fp32 with one rounding.

    The product is exact in float64. The sum is rounded there and again to fp32, which differs from
    one rounding only where the first gives a tie of the second, or a denormal result: those are
    done again, exactly.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = np.asarray(product + addend)
    result = total.astype(np.float32)
    size = np.abs(total)
    doubtful = ((total.view(np.uint64) & _BELOW_32) == _TIE_32) | (
        (size < _SMALLEST_NORMAL) & (size > 0)
    )
    if doubtful.any():
        at = np.nonzero(doubtful)
        again = two_sum(
            np.broadcast_to(product, total.shape)[at], np.broadcast_to(addend, total.shape)[at]
        )
        result[at] = odd(*again).astype(np.float32)
    return result


def fma16(a: Array, b: Array, c: Array) -> Array:
    """a × b + c of fp16 with one rounding. float64 holds the sum exactly, or else the product is
    far below half of the last bit of c, which then is the result either way."""
    total = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return total.astype(np.float16)


def flushed(code: Array) -> Array:
    """The bits of fp32 values, denormals replaced by zeros of their sign."""
    return np.where(code & np.uint32(0x7F800000), code, code & np.uint32(0x80000000))


def to_bf16(x: Array) -> Array:
    """The bits of fp32 values rounded to bf16, ties to even; uint32. NaN stays NaN."""
    code = np.ascontiguousarray(x).view(np.uint32)
    half = np.uint32(0x7FFF) + ((code >> np.uint32(16)) & np.uint32(1))
    nan = (code & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, code | np.uint32(0x400000), code + half) >> np.uint32(16)


def to_f16_toward_zero(x: Array) -> Array:
    """fp32 values as fp16, rounded toward zero: too large a number becomes the largest."""
    nearest = x.astype(np.float16)
    over = np.abs(nearest.astype(np.float32)) > np.abs(x)
    return np.where(
        over, (nearest.view(np.uint16) - over.astype(np.uint16)), nearest.view(np.uint16)
    ).view(np.float16)


def encoded(x: Array, form: str, saturate: Array) -> Array:
    """fp32 values in an 8-bit or 4-bit format, ties to even, as uint32.

    saturate: bools, of a shape that broadcasts with `x`. Where set, what is too large, infinity
        included, becomes the largest number; elsewhere infinity, or NaN in a format without one.
        Formats with neither saturate anyway. NaN stays NaN where the format has it.
    """
    kind = np.dtype(getattr(ml_dtypes, form))
    code = x.astype(kind).view(np.uint8).astype(np.uint32)
    if saturate.any():
        most = np.float32(ml_dtypes.finfo(kind).max)
        limited = np.where(np.isnan(x), x, np.clip(x, -most, most))
        code = np.where(saturate, limited.astype(kind).view(np.uint8).astype(np.uint32), code)
    return code
