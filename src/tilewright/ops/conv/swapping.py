"""Few filters: the same convolution with x and y exchanged has few channels, and so the kernels of
a pipeline that is made for these (`packed`). It serves the gradients; forward has another way
(`tapping`).

With a stride of 1, gradients are convolutions too, with x and y exchanged and filters turned round:

    the gradient of the data, from y     is forward of y
    the gradient of the weights          is that of the same sums, with taps from the last to the
                                         first and filters as channels

A layout step writes the weights so, with the last tap first and channels as filters, or writes
their gradient back (kernels/swap.py). They are few.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from tilewright.ops.conv.config import SWAPPED, ConvConfig
from tilewright.ops.conv.packing import MOST_CHANNELS
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.pool import Columns

PIPELINES = ("packed", "implicit")
"""Whose kernels are candidates so."""

DIRECTIONS = {"data": "forward", "weights": "weights"}
"""The direction of what is exchanged."""

OPERANDS = {"x": "y", "y": "x"}

BLOCK = 1024
"""Weights of a workgroup that writes them."""


def refusal(p: ConvProblem) -> str | None:
    """Why x and y of `p` are not exchanged, or None."""
    if p.direction == "forward":
        return "forward, blocks of pixels took longer on a GPU than what they would replace"
    if any(step != 1 for step in p.stride):
        return f"with a stride of {'x'.join(map(str, p.stride))}, y has fewer pixels than x"
    if p.groups > 1:
        return "groups have filters of their own"
    if p.k > MOST_CHANNELS or p.k >= p.c:
        return f"{p.k} filters of {p.c} channels are not few: up to {MOST_CHANNELS}, and fewer"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array has no elements"
    return None


@lru_cache(maxsize=1024)
def inside(p: ConvProblem) -> ConvProblem:
    """The convolution that is left between the steps."""

    def behind(pads: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            (dim.filter - 1) * dim.dilation - pad for dim, pad in zip(p.dims, pads, strict=True)
        )

    return replace(
        p, c=p.k, k=p.c, spatial=p.out_sizes, direction=DIRECTIONS[p.direction],
        pad=behind(p.pad), pad_after=behind(p.pad_after), x_strides=p.strides_of("y"),
        y_strides=p.strides_of("x"), w_strides=(),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _within(c: ConvConfig) -> ConvConfig:
    return replace(c, direction=DIRECTIONS[c.direction], turned="")


def within(c: ConvConfig) -> ConvConfig:
    """The config of the kernels between the steps, for `inside`; others stay as they are."""
    return _within(c) if c.turned == SWAPPED and c.direction in DIRECTIONS else c


def all_within(c: Columns) -> Columns:
    """`within` for several configs that turn the same arrays."""
    return Columns([within(one) for one in c]) if c[0].turned == SWAPPED else c


def blocks(p: ConvProblem) -> int:
    """Workgroups that write the weights."""
    return -(-math.prod(p.shape_of("w")) // BLOCK)
