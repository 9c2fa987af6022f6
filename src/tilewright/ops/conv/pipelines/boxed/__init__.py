"""Pipelines ``gluon_ws`` and ``gluon_pingpong``: an implicit GEMM of boxes of pixels that the copy
engine brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.arch.model import Arch, Device
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.parts import SUM
from tilewright.ops.conv.pipelines import common
from tilewright.ops.conv.pipelines.boxed import launch, rows, shape, weights
from tilewright.ops.conv.pipelines.record import Pipeline
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, KernelSource, Step


def _tiles(c: ConvConfig, p: ConvProblem) -> int:
    return weights.tiles(c, p) if c.direction == "weights" else launch.all_tiles(c, p)


def _sources(c: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    return {MAIN: (weights if c.direction == "weights" else launch).source(c, arch)}


def _launch(
    c: ConvConfig, p: ConvProblem, device: Device, splits: int, programs: int
) -> Sequence[Step]:
    if c.direction == "weights":
        return [weights.step(c, p, device, splits, programs)]
    return launch.steps(c, p, device)


GLUON_WS = Pipeline(
    name="gluon_ws",
    needs=("tma", "wgmma"),
    sibling=shape.sibling,
    merges_groups=False,
    objection=shape.objection,
    refusal=shape.refusal,
    odd=shape.odd_fields,
    # Also where each group has a tile of its own.
    sums=lambda c: shape.rows(c) * shape.groups(c) * c.tile_n,
    shared_memory=lambda c, _: shape.shared_memory(c),
    alignments=common.alignments,
    tiles=_tiles,
    steps=weights.steps_of,
    splits=lambda c, p, device: weights.splits(c, p, device.compute_units),
    meetings=shape.groups,
    totals=SUM,
    sources=_sources,
    launch=_launch,
    temporaries=common.nothing,
    rows=partial(rows.rows, "gluon_ws"),
)

GLUON_PINGPONG = replace(GLUON_WS, name=shape.PINGPONG, rows=partial(rows.rows, shape.PINGPONG))
