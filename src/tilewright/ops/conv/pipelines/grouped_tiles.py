"""The tiles of pipeline ``gluon_grouped``: what they take, which of them an architecture can build,
and which problems they are for."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache, partial
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv import boxes, maps, windows
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN
from tilewright.ops.pool import Each, Objections, because, each

PIPELINE = "gluon_grouped"
IMAGES, SLAB = 8, 64
"""Images of an atom, and channels of a workgroup."""

COLUMNS = (8, 16)
"""Pixels of a row of a tile."""

SLICES = (16, 32)
"""Channels that are multiplied with the filters that see them."""

LEAST = 4
"""Channels of a group."""

WARPS = 4

OVERHEAD_BYTES = 256
"""Shared memory beside tiles: barriers, and what a sum over threads takes."""

MOST_SUMS = 288
"""Sums of a filter that the gradient of the weights keeps: 144 registers of each thread."""

MOST_KEPT = 9
"""Taps of a slice of 32 channels whose weights stay in registers: 8 of each thread for a tap."""

KEPT_AT_ONCE = 3
"""Workgroups of a compute unit, by their registers, where weights stay in them."""

MOST_STRIDE = 2
MOST_TAPS = 9
"""Along the width: the pixels behind a tile's are the next power of two, and fewer than it has."""


def columns(c: Any) -> Each:
    """Pixels of a row of a tile."""
    return c.tile_m // IMAGES


def filter_of(c: ConvConfig) -> tuple[int, ...]:
    """Taps of the filter that a kernel is written out for."""
    return boxes.sizes(c.held.partition("s")[0])


def taps(c: ConvConfig) -> tuple[int, int]:
    """The filter's taps along the height (and the depth) and along the width."""
    *height, width = filter_of(c)
    return math.prod(height), width


def _strides(c: ConvConfig) -> tuple[int, ...]:
    return boxes.sizes(c.held.partition("s")[2])


def stride(c: ConvConfig) -> int:
    """Along every dimension, of the convolutions that a kernel is for."""
    return _strides(c)[0]


def forward_stride(c: ConvConfig) -> int:
    """Pixels of the source from one pixel of a row to the next: a class of the gradient of the data
    walks pixel by pixel."""
    return 1 if c.direction == "data" else stride(c)


def classes(c: ConvConfig) -> dict[str, tuple[int, int]]:
    """Kernels, by part, with their taps along the height and the width: one, or for the gradient of
    the data one for each number of taps that a residue class can have, the most first."""
    height, width = taps(c)
    if c.direction != "data" or stride(c) == 1:
        return {MAIN: (height, width)}
    down = [height] if c.spatial_dims == 1 else _of_classes(height, stride(c))
    pairs = itertools.product(down, _of_classes(width, stride(c)))
    return {MAIN if not i else f"taps_{h}x{w}": (h, w) for i, (h, w) in enumerate(pairs)}


