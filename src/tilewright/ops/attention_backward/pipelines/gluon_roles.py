"""`gluon_roles`: as `gluon_ws`, for head dims up to 256: one group of warps has the weights and dV,
the other their gradients and dK."""

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
from tilewright.ops.attention_backward.pipelines.gluon_lean import GLUON_LEAN
from tilewright.ops.attention_backward.pipelines.gluon_ws import (
    SPECIALISATION_BYTES,
    STAGES,
)
from tilewright.ops.attention_backward.pipelines.record import KERNELS, Pace
from tilewright.ops.attention_backward.pipelines.tiles import tiles
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.binder import Part

MOST_DIM = 256

FIELDS = {
    "tile_rows": ROWS,
    "step_rows": ROWS,
    "num_warps": GROUPS * WARPGROUP,
    "num_stages": STAGES,
}
"""The only algorithm."""


def _tile(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    for field, wanted in FIELDS.items():
        if (value := getattr(c, field)) != wanted:
            return f"pipeline gluon_roles has {field} {wanted}, not {value}"
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
    """K and two slots of Q; V and dO; weights and their gradients; a tile of dQ of each group;
    rows' terms."""
    tile = ROWS * CHUNK
    count = (1 + STAGES) * tiles(c.head_dim) + 2 * tiles(c.head_dim_v) + 2
    need = count * tile * DTYPES[c.dtype].bytes + GROUPS * tile * 4
    need += (STAGES + 1) * ROWS * 4 + SPECIALISATION_BYTES
    if need > arch.shared_memory:
        return f"{need} bytes of shared memory, over {arch.shared_memory}"
    return None


def _algorithms(p: AttentionBackwardProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    if max(p.head_dim, p.head_dim_v) <= gluon_ws.MOST_DIM:
        return []
    return [{**FIELDS, "ordered": said} for said in (False, True)]


def _roles(part: Part) -> Part:
    """The part in this pipeline."""
    if part.name != "gradients_gluon_lean":
        return part
    return replace(
        part,
        name="gradients_gluon_roles",
        kernel=f"{KERNELS}.gluon_roles:gradients_gluon_roles",
    )


GLUON_ROLES = replace(
    GLUON_LEAN,
    name="gluon_roles",
    parts=tuple(map(_roles, GLUON_LEAN.parts)),
    rules={**GLUON_LEAN.rules, "head_dim": _dims, "tile": _tile, "shared_memory": _shared_memory},
    pace=Pace(one_pass=True, share=0.47, ordered=0.93),
    algorithms=_algorithms,
)
