"""Boxes of pixels: how a box of the result meets a box of what it is gathered from, and which boxes
waste the fewest pixels.

A box is so many images by so many pixels along each dimension, written ``1x8x16``. The copy engine
brings the pixels that one tap joins with it as one box of the source.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from tilewright.ops.conv.config import MOST_TILE, ConvConfig
from tilewright.ops.conv.geometry import Dim, Sizes
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.pool import Each, each
from tilewright.ops.powers import power_of_two

MOST_ELEMENT_STRIDE = 8
MOST_SPAN = 256
"""The longest element stride of a tensor map, and the most elements that a box reaches over in one
dimension, skipped ones included."""


Residues = tuple[int, int, int]
"""A residue class of the result's pixels, in each of three dimensions."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How the pixels of a result, or of one residue class of them, meet their source in one
    dimension: pixel q and the j-th tap meet pixel ``q·by_pixel + origin + j·by_tap``.

    size: pixels of the result. count: taps. first, apart: the first tap, and how far apart they
    are.
    """

    size: int
    count: int
    first: int
    apart: int
    origin: int
    by_tap: int
    by_pixel: int


def walk(dim: Dim, direction: str, residue: int = 0) -> Walk:
    """The walk along `dim`: of the pixels of y; in the gradient of the data, of the pixels of x
    with this residue."""
    if direction != "data":
        return Walk(dim.out, dim.filter, 0, 1, -dim.pad, dim.dilation, dim.stride)
    taps = dim.taps_of(residue)
    first = taps.start if taps else 0
    return Walk(
        size=-(-(dim.size - residue) // dim.stride),
        count=len(taps),
        first=first,
        apart=dim.period,
        # The stride divides this where there is a tap.
        origin=(residue + dim.pad - first * dim.dilation) // dim.stride,
        by_tap=-(dim.dilation // dim.common),
        by_pixel=1,
    )


def residues(p: ConvProblem) -> Iterator[Residues]:
    """The residue classes of the result that have pixels, in each of three dimensions."""
    if p.direction != "data":
        yield (0, 0, 0)
        return
    for found in itertools.product(*(range(min(dim.stride, dim.size)) for dim in p.three)):
        first, second, third = found
        yield (first, second, third)


@lru_cache(maxsize=1024)  # of each problem for hundreds of kernels
def walks(p: ConvProblem, residue: Residues) -> tuple[Walk, Walk, Walk]:
    """The walks along three dimensions."""
    d, h, w = (walk(dim, p.direction, r) for dim, r in zip(p.three, residue, strict=True))
    return d, h, w


MOST_TOGETHER = 16
"""Residue classes of one launch, each with a tensor map among a kernel's parameters."""


@lru_cache(maxsize=1024)  # of each problem for hundreds of kernels
def together(p: ConvProblem) -> int:
    """The residue classes of `p` if one launch may make all of them, else 1: tiles of all classes
    have equally many steps."""
    every = [*residues(p)]
    taps = {math.prod(w.count for w in walks(p, residue)) for residue in every}
    return len(every) if len(taps) == 1 and len(every) <= MOST_TOGETHER and taps != {0} else 1


@lru_cache(maxsize=1024)
def sizes(box: str) -> tuple[int, ...]:
    """Images, and pixels along each dimension, of a box as a name says it; () of no box."""
    return tuple(map(int, box.split("x"))) if box else ()


class Box(NamedTuple):
    """Images, and pixels along three dimensions."""

    images: int
    depth: int
    height: int
    width: int


@lru_cache(maxsize=1024)
def in_three(box: str) -> Box:
    """A box as a name says it."""
    images, *pixels = sizes(box)
    return Box(images, *(1,) * (3 - len(pixels)), *pixels)


def _box(c: ConvConfig) -> Box:
    return in_three(c.box)


def of(c: Any) -> Any:
    """The box of a config, or the boxes of `Columns`."""
    return each(c, _box)


def counts(box: Any, p: ConvProblem, walked: tuple[Walk, ...]) -> tuple[Each, Each, Each, Each]:
    """Boxes, as `of` gives them, that cover the images and the pixels of three dimensions."""
    whole = (p.n, *(w.size for w in walked))
    n, d, h, w = (-(-size // each) for size, each in zip(whole, _sides(box), strict=True))
    return n, d, h, w


def exact(box: Any, p: ConvProblem) -> Each:
    """Whether boxes divide the images and pixels of the walks without a rest."""
    whole, found = (p.n, *(w.size for w in walks(p, (0, 0, 0)))), True
    for size, side in zip(whole, _sides(box), strict=True):
        found = found & (size % side == 0)
    return found


def _sides(box: Any) -> tuple[Each, ...]:
    return box.images, box.depth, box.height, box.width


@lru_cache(maxsize=256)  # of each problem for several tiles
def best(p: ConvProblem, rows: int, few: int) -> Sequence[str]:
    """Boxes of `rows` pixels, a power of two: those that cover the pixels with the fewest boxes
    first, `few` at most; for the gradient of the weights, only exact ones. Wider boxes come before
    others that are as good: their pixels are neighbours."""
    whole, most_images = p.direction == "weights", power_of_two(p.n)
    found = [
        (count * -(-p.n // images), (images, *pixels))
        for size, count, pixels in p.once(_widths)
        if 0 < (images := rows // size) <= most_images and not (whole and p.n % images)
    ]
    found.sort(key=itemgetter(0))
    return ["x".join(map(str, box)) for _, box in found[:few]]


def _widths(p: ConvProblem) -> list[tuple[int, int, Sizes]]:
    """Widths that boxes may have in the dimensions, the widest of the last dimension first: how
    many pixels they make, how many boxes cover an image, and the widths."""
    whole = p.direction == "weights"
    found: list[tuple[int, int, Sizes]] = [(1, 1, ())]
    for of in reversed(walks(p, (0, 0, 0))[3 - len(p.spatial) :]):
        sides = [
            (n, -(-of.size // n))
            for n in reversed(_powers(of.size, MOST_TILE))
            if n * of.by_pixel <= MOST_SPAN and not (whole and of.size % n)
        ]
        found = [
            (size * n, count * more, (n, *pixels))
            for size, count, pixels in found
            for n, more in sides
            if size * n <= MOST_TILE
        ]
    return found


def _powers(size: int, most: int) -> list[int]:
    """Powers of two, up to the first that is not under `size`."""
    return [1 << i for i in range(power_of_two(min(size, most)).bit_length())]
