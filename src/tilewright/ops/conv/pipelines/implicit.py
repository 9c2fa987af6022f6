"""Pipeline ``implicit``: an implicit GEMM on the matrix units, through pointers, for every
architecture (kernels/gather.py, weights.py)."""

from __future__ import annotations

from tilewright.arch.model import Device
from tilewright.ops.conv import runs
from tilewright.ops.conv.arguments import DONE
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.parts import SUM, Part
from tilewright.ops.conv.pipelines import common, implicit_rows, pointers
from tilewright.ops.conv.pipelines.pointers import CLASSES, LAST, WALK
from tilewright.ops.conv.pipelines.record import Pipeline
from tilewright.ops.conv.problem import ConvProblem


def _tiles(c: ConvConfig, p: ConvProblem) -> int:
    if p.direction == "weights":
        return _weight_tiles(c, p)
    channels = p.group_c if p.direction == "data" else p.group_k
    columns = cdiv(channels * c.merged_groups, c.tile_n)
    return cdiv(p.walked_pixels, c.tile_m) * columns * cdiv(p.groups, c.merged_groups) * p.classes


def _weight_tiles(c: ConvConfig, p: ConvProblem) -> int:
    channels, filters = p.group_c * c.merged_groups, p.group_k * c.merged_groups
    if c.runs:
        columns = cdiv(p.taps // p.filter[-1] * runs.sizes(p, c.alignment)[0], c.tile_n)
    elif c.merged:
        columns = cdiv(p.taps * channels, c.tile_n)
    else:
        columns = p.taps * cdiv(channels, c.tile_n)
    return cdiv(filters, c.tile_m) * columns * cdiv(p.groups, c.merged_groups)


GATHER = Part(
    module="gather",
    function="conv_gather",
    grid=lambda c, p, _: _tiles(c, p),
    arguments=(
        "source", "weights", "made", "extra", "source_strides", "weight_strides", "made_strides",
        "images", "channels_in", "channels_out", "groups", *WALK, *CLASSES, "runs",
    ),
    constants=(
        "TILE_M", "TILE_N", "TILE_K", "GROUP_M", "NDIM", "DATA", "MERGED", "RUNS", "BUNDLE",
        "UNIT", "UNIT_OUT", "PRECISION", "INT_ACC", *LAST,
    ),
    epilogue=True,
)  # fmt: skip

WEIGHTS = Part(
    module="weights",
    function="conv_weights",
    grid=lambda c, p, splits: _tiles(c, p) * splits,
    arguments=(
        "x", "y", "made=sums", "meeting", "x_strides", "y_strides", "made_strides", "images",
        "group_c", "group_k", "groups", "sizes", "outs", "taps", "stride", "dilation", "before",
        "splits", "runs",
    ),
    constants=(
        "TILE_M", "TILE_N", "TILE_K", "GROUP_M", "NDIM", "MERGED", "RUNS", "BUNDLE", "UNIT",
        "UNIT_OUT", "TWO_STAGE", "SCHEDULER", "REDUCTION", "PRECISION", DONE,
    ),
)  # fmt: skip


def _kernel(c: ConvConfig) -> Part:
    return WEIGHTS if c.direction == "weights" else GATHER


def _splits(c: ConvConfig, p: ConvProblem, device: Device) -> int:
    return pointers.WORKGROUPS_FOR_UNIT * device.compute_units // max(1, _tiles(c, p))


IMPLICIT = Pipeline(
    name="implicit",
    needs=(),
    sibling=lambda c: c,
    merges_groups=True,
    objection=pointers.objection,
    refusal=lambda _, __: None,
    odd=lambda _: (),
    sums=lambda c: c.tile_m * c.tile_n,
    shared_memory=pointers.shared_memory,
    alignments=common.implicit_alignments,
    tiles=_tiles,
    steps=common.steps_of_pixels,
    splits=_splits,
    meetings=lambda _: 1,
    totals=SUM,
    sources=pointers.sources(_kernel),
    launch=pointers.launch(_kernel),
    temporaries=common.nothing,
    rows=implicit_rows.rows,
)
