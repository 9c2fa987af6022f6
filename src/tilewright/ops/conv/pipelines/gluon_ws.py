"""Pipeline ``gluon_ws``: boxes of pixels by the copy engine, wgmma, and warps with roles written
out; the groups share each tile. It makes gradients of weights too (kernels/gluon_ws.py,
gluon_weights.py; `boxed`)."""

from __future__ import annotations

from functools import partial

from tilewright.ops.binder import Context
from tilewright.ops.conv.catalogue import SUM
from tilewright.ops.conv.pipelines import common
from tilewright.ops.conv.pipelines.boxed import parts, rows, shape
from tilewright.ops.conv.pipelines.record import Pipeline
from tilewright.ops.estimate import Estimates

TILES = (
    (64, 256, 8, 4), (128, 128, 8, 3), (64, 128, 8, 5), (64, 64, 8, 6), (64, 64, 4, 8),
    (128, 64, 8, 5), (128, 32, 8, 5),
)  # fmt: skip
ODD = ((64, 8), (128, 8), (64, 12))
"""Tiles of the spaces (`boxed.rows.Tiles`)."""


def _estimates(x: Context) -> Estimates:
    from tilewright.ops.conv.pipelines.boxed import estimate  # here, as it takes NumPy

    return estimate.estimates(x)


GLUON_WS = Pipeline(
    name="gluon_ws",
    kind="boxed",
    parts=parts.parts,
    totals=SUM,
    needs=("tma", "wgmma"),
    sibling=shape.sibling,
    objection=shape.objection,
    refusal=shape.refusal,
    odd=shape.odd_fields,
    # Also where each group has a tile of its own.
    sums=lambda c: shape.rows(c) * shape.groups(c) * c.tile_n,
    shared_memory=lambda c, _: shape.shared_memory(c),
    alignments=common.alignments,
    tiles=parts.tiles,
    steps=parts.steps,
    splits=parts.splits,
    meetings=shape.groups,
    by_class=True,
    rows=partial(rows.rows, rows.Tiles("gluon_ws", TILES, ODD, of_weights=True)),
    estimates=_estimates,
)
