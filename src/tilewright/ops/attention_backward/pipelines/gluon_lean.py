"""`gluon_lean`: as `gluon_ws`, for sums of dK and dV of up to 320 columns together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.pipelines.gluon_ws import CHUNK, ROWS, WARPGROUP
from tilewright.ops.attention_backward.catalogue import GROUPS
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines import gluon_ws
from tilewright.ops.attention_backward.pipelines.gluon_ws import (
    GLUON_WS,
    SPECIALISATION_BYTES,
    STAGES,
)
from tilewright.ops.attention_backward.pipelines.record import KERNELS, Pipeline
from tilewright.ops.attention_backward.pipelines.tiles import boxes, tiles
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.binder import Part

MOST_TILES = 5
"""Tiles of 64 columns, of dK and dV together: 160 registers of a thread hold the sums of 64
keys."""

FIELDS = {
    "tile_rows": GROUPS * ROWS,
    "step_rows": ROWS,
    "num_warps": GROUPS * WARPGROUP,
    "num_stages": STAGES,
}
"""The only algorithm."""


def _dims(c: AttentionBackwardConfig | AttentionBackwardProblem) -> str | None:
    for field in ("head_dim", "head_dim_v"):
        if (size := getattr(c, field)) % 8:
            return f"{field} = {size} is no multiple of 8, the elements of 16 bytes"
    if c.head_dim <= CHUNK:
        return f"head_dim = {c.head_dim} is no more than {CHUNK}, and groups share its columns"
    if (need := tiles(c.head_dim) + tiles(c.head_dim_v)) > MOST_TILES:
        return f"dK and dV have {need} tiles of {CHUNK} columns, over {MOST_TILES}"
    return None


def _tile(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    for field, wanted in FIELDS.items():
        if (value := getattr(c, field)) != wanted:
            return f"pipeline gluon_lean has {field} {wanted}, not {value}"
    return None


def _shared_memory(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    """K, V and two slots of Q and dO; gradients of scores, twice; a tile of dQ of each group; rows'
    terms."""
    tile = ROWS * CHUNK
    count = (GROUPS + STAGES) * (tiles(c.head_dim) + tiles(c.head_dim_v)) + 2 * GROUPS
    need = count * tile * DTYPES[c.dtype].bytes + GROUPS * tile * 4
    need += 2 * STAGES * ROWS * 4 + SPECIALISATION_BYTES
    if need > arch.shared_memory:
        return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


def _algorithms(p: AttentionBackwardProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    if max(p.head_dim, p.head_dim_v) <= gluon_ws.MOST_DIM or _dims(p) is not None:
        return []
    return [{**FIELDS, "ordered": said} for said in (False, True)]


def _lean(part: Part) -> Part:
    """The part in this pipeline."""
    if part.name != "gradients_gluon_ws":
        return part
    return replace(
        part,
        name="gradients_gluon_lean",
        kernel=f"{KERNELS}.gluon_lean:gradients_gluon_lean",
        boxes=boxes,
    )


GLUON_LEAN = Pipeline(
    name="gluon_lean",
    parts=tuple(map(_lean, GLUON_WS.parts)),
    needs=GLUON_WS.needs,
    rules={
        "words": gluon_ws.words,
        "dtypes": gluon_ws.dtypes,
        "head_dim": lambda c, arch: _dims(c),
        "copies": gluon_ws.copies,
        "tile": _tile,
        "shared_memory": _shared_memory,
    },
    supports=GLUON_WS.supports,
    pace=replace(GLUON_WS.pace, share=0.61),
    repeats=GLUON_WS.repeats,
    algorithms=_algorithms,
    tuned=lambda p, arch: (),
)
