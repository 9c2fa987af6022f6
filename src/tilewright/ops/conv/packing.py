"""Packed images: what the first kernel of pipeline ``packed`` makes of x and w (kernels/pack.py).

A pixel gets `pitch` channels, zeros behind its own. Rows, and the padding's rows, come with the
padding's pixels, so no step of the second kernel asks whether a pixel is inside. A row of the
filter with its channels is then one run of elements, in x as in w.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tilewright.dtypes import DTYPES
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.limits import LEAST_8_BIT_K
from tilewright.ops.powers import power_of_two

X, W = "packed_x", "packed_w"
"""The temporaries."""

MOST_CHANNELS = 8
WHOLE = 16
"""Bytes: rows begin at multiples of these, and so many are a kernel's longest vector."""
_LEAST_16_BIT_K = 16
"""Elements that matrix instructions multiply at least, of 16 bits; of fp32 fewer would do."""


def pitch(p: ConvProblem) -> int:
    """Channels of a packed pixel."""
    few = MOST_CHANNELS // 2
    return few if p.c <= few else MOST_CHANNELS


def run(p: ConvProblem) -> int:
    """Elements that a row of the filter meets."""
    return p.filter[-1] * pitch(p)


def filter_rows(p: ConvProblem) -> int:
    """Rows of a filter, over its depth and height."""
    return p.taps // p.filter[-1]


def sizes(p: ConvProblem) -> tuple[int, int]:
    """Depth and height of packed x: all rows that a filter meets."""
    depth, height, _ = p.three
    made = (
        dim.stride * (dim.out - 1) + dim.dilation * (dim.filter - 1) + 1 for dim in (depth, height)
    )
    return next(made), next(made)


def row_x(p: ConvProblem) -> int:
    """Elements of a row of packed x."""
    each = WHOLE // DTYPES[p.dtype].bytes
    met = p.stride[-1] * (p.out_sizes[-1] - 1) * pitch(p) + run(p)
    return -(-met // each) * each


def least_depth(p: ConvProblem) -> int:
    """Elements that matrix instructions multiply at least."""
    return LEAST_8_BIT_K if DTYPES[p.dtype].bytes == 1 else _LEAST_16_BIT_K


def row_w(p: ConvProblem) -> int:
    """Elements of a row of a packed filter, zeros behind the run: whole steps of any tile."""
    return max(least_depth(p), power_of_two(run(p)))


def strides(p: ConvProblem) -> tuple[int, int, int]:
    """Elements from an image, a depth and a height of packed x to the next."""
    depth, height = sizes(p)
    row = row_x(p)
    return depth * height * row, height * row, row


def steps(p: ConvProblem) -> tuple[int, int, int]:
    """Elements from a row of the filter's taps, in depth and in height, and from a pixel of the
    result to the next, in packed x."""
    depth, height, width = p.three
    _, by_depth, by_height = strides(p)
    return depth.dilation * by_depth, height.dilation * by_height, width.stride * pitch(p)


def shape_x(p: ConvProblem) -> tuple[int, ...]:
    """The shape of packed x: [images, depth, height, elements of a row]."""
    return p.n, *sizes(p), row_x(p)


def shape_w(p: ConvProblem) -> tuple[int, ...]:
    """The shape of packed w: [filters, rows of a filter, elements of a row]."""
    return p.k, filter_rows(p), row_w(p)


@lru_cache(maxsize=256)  # of each problem for many kernels
def counts(p: ConvProblem) -> tuple[int, ...]:
    """Elements of packed x, and of packed w where it is read."""
    shapes = (shape_x(p),) if p.direction == "weights" else (shape_x(p), shape_w(p))
    return tuple(map(math.prod, shapes))