def _of_classes(count: int, stride: int) -> list[int]:
    """Taps that residue classes have, the most first."""
    return list(dict.fromkeys((-(-count // stride), count // stride)))


def halo(c: ConvConfig, width: int) -> int:
    """Pixels behind a row's that a filter of `width` taps sees, rounded up to a power of two."""
    over = (width - 1) // forward_stride(c)
    return 1 << (over - 1).bit_length() if over else 0


def channels(c: ConvConfig) -> int:
    """Channels of a group."""
    return c.tile_k // c.merged_groups


def row_atoms(c: ConvConfig, width: int) -> int:
    """Atoms of an input row, for filters of `width` taps."""
    return int(forward_stride(c) * (columns(c) + halo(c, width)))


def kept(c: ConvConfig, height: int, width: int) -> bool:
    """Whether a kernel for so many taps keeps its weights in registers, not in shared memory."""
    if c.direction == "weights" or epilogues.has_matrix(c.epilogue):
        return False
    return c.tile_k == SLICES[1] and height * width <= MOST_KEPT


def shared_memory(c: ConvConfig) -> int:
    """Bytes of the ring, the weights if they lie there and the staging buffer, or y's ring, and a
    little more."""
    height, width = classes(c)[MAIN]
    elements = c.num_stages * row_atoms(c, width) * IMAGES * SLAB
    if c.direction == "weights":
        elements += c.num_stages * c.tile_m * SLAB
    else:
        elements += c.tile_m * SLAB
        if not kept(c, height, width):
            elements += height * width * SLAB * c.tile_k
    return elements * DTYPES[c.dtype].bytes + OVERHEAD_BYTES


def box(p: ConvProblem, width: int) -> str:
    """The box of a tile whose rows have so many pixels."""
    return "x".join(map(str, (IMAGES, *(1,) * (len(p.spatial) - 1), width)))


def objection(c: ConvConfig, arch: Arch) -> str | None:
    """Why `arch` cannot build a config of this pipeline, if so."""
    if c.spatial_dims > 2:
        return f"pipeline {c.pipeline} walks rows of 1 or 2 dimensions, not of {c.spatial_dims}"
    if DTYPES[c.dtype].bytes != 2 or c.dtype_out != c.dtype:
        return f"pipeline {c.pipeline} is for 16-bit types, not for {c.dtype} to {c.dtype_out}"
    of_weights = c.direction == "weights"
    wanted = "split two_stage" if of_weights else "persistent none"
    if f"{c.scheduler} {c.reduction}" != wanted or c.merged or c.group_m != 1:
        return (
            f"pipeline {c.pipeline} has scheduler and reduction {wanted}, group_m 1 and steps of "
            f"one tap, not {c.scheduler} {c.reduction}, {c.group_m}"
            f"{' and merged steps' if c.merged else ''}"
        )
    if c.alignment != 16 or (c.alignment_out != 16 and not of_weights):
        return (
            f"the copy engine takes pixels aligned to 16 bytes, not {c.alignment} and "
            f"{c.alignment_out}"
        )
    return _tile(c) or _filter(c)


def _tile(c: ConvConfig) -> str | None:
    if c.num_warps != WARPS:
        return f"pipeline {c.pipeline} has {WARPS} warps, not {c.num_warps}"
    if c.tile_n != SLAB or c.tile_k not in SLICES or columns(c) not in COLUMNS:
        return f"tile {c.tile_m}x{c.tile_n}x{c.tile_k} is not 64 or 128 x 64 x 16 or 32"
    if c.direction == "weights" and columns(c) != COLUMNS[0]:
        return f"gradients of weights are made from rows of {COLUMNS[0]} pixels, not {columns(c)}"
    if c.tile_m % IMAGES or c.merged_groups & (c.merged_groups - 1) or channels(c) < LEAST:
        return f"{c.merged_groups} groups do not make a slice of {c.tile_k} channels, {LEAST} each"
    if c.merged_groups > 1 and c.tile_k != SLICES[0]:
        return f"groups are merged to slices of {SLICES[0]} channels, not of {c.tile_k}"
    wanted = "x".join(map(str, (IMAGES, *(1,) * (c.spatial_dims - 1), columns(c))))
    if c.box != wanted:
        return f"box '{c.box}' is not {wanted}, the images and pixels of a tile's row"
    return None


def _filter(c: ConvConfig) -> str | None:
    each = filter_of(c)
    if len(each) != c.spatial_dims:
        return f"held = '{c.held}' is not a filter of {c.spatial_dims} dimensions"
    if len(set(_strides(c))) > 1 or stride(c) > MOST_STRIDE:
        return f"held = {c.held}: strides are not alike, or over {MOST_STRIDE}"
    if c.direction == "data" and min(each) < stride(c):
        return f"held = {c.held} has no tap for some pixels, which are {stride(c)} apart"
    height, width = classes(c)[MAIN]
    if width > MOST_TAPS:
        return f"{width} taps along the width, over {MOST_TAPS}"
    if c.direction == "weights" and height * width * c.tile_k > MOST_SUMS:
        return f"{height * width} taps of {c.tile_k} channels are over {MOST_SUMS} sums of a filter"
    if height >= c.num_stages:
        return f"{c.num_stages} rows in the ring are not more than the filter's {height}"
    return None


@lru_cache(maxsize=1024)  # of each problem for hundreds of kernels
def alignments(p: ConvProblem) -> tuple[int, int]:
    """Bytes of alignment of pixels that are read, of all groups, and of what is made. Weights are
    read one by one."""
    if p.direction == "weights":
        return min(p.rows_alignment(name, True) for name in "xy"), p.rows_alignment("w")
    read = "x" if p.direction == "forward" else "y"
    return p.rows_alignment(read, True), p.rows_alignment(p.output_name, True)


def refusal(c: Any, p: ConvProblem) -> Objections:
    """What configs of this pipeline have against `p`."""
    group = c.tile_k // c.merged_groups
    said = "is for groups of {} channels, not of {p.group_c} and {p.group_k}"
    yield (p.group_c != group) | (p.group_k != group), partial(said.format, group)
    said = f"is for filters {{c.held}}, not for {windows.word(p)}"
    wanted = "x".join(map(str, p.filter))
    other, apart = each(c, _filter_word) != wanted, each(c, stride)
    for step in {*p.stride}:
        other = other | (apart != step)
    yield other, said.format
    if any(n != 1 for n in p.dilation):
        yield True, "has dilations of 1, not of {p.dilation}".format
    if reason := maps.refusal(p, "xy"):
        yield True, because(reason)


def _filter_word(c: ConvConfig) -> str:
    return "x".join(map(str, filter_of(c)))
