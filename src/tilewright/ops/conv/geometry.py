"""Where a filter's taps fall: sizes of outputs, and which pixels a tap joins.

Along one dimension, pixel q of y and tap r see pixel ``q·stride - pad + r·dilation`` of x. The
gradient of x turns this around: pixel h of x meets the taps r for which ``h + pad - r·dilation`` is
a multiple of the stride. Those are the same taps for all pixels with the same h mod stride, a
*residue class*, and the pixels of y that they meet lie side by side: within a class, the gradient
is a convolution of stride 1. A class may have no tap at all (a filter of 1 and a stride of 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MOST_DIMS = 3

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dim:
    """One spatial dimension.

    size: of x. filter: taps. pad: pixels before the first of x; negative: pixels that are left out.
    out: size of y.
    """

    size: int
    filter: int
    stride: int
    dilation: int
    pad: int
    out: int

    @property
    def common(self) -> int:
        """The greatest common divisor of stride and dilation."""
        return math.gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        """Taps of a class are so many taps apart."""
        return self.stride // self.common

    @property
    def inverse(self) -> int:
        """The inverse of dilation / `common` modulo `period`."""
        return pow(self.dilation // self.common, -1, self.period) if self.period > 1 else 0

    def taps_of(self, residue: int) -> range:
        """The taps that pixels h of x with h mod stride = `residue` meet in the gradient of x."""
        phase = (residue + self.pad) % self.stride
        if phase % self.common:
            return range(0)
        first = phase // self.common * self.inverse % self.period
        return range(first, self.filter, self.period)

    def joined(self, tap: int) -> tuple[int, int]:
        """The first and past-the-last pixel of y that see a pixel of x through a tap."""
        shift = tap * self.dilation - self.pad
        first = -(shift // self.stride)  # the least q with q·stride + shift ≥ 0
        past = (self.size - shift + self.stride - 1) // self.stride
        first, past = max(0, first), min(self.out, past)
        return first, max(first, past)


UNUSED = Dim(size=1, filter=1, stride=1, dilation=1, pad=0, out=1)
"""What stands for the dimensions that a problem of fewer than three does not have."""


def reach(filter: int, dilation: int) -> int:
    """Pixels from the first that a filter sees to past its last."""
    return (filter - 1) * dilation + 1


def out_size(size: int, filter: int, stride: int, dilation: int, pad: int, pad_after: int) -> int:
    """The size of y along a dimension; negative if the filter is longer than padded x."""
    room = size + pad + pad_after - reach(filter, dilation)
    return room // stride + 1 if room >= 0 else -1


@lru_cache(maxsize=4096)  # a choice of a kernel asks for them thousands of times
def dims(
    spatial: Sizes, filter: Sizes, stride: Sizes, dilation: Sizes, pad: Sizes, pad_after: Sizes
) -> tuple[Dim, ...]:
    """The dimensions of a problem with these fields."""
    return tuple(
        Dim(size, taps, step, apart, before, out_size(size, taps, step, apart, before, after))
        for size, taps, step, apart, before, after in zip(
            spatial, filter, stride, dilation, pad, pad_after, strict=True
        )
    )


def whole_padding(dim: Dim) -> int:
    """The padding behind x that the last pixel of y reaches: what is behind it is never seen."""
    return (dim.out - 1) * dim.stride + reach(dim.filter, dim.dilation) - dim.size - dim.pad


def channels_last(outer: int, inner: int, spatial: Sequence[int]) -> tuple[int, ...]:
    """Strides of an array [outer, inner, *spatial] in which `inner` is innermost in memory."""
    step = max(1, inner)
    found = []
    for size in reversed(spatial):
        found.append(step)
        step *= max(1, size)
    return (step, 1, *reversed(found))


def channels_first(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous array."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= max(1, size)
    return tuple(reversed(found))


def cdiv(size: int, by: int) -> int:
    """How many pieces of `by` hold `size`."""
    return -(-size // by)
