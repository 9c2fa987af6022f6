"""The default space of a problem and the spaces of a tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.attention.config import ALIGNMENTS
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention_backward.config import PIPELINES
from tilewright.ops.attention_backward.problem import USUAL, AttentionBackwardProblem
from tilewright.ops.attention_backward.rules import SIGNATURE
from tilewright.space import KernelSpace

AXES: dict[str, Any] = {
    "dtype": "bf16",
    "dtype_o": "",
    "head_dim": 128,
    "head_dim_v": 0,
    "mask": "none",
    "tile_rows": 64,
    "step_rows": 32,
    "num_warps": 4,
    "num_stages": 1,
    "pipeline": "basic",
    "alignment": 16,
    "grads": USUAL,
    "dlse": False,
    "features": "",
}
"""Every axis, with its default. An empty dtype_o is that of Q; a head_dim_v of 0 is head_dim."""

ALGORITHM = ("tile_rows", "step_rows", "num_warps", "num_stages", "alignment")

TILES: dict[str, tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...]] = {
    "cuda": (
        (64, ((64, 32, 4), (64, 64, 4), (128, 32, 8))),
        (128, ((64, 32, 8), (32, 32, 4))),
        (256, ((32, 32, 8), (32, 16, 4), (16, 16, 4))),
    ),
    "hip": (
        (64, ((64, 32, 4), (64, 64, 4), (128, 32, 8))),
        (128, ((64, 32, 4), (32, 32, 4))),
        (256, ((32, 16, 8), (32, 16, 4), (16, 16, 4))),
    ),
}
"""By the GPU's maker and up to a head dim: rows that a workgroup owns, rows of a step, warps.
Causal bf16 kernels of these for sm_90 and gfx942 spill no registers (with dropout at head dim 128,
up to 72 bytes on sm_90); none was timed. A head dim of fp32 counts twice."""

LEAST = ((16, 16, 4),)
"""For longer head dims."""


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """What ``"*"`` means for an axis on an architecture. Raises `BadArgument`."""
    known: dict[str, Sequence[Any]] = {
        "mask": MASKS,
        "pipeline": PIPELINES,
        "num_warps": arch.num_warps,
        "num_stages": arch.num_stages,
        "alignment": ALIGNMENTS,
        "dlse": (False, True),
    }
    if axis not in known:
        raise BadArgument(f"'*' has no meaning on {axis}; give its values")
    return known[axis]


def default_space(problem: AttentionBackwardProblem, arch: Arch) -> KernelSpace:
    """The space to choose from where nothing was measured."""
    return _space(problem, arch, stages=(1,))


def tuning_spaces(problem: AttentionBackwardProblem, arch: Arch) -> Sequence[KernelSpace]:
    """What a tuning chooses from: more stages."""
    return (_space(problem, arch, stages=(1, 2) if arch.backend == "cuda" else (1,)),)


def _space(p: AttentionBackwardProblem, arch: Arch, *, stages: Sequence[int]) -> KernelSpace:
    fixed = {name: [getattr(p, name)] for name in SIGNATURE} | {"mask": [p.mask.kind]}
    alignment = 16 if p.alignment == 16 else 1
    size = max(p.head_dim, p.head_dim_v) * (2 if p.dtype == "fp32" else 1)
    tiles = next((found for most, found in TILES[arch.backend] if size <= most), LEAST)
    rows = [(*tile, count, alignment) for tile in tiles for count in stages]
    return KernelSpace("attention_backward", fixed, {}, {ALGORITHM: rows})
