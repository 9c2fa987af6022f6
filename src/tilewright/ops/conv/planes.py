"""Parts of small images: some rows of the result with the window of the source that they see, both
neighbouring elements of a channel's plane, for pipeline ``planes`` (kernels/planes.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tilewright.ops.conv.geometry import Dim, cdiv
from tilewright.ops.conv.problem import ConvProblem

Steps = tuple[int, int, int]
"""What a line, or a pixel, of the source and of the result adds to a tap's row, or column; and the
first."""


@dataclass(frozen=True, slots=True)
class Parts:
    """How an image is cut, in the words of `kernels.planes`.

    chunks: parts of an image. rows, window: elements of a part of the result, and of what it sees.
    first, apart: the first element of the first window, and elements from a window to the next.
    """

    chunks: int
    rows: int
    window: int
    first: int
    apart: int
    down: Steps
    along: Steps


def reads_x(p: ConvProblem) -> bool:
    """Whether windows are of x, and parts of y: all but the gradient of the data."""
    return p.direction != "data"


def sizes(p: ConvProblem) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width of what windows are of, and of what parts are of."""
    _, h, w = p.three
    x, y = (h.size, w.size), (h.out, w.out)
    return (x, y) if reads_x(p) else (y, x)


def pixels(p: ConvProblem) -> tuple[int, int]:
    """Elements of an image of either."""
    source, made = sizes(p)
    return math.prod(source), math.prod(made)


def refusal(p: ConvProblem) -> str | None:
    """Why the images of `p` have no parts with windows, or None."""
    if not p.depthwise:
        return "channels share filters"
    depth, *others = p.three
    if depth.size > 1 or depth.filter > 1:
        return "images have a depth"
    if any(dim.dilation > 1 and dim.filter > 1 for dim in others):
        return "taps of a dilated filter leave out lines"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array has no elements"
    for name in "xy":
        step = 1
        shape, strides = p.shape_of(name)[2:], p.strides_of(name)[2:]
        for size, stride in zip(reversed(shape), reversed(strides), strict=True):
            if size > 1 and stride != step:
                return f"the pixels of a channel of {name} do not lie side by side"
            step *= size
    return None


@lru_cache(maxsize=4096)
def parts(p: ConvProblem, most_rows: int, most_window: int) -> Parts | None:
    """The parts of as many lines as fit into so many elements of the result, and of a window; None
    where a line does not."""
    _, (height, made) = sizes(p)
    step = 1 if reads_x(p) else p.three[1].stride
    for lines in range(cdiv(height, step) * step, 0, -step):
        found = _parts(p, lines)
        if lines * made <= most_rows and found.window <= most_window:
            return found
    return None


def _parts(p: ConvProblem, lines: int) -> Parts:
    """Parts of so many lines of the result."""
    _, h, w = p.three
    (_, width), (height, made) = sizes(p)
    if reads_x(p):
        first, apart, seen = -h.pad, lines * h.stride, (lines - 1) * h.stride + h.filter
        down, along = (1, -h.stride, 0), (1, -w.stride, w.pad)
    else:
        first = _first(h)
        apart, seen = lines // h.stride, (lines - 1 + h.pad) // h.stride - first + 1
        down = (-h.stride, 1, h.pad - first * h.stride)
        along = (-w.stride, 1, w.pad)
    return Parts(
        cdiv(height, lines), lines * made, max(1, seen) * width, first * width, apart * width,
        down, along,
    )  # fmt: skip


def _first(dim: Dim) -> int:
    """The first line of y that the first line of x meets."""
    return -((dim.filter - 1 - dim.pad) // dim.stride)
