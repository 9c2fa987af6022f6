"""Windows of pooling: what their options are, which tiles read them, and what is declared of both
pooling and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from types import ModuleType
from typing import Any

from tilewright import custom
from tilewright.custom.extents import Size
from tilewright.declared.sums._tiles import MOST
from tilewright.ops.powers import power_of_two

AXES: dict[str, tuple[Any, ...]] = {
    "FIRST": (False, True),
    "ROWS": (1, 2, 4, 8, 16, 32, 64, 128),
    "FAST": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "num_warps": (4, 8),
}
"""FIRST: whether channels come first, so that neighbours in memory are pixels of a line; else they
are channels of a pixel. ROWS: lines, or pixels, of a tile. FAST: neighbours of each."""

DIMENSIONS = ("depth", "height", "width")
WORDS = ("kernel", "stride", "dilation", "pad", "over")

OPTIONS: dict[str, bool | int | str] = {
    "mode": "max",
    "include_pad": True,
    **{f"{word}_{one[0]}": 1 for word in WORDS[:3] for one in DIMENSIONS},
}
CHOICES = {"mode": ("max", "min", "average")}
NUMBERS = {**{f"{word}_{one[0]}": 0 for word in WORDS[3:] for one in DIMENSIONS}, "divisor": 0}
PASSED = (*OPTIONS, *NUMBERS)
"""mode, and include_pad: whether an average counts padding. Sizes, strides and dilations of a
window; padding on both sides, and elements by which windows may reach beyond it (torch's
``ceil_mode``). divisor: of an average, instead of the number of elements; 0 is that number."""

USUAL_ELEMENTS = 8
"""Elements of a tile for each lane that are preferred until a measurement decides: 16 bytes of
bf16 for each of a window's elements."""
FILLED = 528
"""Workgroups that are wanted at least: four for each of 132 SMs."""
LANE_ELEMENTS = 16
"""Elements of a tile for each lane, at most."""


def out(dimension: str) -> str:
    """The size of the output along a dimension, as arithmetic."""
    d = dimension[0]
    return (
        f"({dimension} + 2 * pad_{d} + over_{d} - dilation_{d} * (kernel_{d} - 1) - 1) "
        f"// stride_{d} + 1"
    )


IMAGE: tuple[Size, ...] = ("images", *DIMENSIONS, "channels")
OUTPUT: tuple[Size, ...] = ("images", *map(out, DIMENSIONS), "channels")


