"""`gluon_roles`: as `gluon_ws`, for head dims up to 256: one group of warps has the weights and dV,
the other their gradients and dK."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.pipelines.gluon_ws import CHUNK, ROWS
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines.gluon_lean import boxes
from tilewright.ops.attention_backward.pipelines.gluon_wide import GLUON_WIDE, tiles
from tilewright.ops.attention_backward.pipelines.gluon_ws import (
    GROUPS,
    SPECIALISATION_BYTES,
    STAGES,
)
from tilewright.ops.attention_backward.pipelines.record import Part


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


def _roles(part: Part) -> Part:
    """The part in this pipeline."""
    if part.language != "gluon":
        return part
    return replace(part, name="gradients_gluon_roles", module="gluon_roles", boxes=boxes)


GLUON_ROLES = replace(
    GLUON_WIDE,
    name="gluon_roles",
    parts=tuple(map(_roles, GLUON_WIDE.parts)),
    rules={**GLUON_WIDE.rules, "shared_memory": _shared_memory},
    algorithms=lambda p, arch: (),  # not before a GPU has run it
    tuned=GLUON_WIDE.algorithms,
)
