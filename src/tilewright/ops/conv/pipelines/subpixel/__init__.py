"""Pipeline ``subpixel``: the gradient of images of few channels, as stems have them, on every
architecture. A first kernel writes the weights for blocks of pixels (`subpixel.Blocks`), the second
multiplies y's gradient by them (kernels/subpixel.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tilewright.arch.model import Arch, Device
from tilewright.ops.conv import packing, parts, subpixel
from tilewright.ops.conv.arguments import FILTERS_AT_ONCE
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv, power_of_two
from tilewright.ops.conv.parts import FEW_SUM, Part
from tilewright.ops.conv.pipelines import pointers
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, KernelSource, Step

PIPELINE = "subpixel"
FILTERS = "filters"
"""The part of the kernel that writes the weights."""

_WEIGHTS = Part(
    module="subpixel",
    function="conv_subpixel_filters",
    grid=lambda c, p, _: math.prod(subpixel.blocks(p).met) * cdiv(p.k, FILTERS_AT_ONCE),
    arguments=(
        "w=weights", "packed_w", "w_strides=weight_strides", "channels_in", "channels_out", "block",
        "first", "met", "stride", "dilation", "before", "taps",
    ),
    constants=("TILE_N", "NDIM", "ROWS=FILTERS_AT_ONCE"),
    tiled=False,
)  # fmt: skip

_MULTIPLY = Part(
    module="subpixel",
    function="conv_subpixel",
    grid=lambda c, p, _: _tiles(c, p),
    arguments=(
        "source", "packed_w", "made", "extra", "source_strides", "made_strides", "channels_in",
        "channels_out", "sizes", "full", "block", "first", "met", "stride", "across",
    ),
    constants=(
        "TILE_M", "TILE_N", "TILE_K", "NDIM", "UNIT", "UNIT_OUT", "PRECISION", "INT_ACC",
        *pointers.LAST,
    ),
    epilogue=True,
)  # fmt: skip

# --- rules ----------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.direction != "data":
        return f"pipeline {PIPELINE} is for gradients of the data, not for {c.direction}"
    if c.merged or c.runs:
        return f"pipeline {PIPELINE} walks filters of one pixel after another"
    if not subpixel.LEAST <= c.tile_n <= subpixel.MOST:
        return f"a tile has {subpixel.LEAST} to {subpixel.MOST} columns, not {c.tile_n}"
    return pointers.objection(c, arch)


def _refusal(c: ConvConfig, p: ConvProblem) -> str | None:
    if reason := _unfit(p):
        return reason
    if c.tile_n != (columns := subpixel.blocks(p).columns):
        return f"a block of pixels takes a tile of {columns} columns, not {c.tile_n}"
    return None


def _unfit(p: ConvProblem) -> str | None:
    """Why blocks are not for `p`, if so."""
    if p.direction != "data":
        return "it is no gradient of the data"
    if p.groups != 1 or p.c > packing.MOST_CHANNELS:
        return f"{p.c} channels in {p.groups} groups, not up to {packing.MOST_CHANNELS} in one"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array has no elements"
    if (columns := subpixel.blocks(p).columns) > subpixel.MOST:
        return f"a block that is as long as the stride has {columns} columns, over {subpixel.MOST}"
    if (count := math.prod(subpixel.temporaries(p)[0].shape)) >= pointers.REACH:
        return f"the weights of blocks are {count} elements, which indices of 32 bits do not reach"
    return None


def _alignments(p: ConvProblem) -> tuple[int, int]:
    """Bytes of alignment of y's gradient, and of x's."""
    return p.rows_alignment("y"), p.rows_alignment("x")


# --- the spaces -----------------------------------------------------------------------------------

_TILES = ((32, 4), (64, 4), (128, 4), (128, 8))
"""Blocks of a tile, and warps."""
_DEPTHS, _STAGES = (32, 64), (1, 2, 3)
_USUAL_STAGES = {"cuda": 3, "hip": 1}
"""In the default space, by the GPU's maker."""


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if _unfit(p) is not None:
        return
    of = subpixel.blocks(p)
    _, high, wide = subpixel.counts(p)
    plane = max(subpixel.LEAST, power_of_two(high * wide))
    sides = dict.fromkeys((min(m, plane), 4 if plane < m else warps) for m, warps in _TILES)
    most = max(packing.least_depth(p), power_of_two(p.k))
    depths = dict.fromkeys(min(n, most) for n in _DEPTHS)
    every = _STAGES if tuned else (_USUAL_STAGES[arch.backend],)
    stages = [n for n in every if n in arch.num_stages]
    for (m, warps), depth, n in itertools.product(sides, depths, stages):
        yield (m, of.columns, depth, warps, n, PIPELINE, "tile", 8, False, *_alignments(p))


# --- what to compile and to launch ----------------------------------------------------------------


def _tiles(c: ConvConfig, p: ConvProblem) -> int:
    deep, high, wide = subpixel.counts(p)
    across = subpixel.across(p, c.tile_m)
    return p.n * deep * cdiv(high, c.tile_m // across) * cdiv(wide, across)


def _steps(c: ConvConfig, p: ConvProblem) -> int:
    return math.prod(subpixel.blocks(p).met) * cdiv(p.k, c.tile_k)


def _sources(c: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    return {FILTERS: parts.source(_WEIGHTS, c, arch), MAIN: parts.source(_MULTIPLY, c, arch)}


def _launch(
    c: ConvConfig, p: ConvProblem, device: Device, splits: int, programs: int
) -> Sequence[Step]:
    return [
        step
        for part, name in ((_WEIGHTS, FILTERS), (_MULTIPLY, MAIN))
        for step in parts.steps(part, name, c, p, splits, part.grid(c, p, splits))
    ]


SUBPIXEL = Pipeline(
    name=PIPELINE,
    needs=(),
    sibling=lambda c: c,
    merges_groups=False,
    objection=_objection,
    refusal=_refusal,
    odd=lambda _: (),
    sums=lambda c: c.tile_m * c.tile_n,
    shared_memory=pointers.shared_memory,
    alignments=_alignments,
    tiles=_tiles,
    steps=_steps,
    splits=lambda c, p, device: 1,
    meetings=lambda _: 1,
    totals=FEW_SUM,
    sources=_sources,
    launch=_launch,
    temporaries=subpixel.temporaries,
    rows=_rows,
)
