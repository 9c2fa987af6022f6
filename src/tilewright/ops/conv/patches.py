"""Patches: where windows lie side by side, as in patch embeddings and in layers that halve an image
by 2×2 with a stride of 2, a convolution is a product of patches and filters. A layout step cuts the
image into patches, rows of a matrix with a filter's taps and channels in the order of the weights,
so that the weights need no step of their own (`turning`). What is left is a 1×1 convolution with as
many channels (`inside`).

Windows that overlap or lie in padding may be cut out as well (`windows_refusal`): pixels that
several see are there several times. They lie tap by tap and channel by channel, each with all
windows, so that neighbours are those of the image. Their gradient of x is the sum of what the
windows have for a pixel (`overlap`), so these products are fp32.

Rows whose length is no multiple of 16 bytes may be filled up with zeros (`padded`). The weights
are then copied into such rows too, or their gradient out of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv.config import SUMS
from tilewright.ops.conv.geometry import MOST_DIMS, cdiv, channels_first, channels_last
from tilewright.ops.conv.problem import ConvProblem

ROW_BYTES = 16
"""Bytes that rows are filled up to multiples of: what aligned copies move."""

TILE = (16, 64)
"""Neighbouring patches that a workgroup moves at a time, and their columns."""

WINDOWS_TILE = (16, 256)
"""Rows, and pixels of y, that a workgroup cuts out."""

OVERLAP_TILE = (8, 64)
"""Channels and pixels of x that a workgroup adds up."""

WORKGROUPS = 8
"""For each compute unit: as many as hide the waits of one another. Where columns lie takes each a
thousand instructions, as much as three blocks."""

MOST_SPAN = 2**30
"""Elements that an image, and all weights, may span: where they are within it, and in a line of
patches, is counted in 32 bits, up to a block past the last."""


def refusal(p: ConvProblem, padded: bool = True) -> str | None:
    """Why x of `p` cannot be cut into patches, or None. padded: whether rows are filled up."""
    if p.taps == 1 or p.filter != p.stride:
        return f"windows of {_size(p.filter)} by {_size(p.stride)} are no patches side by side"
    if any(p.pad) or any((d.out - 1) * d.stride + d.filter > d.size for d in p.dims):
        return "patches of a padded image do not all lie in it"
    if _dilated(p):
        return "taps of a dilated filter do not lie side by side"
    if p.direction == "data" and any(taken.kind == "n" for taken in epilogues.takes(p.epilogue)):
        return f"epilogue '{p.epilogue}' reads a value for each channel, and a row has all taps'"
    return _rows_refusal(p, padded)


def windows_refusal(p: ConvProblem, padded: bool = True) -> str | None:
    """Why x of `p` cannot be cut into windows that overlap, or lie in padding, or None."""
    if p.taps == 1:
        return "windows of one tap are no rows of several"
    if refusal(p) is None:
        return "windows lie side by side: they are cut as patches"
    if p.direction == "data":
        if _dilated(p):
            return "windows of a dilated filter are not put together"
        if p.epilogue or p.dtype_out != p.dtype:
            return "windows are added up behind the product, where no epilogue or dtype follows"
    if windows(p) >= MOST_SPAN:
        return f"there are {windows(p)} windows, over {MOST_SPAN}"
    return _rows_refusal(p, padded)


def _dilated(p: ConvProblem) -> bool:
    return any(d.filter > 1 and d.dilation > 1 for d in p.dims)


def _rows_refusal(p: ConvProblem, padded: bool) -> str | None:
    """What rows of patches and of windows have in common."""
    if p.groups > 1:
        return "patches of groups are not one row"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "there are no patches"
    if _order(p) is None:
        return "the elements of a filter do not lie as a row"
    _, *steps = p.strides_of("x")
    span = sum((n - 1) * s for n, s in zip((p.c, *p.spatial), steps, strict=True))
    if max(span, p.k * columns(p)) >= MOST_SPAN:
        return f"an image spans {span} elements, and weights {p.k * columns(p)}, over {MOST_SPAN}"
    if not padded and columns(p) % whole(p.dtype):
        return f"patches of {columns(p)} elements are no whole {ROW_BYTES} bytes; pw fills them up"
    return None


def _size(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


@lru_cache(maxsize=1024)
def _order(p: ConvProblem) -> str | None:
    """How the elements of a filter lie behind one another: with channels ``first`` (outermost) or
    ``last``; None if otherwise."""
    _, *given = p.strides_of("w")
    counts = (p.c, *p.filter)
    last = channels_last(1, p.c, p.filter)[1:]
    first = tuple(math.prod(counts[place + 1 :]) for place in range(len(counts)))
    for word, strides in (("last", last), ("first", first)):
        if all(n == 1 or a == b for n, a, b in zip(counts, given, strides, strict=True)):
            return word
    return None


def columns(p: ConvProblem) -> int:
    """Elements of a patch."""
    return p.c * p.taps


def row(p: ConvProblem, padded: bool) -> int:
    """Elements from a patch to the next."""
    each = whole(p.dtype) if padded else 1
    return cdiv(columns(p), each) * each


def whole(dtype: str) -> int:
    """Elements that rows come in multiples of."""
    return ROW_BYTES // DTYPES[dtype].bytes


def windows(p: ConvProblem) -> int:
    """How many there are, in all images."""
    return p.n * math.prod(p.out_sizes)


def plane(p: ConvProblem) -> int:
    """Elements from what all windows have of a tap and channel to the next, or from their products
    with it."""
    each = whole(SUMS if p.direction == "data" else p.dtype)
    return cdiv(windows(p), each) * each


def grown(p: ConvProblem) -> int:
    """Elements of all windows."""
    return windows(p) * row(p, True)


@lru_cache(maxsize=1024)
def inside(p: ConvProblem, padded: bool, overlapping: bool = False) -> ConvProblem:
    """The convolution that is left behind the layout step.

    padded: whether rows are filled up, and so x and w are temporaries.
    overlapping: whether x is cut into windows that overlap, or is their sum.
    """
    ones, length, sizes = (1,) * len(p.filter), row(p, padded), p.out_sizes
    outer = length if padded or p.k == 1 else p.strides_of("w")[0]
    added = overlapping and p.direction == "data"
    by_rows = (math.prod(sizes), plane(p), *channels_first(sizes)) if overlapping else ()
    return replace(
        p, dtype_out=SUMS if added else p.dtype_out, c=length, spatial=sizes, filter=ones,
        stride=(), dilation=(), pad=(), pad_after=(), x_strides=by_rows,
        w_strides=(outer, 1, *(length,) * len(ones)),
    )  # fmt: skip


# --- what the step's kernel is given ------------------------------------------------------------

Three = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Cut:
    """An array of so many images that are cut into rows, in the words of `kernels.patches`."""

    images: int
    columns: int
    row: int
    levels: Three
    first: int
    across: int
    walked: Three
    outs: Three
    sizes: Three
    steps: Three
    of_image: int
    strides: tuple[int, int, int, int]

    @property
    def blocks(self) -> int:
        """Blocks of neighbouring patches, in all images."""
        depth, height, width = self.walked
        return self.images * depth * height * cdiv(width, TILE[0])

    @property
    def parts(self) -> int:
        """Workgroups for the columns of a block."""
        return cdiv(self.row, TILE[1])

    def each(self, units: int) -> int:
        """Blocks of a workgroup, on so many compute units."""
        return cdiv(self.blocks * self.parts, units * WORKGROUPS)

    def workgroups(self, units: int) -> int:
        """All workgroups."""
        return self.parts * cdiv(self.blocks, self.each(units))


def cut(p: ConvProblem, name: str, padded: bool, back: bool) -> Cut:
    """How x, or w, whose filters are patches of one tap, is cut. back: the image is made of
    patches, also the pixels beyond the last."""
    length, filled = columns(p), row(p, padded)
    if name == "w":
        filters, one = (1, 1, p.k), (1, 1, 1)
        strides = (1, 0, 0, p.strides_of("w")[0])
        return Cut(
            1, length, filled, (1, 1, length), 0, 0, filters, filters, filters, one, 0, strides,
        )  # fmt: skip
    outs, sizes, taps = (
        _three(values, 1) for values in (p.out_sizes, p.spatial, p.filter)
    )  # fmt: skip
    d, h, w = (cdiv(size, tap) for size, tap in zip(sizes, taps, strict=True))
    walked = (d, h, w) if back else outs
    outer, channel, *spatial = p.strides_of("x")
    first, lines = _order(p) == "first", spatial[-1] == 1 != channel
    return Cut(
        p.n, length, filled, levels(p), int(first), int(lines and taps[-1] < NEAR[first]), walked,
        outs, sizes, _three(p.stride, 1), outer, (channel, *_three(tuple(spatial), 0)),
    )  # fmt: skip


def levels(p: ConvProblem) -> Three:
    """How the elements of a filter lie, in the words of `kernels.patches.within`: the sizes of all
    but the outermost dimension."""
    taps = _three(p.filter, 1)
    return taps if channels_outermost(p) else (*taps[1:], p.c)


def channels_outermost(p: ConvProblem) -> bool:
    """Whether the elements of a filter lie by channels."""
    return _order(p) == "first"


def windows_workgroups(p: ConvProblem, padded: bool) -> int:
    """Those that cut windows out: one for each tile of rows and pixels of y."""
    rows, pixels = WINDOWS_TILE
    return cdiv(row(p, padded), rows) * cdiv(windows(p), pixels)


@dataclass(frozen=True, slots=True)
class Overlap:
    """How x is the sum of what windows have, in the words of `kernels.overlaps`.

    plane: see `plane`. of_channel, of_tap: products of a window from a channel's to the next, and
        from a tap's.
    of_image, strides: of x.
    """

    images: int
    channels: int
    plane: int
    of_channel: int
    of_tap: int
    outs: Three
    sizes: Three
    taps: Three
    steps: Three
    before: Three
    of_image: int
    strides: tuple[int, int, int, int]

    @property
    def workgroups(self) -> int:
        """One for each tile of channels and pixels of each image."""
        channels, pixels = OVERLAP_TILE
        across, down = cdiv(math.prod(self.sizes), pixels), cdiv(self.channels, channels)
        return self.images * across * down


def overlap(p: ConvProblem) -> Overlap:
    """How the gradient of x is made of what windows have."""
    outer, channel, *spatial = p.strides_of("x")
    first = _order(p) == "first"
    return Overlap(
        p.n, p.c, plane(p), p.taps if first else 1, 1 if first else p.c,
        _three(p.out_sizes, 1), _three(p.spatial, 1), _three(p.filter, 1), _three(p.stride, 1),
        _three(p.pad, 0), outer, (channel, *_three(tuple(spatial), 0)),
    )  # fmt: skip


NEAR = {True: 4, False: 16}
"""By whether a patch has channels outermost: taps of a line of pixels under which neighbouring
patches are nearer together than neighbouring columns. Of 16-bit elements, 32 threads at patches
touch two sectors for each tap; at columns they touch 32 sectors over the taps, or 32."""


def _three(values: tuple[int, ...], other: int) -> Three:
    a, b, c = (*(other,) * (MOST_DIMS - len(values)), *values)
    return a, b, c