def count(problem: Any, dimension: str) -> int:
    """The size of the output along a dimension."""
    kernel, stride, dilation, pad, over = stated(problem, dimension)
    reach = dilation * (kernel - 1) + 1
    return int((getattr(problem, dimension) + 2 * pad + over - reach) // stride + 1)


def _counted(dimension: str) -> Callable[[Any, Any], int]:
    return lambda problem, config: count(problem, dimension)


COUNTS = {f"out_{one}": _counted(one) for one in DIMENSIONS}
"""The sizes of the output, as kernels take them."""


def stated(problem: Any, dimension: str) -> Sequence[int]:
    """What is stated of windows along a dimension, as in `WORDS`."""
    return [getattr(problem, f"{word}_{dimension[0]}") for word in WORDS]


def taps(problem: Any) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each place in a window: the windows that have a pixel of the image there, as an index of
    outputs, and these pixels, as an index of images."""
    along = []
    for one in DIMENSIONS:
        kernel, stride, dilation, pad, _ = stated(problem, one)
        size, windows, found = getattr(problem, one), count(problem, one), []
        for first in range(-pad, kernel * dilation - pad, dilation):  # of window 0
            begin, end = max(0, -(first // stride)), min(windows, (size - 1 - first) // stride + 1)
            at = first + begin * stride
            if begin < end:
                last = at + (end - begin - 1) * stride
                found.append((slice(begin, end), slice(at, last + 1, stride)))
        along.append(found)
    for some in product(*along):
        windows, pixels = zip(*some, strict=True)
        yield (slice(None), *windows), (slice(None), *pixels)


def numbers(problem: Any) -> Any:
    """The numbers of an image's pixels [1, depth, height, width, 1]."""
    import numpy as np

    sizes = [getattr(problem, one) for one in DIMENSIONS]
    return np.arange(prod(sizes)).reshape(1, *sizes, 1)


def divisors(problem: Any) -> Any:
    """What the average of each window divides by [depth, height, width, 1]."""
    import numpy as np

    made = np.ones((1, 1, 1, 1))
    for axis, one in enumerate(DIMENSIONS):
        kernel, stride, dilation, pad, _ = stated(problem, one)
        at = np.arange(count(problem, one))[:, None] * stride - pad + np.arange(kernel) * dilation
        size = getattr(problem, one)
        counted = at < size + pad if problem.include_pad else (at >= 0) & (at < size)
        made = made * counted.sum(1).reshape([-1 if i == axis else 1 for i in range(4)])
    return np.full_like(made, problem.divisor) if problem.divisor else made


def refused(problem: Any) -> str:
    """Why windows mean nothing; "" if they do not."""
    for one in DIMENSIONS:
        kernel, stride, dilation, pad, over = stated(problem, one)
        size, reach = getattr(problem, one), dilation * (kernel - 1) + 1
        if min(kernel, stride, dilation) < 1:
            return f"kernel, stride and dilation along {one} must be positive"
        if 2 * pad > reach:
            return f"padding {pad} along {one} is more than half of a window of {reach}"
        if size + 2 * pad + over < reach:
            return f"a window of {reach} is larger than {one} {size} with padding {pad}"
        if size and (count(problem, one) - 1) * stride >= size + pad:
            return f"the last window along {one} begins behind {size} elements"
    if problem.mode != "average" and (problem.divisor or not problem.include_pad):
        return f"divisor and include_pad belong to averages, not to mode = '{problem.mode}'"
    sizes = [(getattr(problem, one), count(problem, one)) for one in DIMENSIONS]
    inside, outside = (prod(each) for each in zip(*sizes, strict=True))
    # A line of one channel is a row of a tile; of several channels, a pixel.
    rows = problem.images * max(inside, outside)
    rows //= max(1, min(sizes[-1])) if problem.channels == 1 else 1
    if max(rows, inside, problem.width * problem.channels) > MOST:
        many = f"{problem.images} images of {inside} pixels, {problem.channels} channels"
        return f"{many}: too many to count in 32 bits"
    return ""


def fits(neighbours: int, rows: int, first: bool, config: Any) -> bool | str:
    """Whether a config's tile is one for so many neighbours in memory, and so many of them."""
    if first != config.FIRST:
        return f"FIRST = {config.FIRST}, where {'one channel is' if first else 'channels are'} last"
    if power_of_two(neighbours) < config.FAST:
        return f"FAST = {config.FAST} for {neighbours} neighbours"
    if power_of_two(rows) < config.ROWS:
        return f"ROWS = {config.ROWS} for {rows}"
    if each(config) > LANE_ELEMENTS:
        return f"{each(config):.0f} elements for each lane"
    return True


def each(config: Any) -> float:
    """Elements of a tile for each lane."""
    return float(config.ROWS * config.FAST / (32 * config.num_warps))


def prefers(
    neighbours: int, rows: int, first: bool, config: Any, usual: float = USUAL_ELEMENTS
) -> float:
    """How many times a tile has more or fewer than the `usual` elements for each lane, and how many
    times there are too few workgroups."""
    many = workgroups(neighbours, rows, config)
    apart = max(each(config) / usual, usual / each(config))
    return apart * max(1.0, FILLED / max(1, many))


def declaration(name: str, *, module: str, groups: ModuleType, **more: Any) -> custom.Declaration:
    """What pooling and its gradient declare alike, and `more` of one of them.

    groups: the module that says which groups a lane has, of windows or of pixels.
    """

    def tiles(problem: Any, config: Any) -> tuple[int]:
        neighbours, rows, _ = groups.fast(problem, config)
        return (workgroups(neighbours, rows, config),)

    return custom.Declaration(
        name=name,
        module=module,
        choices=CHOICES,
        numbers=NUMBERS,
        axes=groups.AXES,
        parts=(custom.kernel("main", f"{__package__}.kernels.{name}:{name}", tiles),),
        values=COUNTS,
        supports=groups.fits,
        together=groups.together,
        prefers=groups.prefers,
        **more,
    )


def workgroups(neighbours: int, rows: int, config: Any) -> int:
    """Tiles of rows, each of all tiles of their neighbours."""
    return int(-(-rows // config.ROWS) * -(-neighbours // config.FAST))
