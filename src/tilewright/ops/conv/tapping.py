"""Few filters, forward: a product before the sum over taps. Each pixel of x is multiplied by the
taps of all filters, as a 1×1 convolution with as many filters as these have taps together; then a
layout step adds up, for each pixel of y, what its taps have (kernels/taps.py). So x, which has most
of the elements, is read once, as it lies. The products lie tap by tap, each with all pixels, so
that the step reads neighbours. What is added up is fp32, and the epilogue follows the
sum: a config's name says the epilogue and the dtype of y, not those of the product between
(`config.apart`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from tilewright.dtypes import DTYPES
from tilewright.ops.conv.config import SUMS
from tilewright.ops.conv.geometry import cdiv, channels_first, channels_last
from tilewright.ops.conv.problem import GRADIENT_DTYPES, ConvProblem

MOST_COLUMNS = 128
"""Taps of all filters."""

ROW_BYTES = 16
"""Bytes that a tap's products are filled up to multiples of."""

PIXELS = 128
"""Pixels of y that a workgroup adds up, of one filter."""


def refusal(p: ConvProblem, turned: bool) -> str | None:
    """Why `p` is not computed so, or None. turned: whether the filters are turned before."""
    if p.direction != "forward":
        return "only forward has a product before the sum over taps"
    if p.taps == 1:
        return "there is no sum over taps"
    if p.groups > 1:
        return "groups have filters of their own"
    if p.dtype not in GRADIENT_DTYPES:
        return f"what is added up is of {', '.join(GRADIENT_DTYPES)}, not of {p.dtype}"
    if columns(p) > MOST_COLUMNS:
        return f"{p.k} filters have {columns(p)} taps together, over {MOST_COLUMNS}"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array has no elements"
    if not turned and p.strides_of("w") != channels_last(p.k, p.c, p.filter):
        return "the filters do not lie as rows of channels, one for each tap"
    return None


def columns(p: ConvProblem) -> int:
    """Taps of all filters."""
    return p.k * p.taps


def plane(p: ConvProblem) -> int:
    """Elements from a tap's products with all pixels to the next tap's."""
    each = ROW_BYTES // DTYPES[SUMS].bytes
    return cdiv(p.n * math.prod(p.spatial), each) * each


@lru_cache(maxsize=1024)
def inside(p: ConvProblem) -> ConvProblem:
    """The 1×1 convolution that is left before the step."""
    ones, pixels = (1,) * len(p.filter), math.prod(p.spatial)
    return replace(
        p, k=columns(p), filter=ones, stride=(), dilation=(), pad=(), pad_after=(), epilogue="",
        dtype_out=SUMS, w_strides=(),
        y_strides=(pixels, plane(p), *channels_first(p.spatial)),
    )  # fmt: skip


def elements(p: ConvProblem) -> int:
    """Elements of all taps' products."""
    return columns(p) * plane(p)


def workgroups(p: ConvProblem) -> int:
    """One for each block of pixels of each filter and image."""
    return p.n * p.k * cdiv(math.prod(p.out_sizes), PIXELS)
