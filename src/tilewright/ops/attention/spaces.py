"""The default space of a problem and the spaces of a tuning: its signature, and each pipeline's
algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.attention.config import ALIGNMENTS, SCHEDULERS
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention.pipelines import PIPELINES
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.space import KernelSpace, of_rows

AXES: dict[str, Any] = {
    "dtype": "bf16",
    "dtype_kv": "",
    "dtype_o": "",
    "head_dim": 128,
    "head_dim_v": 0,
    "mask": "none",
    "tile_q": 128,
    "tile_kv": 64,
    "num_warps": 4,
    "num_stages": 2,
    "pipeline": "basic",
    "scheduler": "tile",
    "split_len": 0,
    "alignment": 16,
    "page_size": 0,
    "pack": False,
    "features": "",
}
"""Every axis, with its default. An empty dtype is that of Q (of O: bf16 for fp8); a head_dim_v of 0
is head_dim."""

ALGORITHM = (
    "tile_q", "tile_kv", "num_warps", "num_stages", "pipeline", "scheduler", "split_len",
    "alignment", "pack",
)  # fmt: skip


_USUAL = {name: AXES[name] for name in ALGORITHM}
_row = itemgetter(*ALGORITHM)


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """What ``"*"`` means for an axis on an architecture. Raises `BadArgument`."""
    known: dict[str, Sequence[Any]] = {
        "mask": MASKS,
        "scheduler": SCHEDULERS,
        "pipeline": [name for name, record in PIPELINES.items() if record.runs_on(arch)],
        "num_warps": arch.num_warps,
        "num_stages": arch.num_stages,
        "alignment": ALIGNMENTS,
        "pack": (False, True),
    }
    if axis not in known:
        raise BadArgument(f"'*' has no meaning on {axis}; give its values")
    return known[axis]


def signature(problem: AttentionProblem) -> dict[str, Any]:
    """The fields of a config that a problem determines."""
    p = problem
    named = ("dtype", "dtype_kv", "dtype_o", "head_dim", "head_dim_v", "page_size", "features")
    return {name: getattr(p, name) for name in named} | {"mask": p.mask.kind}


def default_space(problem: AttentionProblem, arch: Arch) -> KernelSpace:
    """The space to choose from where nothing was measured: the records' algorithms, at the widest
    alignment that they have and the problem's arrays allow."""
    return _space(problem, arch, tuned=False)


def tuning_spaces(problem: AttentionProblem, arch: Arch) -> Sequence[KernelSpace]:
    """What a tuning chooses from: more tiles, warps and stages."""
    return (default_space(problem, arch), _space(problem, arch, tuned=True))


def _space(problem: AttentionProblem, arch: Arch, *, tuned: bool) -> KernelSpace:
    rows = []
    for record in PIPELINES.values():
        if not record.runs_on(arch):
            continue
        found = record.tuned if tuned else record.algorithms
        usual = {**_USUAL, "pipeline": record.name}
        made = [_row({**usual, **fields}) for fields in found(problem, arch)]
        rows += _with_fixed_splits(_widest(made, problem.alignment))
    return of_rows("attention", signature(problem), ALGORITHM, rows)


_ALIGNMENT = ALGORITHM.index("alignment")


def _widest(rows: Sequence[tuple[Any, ...]], alignment: int) -> list[tuple[Any, ...]]:
    """The rows of the widest alignment up to this one. An algorithm that is slower for being less
    aligned need not be looked at where the other serves."""
    widest = max((row[_ALIGNMENT] for row in rows if row[_ALIGNMENT] <= alignment), default=0)
    return [row for row in rows if row[_ALIGNMENT] == widest]


FIXED_SPLIT = 2048
"""Keys of a split whose place does not depend on what else is computed (``batch_invariant``): long
enough that a split's work exceeds what combining it costs."""

_SCHEDULER, _SPLIT_LEN = ALGORITHM.index("scheduler"), ALGORITHM.index("split_len")


def _with_fixed_splits(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows, and beside each that cuts keys evenly one that cuts them at fixed places."""
    found: dict[tuple[Any, ...], None] = {}
    for row in rows:
        found[row] = None
        if row[_SCHEDULER] == "split" and not row[_SPLIT_LEN]:
            fixed = (*row[:_SPLIT_LEN], FIXED_SPLIT, *row[_SPLIT_LEN + 1 :])
            found[fixed] = None
    return list(found)
