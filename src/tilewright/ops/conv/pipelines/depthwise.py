"""Pipeline ``depthwise``: one filter of its own for every channel, in vectors of channels on the
vector units (kernels/depthwise.py)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tilewright.arch.model import Arch, Device
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv, power_of_two
from tilewright.ops.conv.parts import FEW_SUM, Part
from tilewright.ops.conv.pipelines import common, pointers
from tilewright.ops.conv.pipelines.pointers import CLASSES, LAST, WALK
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem

_TILES: tuple[tuple[int, int, int], ...] = ((16, 64, 4), (64, 64, 4), (32, 32, 4), (8, 128, 4))
"""Pixels, channels, warps."""

_PIXELS = (8, 16)
"""Pixels of a step of a gradient of weights."""


def _tiles(c: ConvConfig, p: ConvProblem) -> int:
    if p.direction == "weights":
        return cdiv(p.taps, c.tile_m) * cdiv(p.c, c.tile_n)
    return cdiv(p.walked_pixels, c.tile_m) * cdiv(p.c, c.tile_n) * p.classes


MADE = Part(
    module="depthwise",
    function="conv_depthwise",
    grid=lambda c, p, _: _tiles(c, p),
    arguments=(
        "source", "weights", "made", "extra", "source_strides", "weight_strides", "made_strides",
        "images", "channels_out=channels", *WALK, *CLASSES,
    ),
    constants=("TILE_M", "TILE_N", "NDIM", "DATA", "UNIT", "UNIT_OUT", "INT_ACC", *LAST),
    epilogue=True,
)  # fmt: skip

WEIGHTS = Part(
    module="depthwise",
    function="conv_depthwise_weights",
    grid=lambda c, p, splits: _tiles(c, p) * splits,
    arguments=(
        "x", "y", "made=sums", "x_strides", "y_strides", "made_strides", "images",
        "channels_out=channels", "sizes", "outs", "taps", "stride", "dilation", "before", "splits",
    ),
    constants=("TILE_M", "TILE_N", "TILE_K", "NDIM", "UNIT", "TWO_STAGE"),
)  # fmt: skip


def _kernel(c: ConvConfig) -> Part:
    return WEIGHTS if c.direction == "weights" else MADE


def _sums(c: ConvConfig) -> int:
    return c.tile_m * c.tile_n * (c.tile_k if c.direction == "weights" else 1)


def _splits(c: ConvConfig, p: ConvProblem, device: Device) -> int:
    return pointers.WORKGROUPS_FOR_UNIT * device.compute_units // max(1, _tiles(c, p))


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if not p.depthwise or p.precision == "tf32":
        return
    tiles: Sequence[tuple[int, int, int]] = _TILES
    if tuned:
        tiles = [*itertools.product((8, 16, 32, 64, 128), (32, 64, 128), (1, 2, 4, 8))]
    width = common.pixel_alignments(p)
    if p.direction != "weights":
        for m, n, warps in tiles:
            yield (m, n, 1, warps, 1, "depthwise", "tile", 1, False, *width)
        return
    taps = min(16, power_of_two(p.taps))
    for (_, n, warps), pixels, scheduler in itertools.product(tiles, _PIXELS, ("tile", "split")):
        if n <= 64:
            yield (taps, n, pixels, warps, 1, "depthwise", scheduler, 1, False, *width)


DEPTHWISE = Pipeline(
    name="depthwise",
    needs=(),
    sibling=lambda c: c,
    merges_groups=False,
    objection=pointers.objection,
    refusal=lambda _, __: None,
    odd=lambda _: (),
    sums=_sums,
    shared_memory=lambda _, __: 0,
    alignments=common.pixel_alignments,
    tiles=_tiles,
    steps=common.steps_of_pixels,
    splits=_splits,
    meetings=lambda _: 1,
    totals=FEW_SUM,
    sources=pointers.sources(_kernel),
    launch=pointers.launch(_kernel),
    temporaries=common.nothing,
    rows=_rows,
)
