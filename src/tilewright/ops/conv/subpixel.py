"""Blocks of pixels of x whose gradients are computed together, for pipeline ``subpixel``.

The gradient of x, of few channels, is a convolution of y's gradient whose stride is 1: its result
has, for each block of pixels of x, the block's channels side by side (a sub-pixel convolution: Shi
et al., "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel
Convolutional Neural Network", CVPR 2016). A block is as long as the stride, or a multiple of it
along the width. All its pixels meet the same pixels of y, each through a tap of its own, or through
none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tilewright.ops.conv.config import MOST_TILE
from tilewright.ops.conv.geometry import Dim
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.pool import Each, least
from tilewright.ops.powers import power_of_two

COLUMNS = 32
"""Columns of a tile, if a block that is as long as the stride has no more: elements of a block of
x."""

LEAST_ACROSS = 8
"""Blocks side by side of a tile, if it has several lines."""

LEAST, MOST = 16, 128
"""Columns that matrix instructions multiply at least; and that a tile has at most."""

Three = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of a problem, by depth, height and width.

    sizes: pixels of x of a block. first: the pixel of y that block 0 meets first. met: pixels of y
        that a block meets. columns: of a tile, which holds the elements of a block.
    """

    sizes: Three
    first: Three
    met: Three
    columns: int


@lru_cache(maxsize=256)  # of each problem for many kernels
def blocks(p: ConvProblem) -> Blocks:
    """The blocks of `p`."""
    depth, height, width = p.three
    one = p.c * depth.stride * height.stride * width.stride
    times = max(1, min(COLUMNS // one, -(-width.size // width.stride)))
    sizes = (depth.stride, height.stride, width.stride * times)
    ends = [_met(dim, size) for dim, size in zip(p.three, sizes, strict=True)]
    first, met = ([end[i] for end in ends] for i in (0, 1))
    return Blocks(
        sizes, (first[0], first[1], first[2]), (met[0], met[1], met[2]),
        max(LEAST, power_of_two(p.c * math.prod(sizes))),
    )  # fmt: skip


def _met(dim: Dim, size: int) -> tuple[int, int]:
    """The first pixel of y that the first `size` pixels of x meet, and how many they meet."""
    first = -((dim.dilation * (dim.filter - 1) - dim.pad) // dim.stride)
    return first, (size - 1 + dim.pad) // dim.stride - first + 1


def counts(p: ConvProblem) -> Three:
    """Blocks of an image, by depth, height and width."""
    found = [-(-dim.size // size) for dim, size in zip(p.three, blocks(p).sizes, strict=True)]
    return found[0], found[1], found[2]


def across(p: ConvProblem, rows: Each) -> Each:
    """Blocks side by side of a tile of `rows` blocks, which has as many lines as that leaves: a
    power of two, by which fewest rows are empty; of equals the widest. rows: a number, or an array
    of them."""
    import numpy as np

    _, high, wide = counts(p)
    n: Each = np.array([[MOST_TILE >> i] for i in range(MOST_TILE.bit_length())])
    lines = np.maximum(1, rows // n)
    empty = -(-wide // n) * n * -(-high // lines) * lines
    fits = (n <= rows) & (n >= least(rows, LEAST_ACROSS)) & ((high > 1) | (n == rows))
    found = n[np.where(fits, empty, np.inf).argmin(0), 0]
    return found if getattr(rows, "ndim", 0) else int(found[0])


def shape_w(p: ConvProblem) -> tuple[int, ...]:
    """The shape of the filters, for each pixel of y that a block meets: [pixels, filters,
    columns]."""
    of = blocks(p)
    return math.prod(of.met), p.k, of.columns
