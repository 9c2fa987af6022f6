"""`gluon_wide`: as `gluon_ws`, for head dims over 128."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.pipelines.gluon_ws import CHUNK, ROWS, WARPGROUP
from tilewright.ops.attention.pipelines.record import Box
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines import gluon_ws
from tilewright.ops.attention_backward.pipelines.gluon_ws import (
    GLUON_WS,
    GROUPS,
    SPECIALISATION_BYTES,
    STAGES,
    SUMS_BOX,
)
from tilewright.ops.attention_backward.pipelines.record import Part, Pipeline
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem

MOST_DIM = 256


def tiles(dim: int) -> int:
    """Tiles of 64 columns that hold a row; what is beyond the head dim is zeros."""
    return -(-dim // CHUNK)


def _tile(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    for field, wanted in (
        ("num_warps", GROUPS * WARPGROUP), ("tile_rows", ROWS), ("step_rows", ROWS),
        ("num_stages", STAGES),
    ):  # fmt: skip
        if (value := getattr(c, field)) != wanted:
            return f"pipeline {c.pipeline} has {field} {wanted}, not {value}"
    return None


def _dims(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    if c.head_dim <= CHUNK:
        return f"head_dim = {c.head_dim} is no more than {CHUNK}, and groups share its columns"
    for field in ("head_dim", "head_dim_v"):
        size = getattr(c, field)
        if size > MOST_DIM:
            return f"{field} = {size} is over {MOST_DIM}"
        if size % 8:
            return f"{field} = {size} is no multiple of 8, the elements of 16 bytes"
    return None


def _shared_memory(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    """K and two slots of Q; V and dO; weights and their gradients, twice; dQ; rows' terms."""
    tile = ROWS * CHUNK
    count = (1 + STAGES) * tiles(c.head_dim) + 2 * tiles(c.head_dim_v) + 4
    need = count * tile * DTYPES[c.dtype].bytes + GROUPS * tile * 4
    need += (STAGES + 1) * ROWS * 4 + SPECIALISATION_BYTES
    if need > arch.shared_memory:
        return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


def _boxes(c: AttentionBackwardConfig) -> Mapping[str, Box]:
    width = 2 * CHUNK if tiles(c.head_dim) == tiles(c.head_dim_v) == 4 else CHUNK
    return {
        **dict.fromkeys(("q", "k", "v", "do"), (1, 1, ROWS, width)),
        "log_sums": (ROWS,),
        "deltas": (ROWS,),
        "dq_sums": SUMS_BOX,
    }


def _algorithms(p: AttentionBackwardProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    if max(p.head_dim, p.head_dim_v) <= gluon_ws.MOST_DIM:
        return []
    fields = {
        "tile_rows": ROWS,
        "step_rows": ROWS,
        "num_warps": GROUPS * WARPGROUP,
        "num_stages": STAGES,
    }
    return [{**fields, "ordered": said} for said in (False, True)]


def _wide(part: Part) -> Part:
    """The part in this pipeline."""
    if part.language != "gluon":
        return part
    return replace(
        part,
        name="gradients_gluon_wide",
        module="gluon_wide",
        constants=tuple(name for name in part.constants if name not in ("TILE", "STEP")),
        boxes=_boxes,
    )


GLUON_WIDE = Pipeline(
    name="gluon_wide",
    parts=tuple(map(_wide, GLUON_WS.parts)),
    needs=GLUON_WS.needs,
    rules={
        "words": gluon_ws.words,
        "dtypes": gluon_ws.dtypes,
        "head_dim": _dims,
        "copies": gluon_ws.copies,
        "tile": _tile,
        "shared_memory": _shared_memory,
    },
    supports=GLUON_WS.supports,
    temporaries=GLUON_WS.temporaries,
    repeats=GLUON_WS.repeats,
    algorithms=_algorithms,
    tuned=lambda p, arch: (),
)
