"""The default space of a problem and the spaces of a tuning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.merge_states.config import ALIGNMENTS
from tilewright.ops.merge_states.problem import FORMS, MergeStatesProblem
from tilewright.ops.merge_states.rules import SIGNATURE, vector
from tilewright.ops.powers import power_of_two
from tilewright.space import KernelSpace, of_rows

AXES: dict[str, Any] = {
    "dtype": "bf16",
    "form": "stack",
    "masked": False,
    "tile_m": 4,
    "tile_n": 128,
    "states": 1,
    "num_warps": 4,
    "alignment": 16,
}
"""Every axis, with its default."""


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """What ``"*"`` means for an axis on an architecture. Raises `BadArgument`."""
    known: dict[str, Sequence[Any]] = {
        "form": FORMS,
        "num_warps": arch.num_warps,
        "alignment": ALIGNMENTS,
    }
    if axis not in known:
        raise BadArgument(f"'*' has no meaning on {axis}; give its values")
    return known[axis]


def default_space(problem: MergeStatesProblem, arch: Arch) -> KernelSpace:
    """The space to choose from where nothing was measured."""
    return _space(problem, arch, (4,))


def tuning_spaces(problem: MergeStatesProblem, arch: Arch) -> Sequence[KernelSpace]:
    """What a tuning chooses from: more warps."""
    return default_space(problem, arch), _space(problem, arch, (1, 2, 8))


def _space(p: MergeStatesProblem, arch: Arch, warps: Sequence[int]) -> KernelSpace:
    tile_n = power_of_two(p.head_dim)
    most = power_of_two(p.states)
    rows = []
    for count, each, states in itertools.product(warps, (4, 8, 16), (1, 4, 16, 64)):
        tile_m = count * arch.warp_size * each // (tile_n * states)
        if p.form == "stack":
            fits = states <= most
        else:
            fits = states == 1
        if fits and tile_m:
            rows.append((tile_m, states, count))
    rows = rows or [(1, 1, warps[0])]
    fixed: dict[str, Any] = {name: getattr(p, name) for name in SIGNATURE}
    fixed |= {"tile_n": tile_n, "alignment": vector(p)}
    return of_rows("merge_states", fixed, ("tile_m", "states", "num_warps"), rows)
