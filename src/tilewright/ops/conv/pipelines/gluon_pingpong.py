"""Pipeline ``gluon_pingpong``: `gluon_ws` with two groups that take tiles in turn, forward and for
the gradient of the data (kernels/gluon_ws.py; `boxed`)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.ops.conv.pipelines.boxed import rows
from tilewright.ops.conv.pipelines.boxed.shape import PINGPONG
from tilewright.ops.conv.pipelines.gluon_ws import GLUON_WS

TILES = ((128, 128, 8, 5), (64, 256, 8, 4), (64, 128, 8, 6))
ODD = ((128, 8),)
"""Tiles of the spaces (`boxed.rows.Tiles`)."""

GLUON_PINGPONG = replace(
    GLUON_WS,
    name=PINGPONG,
    rows=partial(rows.rows, rows.Tiles(PINGPONG, TILES, ODD, of_weights=False)),
)
