"""Rows of the spaces for groups of few channels, whose tiles hold several groups. Each row has the
fields of `spaces.ALGORITHM`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.conv.geometry import power_of_two
from tilewright.ops.conv.pipelines import grouped, windows
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.conv.rules import alignments

MOST_CHANNELS = 32
"""Channels, or filters, of a group up to which groups are merged."""

_WIDTHS, _MORE_WIDTHS = (32, 64), (16, 32, 64, 128)
"""Channels of a tile, of all its groups."""

_STEP_BYTES = {"cuda": 128, "hip": 64}
"""Most bytes of a step's products, by the GPU's maker."""

_TILES: Sequence[tuple[int, int]] = ((128, 4),)
_MORE_TILES: Sequence[tuple[int, int]] = ((64, 4), (128, 4), (128, 8), (256, 8))
"""Pixels of a tile, and warps. Of weights, `_PIXELS` of a step."""

_AHEAD, _MORE_AHEAD = (1, 2), (1, 2, 3)
"""Rows that are on their way, beside those that a filter sees."""

_PIXELS, _MORE_PIXELS = (64,), (32, 64, 128)

_SPREAD = 128
"""Columns of a tile of weights whose columns are several taps."""

Row = tuple[Any, ...]


def default(p: ConvProblem, arch: Arch) -> Iterator[Row]:
    """Rows of the default space."""
    if p.direction == "weights":
        yield from _of_weights(p, arch, _WIDTHS, _PIXELS)
    else:
        yield from _of_pixels(p, arch, _WIDTHS, _TILES, (False,))
    yield from _in_shared_memory(p, arch, _AHEAD)


def tuned(p: ConvProblem, arch: Arch) -> Iterator[Row]:
    """Rows of a tuning's space."""
    if p.direction == "weights":
        yield from _of_weights(p, arch, _MORE_WIDTHS, _MORE_PIXELS)
    else:
        yield from _of_pixels(p, arch, _MORE_WIDTHS, _MORE_TILES, (False, True))
    yield from _in_shared_memory(p, arch, _MORE_AHEAD)


def bundles(p: ConvProblem, widths: Sequence[int]) -> list[int]:
    """How many groups make tiles of these widths: more than one, and not twice as many as there
    are."""
    most = max(p.group_c, p.group_k)
    if p.groups == 1 or p.depthwise or not 0 < most <= MOST_CHANNELS:
        return []
    counts = (_floor(min(width // most, 2 * p.groups - 1)) for width in widths if width >= most)
    return [count for count in dict.fromkeys(counts) if count > 1]


def _of_pixels(
    p: ConvProblem,
    arch: Arch,
    widths: Sequence[int],
    tiles: Sequence[tuple[int, int]],
    forms: Sequence[bool],
) -> Iterator[Row]:
    read, made = (p.group_c, p.group_k) if p.direction == "forward" else (p.group_k, p.group_c)
    stages = _stages(p, arch)
    for count, (m, warps), merged in itertools.product(bundles(p, widths), tiles, forms):
        n, k = max(16, power_of_two(made * count)), _depth(p, arch, read * count)
        yield (m, n, k, warps, stages, "implicit", "tile", 8, merged, *alignments(p, "implicit"),
               "", "", count)  # fmt: skip


def _of_weights(
    p: ConvProblem, arch: Arch, widths: Sequence[int], pixels: Sequence[int]
) -> Iterator[Row]:
    stages = _stages(p, arch)
    for count, depth, merged, scheduler in itertools.product(
        bundles(p, widths), pixels, (False, True), ("tile", "split")
    ):
        m, n = (max(16, power_of_two(each * count)) for each in (p.group_k, p.group_c))
        yield (m, max(n, _SPREAD) if merged else n, depth, 4, stages, "implicit", scheduler, 8,
               merged, *alignments(p, "implicit"), "", "", count)  # fmt: skip


def _in_shared_memory(p: ConvProblem, arch: Arch, rows_ahead: Sequence[int]) -> Iterator[Row]:
    """Of the kernel that keeps rows of pixels in shared memory."""
    if p.group_c != p.group_k or p.precision == "tf32" or not all(map(arch.has, grouped.NEEDS)):
        return
    if not p.group_c or len({*p.stride}) > 1:
        return
    slices = [n for n in grouped.SLICES if n % p.group_c == 0][:1]
    for slice, width, ahead in itertools.product(slices, grouped.COLUMNS, rows_ahead):
        stages = math.prod(p.filter[:-1]) + ahead
        scheduler = "split" if p.direction == "weights" else "persistent"
        yield (grouped.IMAGES * width, grouped.SLAB, slice, grouped.WARPS, stages,
               grouped.PIPELINE, scheduler, 1, False, *alignments(p, grouped.PIPELINE),
               grouped.box(p, width), windows.word(p), slice // p.group_c)  # fmt: skip


def _stages(p: ConvProblem, arch: Arch) -> int:
    """Stages of the ring: copies of fewer than four bytes pass through registers."""
    return 1 if arch.backend == "hip" else 3 if alignments(p, "implicit")[0] >= 4 else 2


def _depth(p: ConvProblem, arch: Arch, channels: int) -> int:
    """Products of a step: the tile's channels, in no more than `_STEP_BYTES`."""
    most = _STEP_BYTES[arch.backend] // DTYPES[p.dtype].bytes
    return max(16, min(most, power_of_two(channels)))


def _floor(size: int) -> int:
    """The largest power of two up to `size`; 0 of 0."""
    return 1 << size.bit_length() >> 1
