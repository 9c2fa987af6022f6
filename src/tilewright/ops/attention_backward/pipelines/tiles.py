"""Rows of head dims over 128 in tiles of 64 or 128 columns: for pipelines `gluon_lean` and
`gluon_roles`."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ops.attention.pipelines.gluon_ws import CHUNK, ROWS
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines.gluon_ws import SUMS_BOX
from tilewright.ops.binder import Box


def tiles(dim: int) -> int:
    """Tiles of 64 columns that hold a row; what is beyond the head dim is zeros."""
    return -(-dim // CHUNK)


def width(dim: int) -> int:
    """Columns of a tile of rows of `dim` elements."""
    return CHUNK if tiles(dim) % 2 else 2 * CHUNK


def boxes(c: AttentionBackwardConfig) -> Mapping[str, Box]:
    return {
        **dict.fromkeys(("q", "k"), (1, 1, ROWS, width(c.head_dim))),
        **dict.fromkeys(("v", "do"), (1, 1, ROWS, width(c.head_dim_v))),
        "log_sums": (ROWS,),
        "deltas": (ROWS,),
        "dq_sums": SUMS_BOX,
    }
