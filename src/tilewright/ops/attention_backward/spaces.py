"""The default space of a problem and the spaces of a tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.attention.config import ALIGNMENTS
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention_backward import pipelines
from tilewright.ops.attention_backward.problem import USUAL, AttentionBackwardProblem
from tilewright.ops.attention_backward.rules import SIGNATURE
from tilewright.space import KernelSpace, of_rows

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
    "ordered": False,
}
"""Every axis, with its default. An empty dtype_o is that of Q; a head_dim_v of 0 is head_dim."""

ALGORITHM = (
    "tile_rows",
    "step_rows",
    "num_warps",
    "num_stages",
    "pipeline",
    "alignment",
    "ordered",
)


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """What ``"*"`` means for an axis on an architecture. Raises `BadArgument`."""
    known: dict[str, Sequence[Any]] = {
        "mask": MASKS,
        "pipeline": tuple(pipelines.PIPELINES),
        "num_warps": arch.num_warps,
        "num_stages": arch.num_stages,
        "alignment": ALIGNMENTS,
        "dlse": (False, True),
        "ordered": (False, True),
    }
    if axis not in known:
        raise BadArgument(f"'*' has no meaning on {axis}; give its values")
    return known[axis]


def default_space(problem: AttentionBackwardProblem, arch: Arch) -> KernelSpace:
    """The space to choose from where nothing was measured."""
    return _space(problem, arch, tuned=False)


def tuning_spaces(problem: AttentionBackwardProblem, arch: Arch) -> Sequence[KernelSpace]:
    """What a tuning chooses from: the default space, and what else pipelines have to try."""
    return (_space(problem, arch, tuned=True),)


def _space(p: AttentionBackwardProblem, arch: Arch, *, tuned: bool) -> KernelSpace:
    fixed = {name: getattr(p, name) for name in SIGNATURE} | {"mask": p.mask.kind}
    alignment = 16 if p.alignment == 16 else 1
    rows = []
    for name in pipelines.on(arch):
        record = pipelines.PIPELINES[name]
        more = record.tuned(p, arch) if tuned else ()
        for one in (*record.algorithms(p, arch), *more):
            given = {"ordered": False, **one, "pipeline": name, "alignment": alignment}
            rows.append(tuple(given[axis] for axis in ALGORITHM))
    return of_rows("attention_backward", fixed, ALGORITHM, rows)
