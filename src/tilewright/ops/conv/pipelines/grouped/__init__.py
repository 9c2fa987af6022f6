"""Pipeline ``gluon_grouped``: groups of 4 to 32 channels, whose pixels come into shared memory once
for all taps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.arch.model import Arch, Device
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.parts import FEW_SUM
from tilewright.ops.conv.pipelines import common
from tilewright.ops.conv.pipelines.grouped import launch, rows, shape, weights
from tilewright.ops.conv.pipelines.record import Pipeline
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, KernelSource, Step


def _sources(c: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    return {MAIN: weights.source(c)} if c.direction == "weights" else launch.sources(c, arch)


def _launch(
    c: ConvConfig, p: ConvProblem, device: Device, splits: int, programs: int
) -> Sequence[Step]:
    if c.direction == "weights":
        return [weights.step(c, p, device)]
    return launch.steps(c, p, device)


GLUON_GROUPED = Pipeline(
    name=shape.PIPELINE,
    needs=("tma", "wgmma"),  # no wgmma, but it has run on sm_90 alone
    sibling=shape.sibling,
    merges_groups=True,
    objection=shape.objection,
    refusal=shape.refusal,
    odd=lambda _: (),
    sums=lambda c: c.tile_m * c.tile_n,
    shared_memory=lambda c, _: shape.shared_memory(c),
    alignments=shape.alignments,
    tiles=launch.all_tiles,
    steps=launch.rows_of_slab,
    splits=lambda c, p, device: weights.cut(c, p, device).programs,
    meetings=lambda _: 1,
    totals=FEW_SUM,
    sources=_sources,
    launch=_launch,
    temporaries=common.nothing,
    rows=rows.rows,
)
