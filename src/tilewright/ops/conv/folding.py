"""Folded widths: where windows lie side by side along the width and channels are innermost, a
window's pixels with their channels are a run of memory, and so are its taps' weights. Then they may
count as one pixel with as many channels. In the gradient of x each window of the width was a
residue class, a launch of its own for some pipelines, which is one now with wider tiles: the layers
that halve an image by 2×2 or 2×2×2, and transposed ones that double it.

Nothing is moved: only what is said of the arrays changes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilewright.ops import epilogues
from tilewright.ops.conv.problem import ConvProblem

LEAST_CHANNELS = 16
"""Channels at least: images of fewer have other pipelines, with blocks of pixels (`subpixel`)."""


def folds(p: ConvProblem) -> bool:
    """Whether the width of `p` can be folded."""
    last, taps = p.dims[-1], p.filter[-1]
    return (
        p.direction == "data"
        and p.groups == 1
        and p.c >= LEAST_CHANNELS
        and taps > 1
        and (taps, last.out * taps, last.dilation) == (last.stride, last.size, 1)
        and last.pad == 0
        and all(p.strides_of(name)[1] == 1 and p.strides_of(name)[-1] == p.c for name in "xw")
        and not any(taken.kind == "n" for taken in epilogues.takes(p.epilogue))
        and 0 not in p.shape_of("x")
    )


@lru_cache(maxsize=1024)
def folded(p: ConvProblem) -> ConvProblem:
    """`p` with a folded width, if it can be folded."""
    if not folds(p):
        return p
    wide = p.c * p.filter[-1]
    (*of_x, _), (*of_w, _) = p.strides_of("x"), p.strides_of("w")
    return replace(
        p, c=wide, spatial=(*p.spatial[:-1], p.out_sizes[-1]), filter=(*p.filter[:-1], 1),
        stride=(*p.stride[:-1], 1), x_strides=(*of_x, wide), w_strides=(*of_w, wide),
    )  # fmt: skip
