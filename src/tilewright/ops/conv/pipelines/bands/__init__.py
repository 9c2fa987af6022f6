"""Pipeline ``gluon_bands``: depthwise filters as bands of matrices, on the matrix units."""

from __future__ import annotations

from tilewright.ops.conv import windows
from tilewright.ops.conv.parts import FEW_SUM
from tilewright.ops.conv.pipelines import common
from tilewright.ops.conv.pipelines.bands import launch, rows, shape
from tilewright.ops.conv.pipelines.record import Pipeline
from tilewright.ops.nouns import MAIN

GLUON_BANDS = Pipeline(
    name=shape.PIPELINE,
    needs=("tma", "wgmma"),  # no wgmma, but it was compiled for those that have both
    sibling=shape.sibling,
    merges_groups=False,
    objection=shape.objection,
    refusal=shape.refusal,
    odd=lambda _: (),
    sums=lambda c: shape.registers(c) * c.num_warps * windows.LEAST_LANES,
    shared_memory=lambda c, _: shape.shared_memory(c),
    alignments=common.pixel_alignments,
    tiles=launch.all_tiles,
    steps=launch.rows_of_slab,
    splits=lambda c, p, device: launch.cut(c, p, device).programs,
    meetings=lambda _: 1,
    totals=FEW_SUM,
    sources=lambda c, arch: {MAIN: launch.source(c, arch)},
    launch=lambda c, p, device, splits, programs: [launch.step(c, p, device)],
    temporaries=common.nothing,
    rows=rows.rows,
)
