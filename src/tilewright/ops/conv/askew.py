"""Rows askew: channels-first images whose rows of pixels are no whole 16 bytes, such as 7×7, 14×14
and audio of odd length. What kernels for 1×1 layers of these ask of a problem (kernels/askew.py).
"""

from __future__ import annotations

import math
from functools import lru_cache

from tilewright.dtypes import DTYPES
from tilewright.ops.conv.problem import GRADIENT_DTYPES, ConvProblem

WHOLE_BYTES = 16
"""Bytes that rows of weights are read in."""


def pixels(p: ConvProblem) -> int:
    """Pixels of an image."""
    return math.prod(p.spatial)


FEW = 32
"""Channels of which half a step of GEMM's kernels, of 128 bytes, would be empty."""


def few(p: ConvProblem) -> bool:
    """Whether so few channels are summed that a tile is one step, whose loads and stores are its
    time; of weights, whether so few are made, of so few filters."""
    if p.direction == "weights":
        return max(p.c, p.k) <= FEW
    return (p.k if p.direction == "data" else p.c) <= FEW


@lru_cache(maxsize=1024)  # of each problem for all kernels
def refusal(p: ConvProblem) -> str | None:
    """Why `p` is no product of rows of pixels as they lie and rows of weights, or None."""
    if p.taps > 1 or any(step > 1 for step in p.stride) or any((*p.pad, *p.pad_after)):
        return "rows are multiplied as they lie: of filters of 1, with strides of 1, unpadded"
    if p.groups > 1:
        return "groups have filters of their own"
    if p.dtype not in GRADIENT_DTYPES:
        return f"rows are of {', '.join(GRADIENT_DTYPES)}, not of {p.dtype}"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array has no elements"
    for name in "xy":
        if not _one_run(p, name):
            return f"the pixels of a channel of {name} do not lie side by side"
    if p.c > 1 and p.strides_of("w")[1] != 1:
        return "the channels of a filter do not lie side by side"
    if p.direction != "weights" and p.rows_alignment("w") < WHOLE_BYTES:
        return f"filters are aligned to {p.rows_alignment('w')} bytes, not to {WHOLE_BYTES}"
    return None


def _one_run(p: ConvProblem, name: str) -> bool:
    """Whether the pixels of a channel are neighbours, one behind the other, and channels lie
    apart."""
    (_, channels, *sizes), (_, between, *strides) = p.shape_of(name), p.strides_of(name)
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return channels == 1 or between >= step


def alignment(p: ConvProblem, name: str) -> int:
    """Bytes, at most 16, that neighbouring pixels of x or y may be moved by at a time."""
    (count, channels, *_), (outer, between, *_) = p.shape_of(name), p.strides_of(name)
    size = DTYPES[p.dtype_of(name)].bytes
    found = math.gcd(p.alignment, pixels(p) * size)
    for number, stride in ((count, outer), (channels, between)):
        if number > 1:
            found = math.gcd(found, stride * size)
    return found if found > size else 1
