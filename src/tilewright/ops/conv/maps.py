"""Tensor maps of x, w and y, which the copy engine reads and writes boxes by."""

from __future__ import annotations

from functools import lru_cache

from tilewright.dtypes import DTYPES
from tilewright.ops.binder import Described
from tilewright.ops.conv.boxes import Residues, walks
from tilewright.ops.conv.problem import ConvProblem

MOST_STRIDE_BYTES = 2**40
"""A tensor map's strides are under this. Its coordinates count elements in 32 bits, and the copy
engine computes addresses in 64."""


@lru_cache(maxsize=1024)  # of each problem for hundreds of kernels
def refusal(p: ConvProblem, names: str) -> str | None:
    """Why an array of `p` cannot be described, if so."""
    for name in names:
        shape, strides = p.shape_of(name), p.strides_of(name)
        if 0 in shape:
            return f"{name} has no elements, which a tensor map cannot describe"
        if any(n > 1 and s == 0 for n, s in zip(shape, strides, strict=True)):
            return f"{name} repeats elements by a stride of 0, which a tensor map cannot describe"
        most = max(strides) * DTYPES[p.dtype_of(name)].bytes
        if most >= MOST_STRIDE_BYTES:
            return f"{name} has a stride of {most} bytes, a tensor map under {MOST_STRIDE_BYTES}"
    return None


def dense(p: ConvProblem, name: str) -> tuple[int, ...]:
    """The strides of an array. Along dimensions of one element, those of an array without gaps in
    place of whatever was given: a tensor map checks them."""
    shape, given = p.shape_of(name), p.strides_of(name)
    spatial: list[int] = []
    step = shape[1]
    for n, stride in zip(reversed(shape[2:]), reversed(given[2:]), strict=True):
        spatial.append(stride if n > 1 else step)
        step = spatial[-1] * n
    return (given[0] if shape[0] > 1 else step, 1, *reversed(spatial))


def class_strides(p: ConvProblem, residue: Residues) -> tuple[tuple[int, ...], int]:
    """Strides of (image, channel, depth, height, width) of the result's pixels of a residue class,
    and elements to the first."""
    outer, inner, *spatial = dense(p, p.output_name)
    three = (*(0,) * (3 - len(spatial)), *spatial)
    begin = sum(r * s for r, s in zip(residue, three, strict=True))
    apart = tuple(dim.stride if p.direction == "data" else 1 for dim in p.three)
    return (outer, inner, *(s * n for s, n in zip(three, apart, strict=True))), begin


def of_images(p: ConvProblem, name: str, apart: tuple[int, ...] = ()) -> Described:
    """x, w or y as [image or filter, depth, height, width, channel], of the dimensions it has.
    apart: pixels from each of a box's pixels to the next, in three dimensions."""
    (outer, channels, *sizes), (stride, _, *strides) = p.shape_of(name), dense(p, name)
    steps = apart[3 - len(sizes) :] if any(step > 1 for step in apart) else ()
    return Described(
        (outer, *sizes, channels), (stride, *strides, 1), steps=(1, *steps, 1) if steps else ()
    )


def images_of_class(p: ConvProblem, residue: Residues) -> Described:
    """The result's pixels of a residue class, as `of_images`."""
    missing = 3 - len(p.spatial)
    (stride, _, *strides), begin = class_strides(p, residue)
    outer, channels, *_ = p.shape_of(p.output_name)
    sizes = (walk.size for walk in walks(p, residue)[missing:])
    return Described((outer, *sizes, channels), (stride, *strides[missing:], 1), offset=begin)


def of_rows(p: ConvProblem, name: str, apart: int = 1) -> Described:
    """x or y of two dimensions or one as [height, width, image, channel]. apart: pixels of the
    width from one pixel of a box to the next."""
    (images, channels, *spatial), (outer, _, *strides) = p.shape_of(name), dense(p, name)
    shape = (*(1,) * (2 - len(spatial)), *spatial, images, channels)
    along = (*(outer,) * (2 - len(strides)), *strides, outer, 1)
    return Described(shape, along, steps=(1, apart, 1, 1) if apart > 1 else ())


def rows_of_class(p: ConvProblem, residue: Residues) -> Described:
    """The result's pixels of a residue class, as `of_rows`."""
    (outer, _, _, height, width), begin = class_strides(p, residue)
    _, rows, columns = walks(p, residue)
    shape = (rows.size, columns.size, p.n, p.channels_out)
    return Described(shape, (height or outer, width, outer, 1), offset=begin)
