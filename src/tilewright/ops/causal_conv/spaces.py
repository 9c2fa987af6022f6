"""The default space of a problem and the spaces of a tuning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.causal_conv.config import ALIGNMENTS, INDEX_BITS, INNERS
from tilewright.ops.causal_conv.problem import DIRECTIONS, CausalConvProblem, vector
from tilewright.ops.causal_conv.rules import SIGNATURE, index_bits
from tilewright.space import KernelSpace, of_rows

AXES: dict[str, Any] = {
    "direction": "forward",
    "taps": 4,
    "dtype": "bf16",
    "dtype_w": "",
    "extras": "",
    "tile_m": 32,
    "tile_n": 64,
    "num_warps": 4,
    "inner": "channels",
    "alignment": 16,
    "index_bits": 32,
}
"""Every axis, with its default. An empty dtype_w is dtype."""

ALGORITHM = ("tile_m", "tile_n", "num_warps", "inner", "alignment")


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """What ``"*"`` means for an axis on an architecture. Raises `BadArgument`."""
    known: dict[str, Sequence[Any]] = {
        "direction": DIRECTIONS,
        "num_warps": arch.num_warps,
        "inner": INNERS,
        "alignment": ALIGNMENTS,
        "index_bits": INDEX_BITS,
    }
    if axis not in known:
        raise BadArgument(f"'*' has no meaning on {axis}; give its values")
    return known[axis]


def default_space(problem: CausalConvProblem, arch: Arch) -> KernelSpace:
    """The space to choose from where nothing was measured."""
    return _space(problem, arch, (4,), (1, 2, 4, 8))


def tuning_spaces(problem: CausalConvProblem, arch: Arch) -> Sequence[KernelSpace]:
    """What a tuning chooses from: more warps and tiles."""
    more = _space(problem, arch, (1, 2, 4, 8), (1, 2, 4, 8, 16))
    return default_space(problem, arch), more


def _space(
    p: CausalConvProblem, arch: Arch, warps: Sequence[int], each: Sequence[int]
) -> KernelSpace:
    """each: elements of a tile in a thread."""
    inner, alignment = vector(p)
    rows = []
    for count, elements in itertools.product(warps, each):
        size = count * arch.warp_size * elements
        if p.direction == "update":
            if elements == 1:
                rows.append((1, size, count, "any", alignment))
            continue
        for narrow in (32, 64, 128):
            shape = (size // narrow, narrow) if inner != "tokens" else (narrow, size // narrow)
            if min(shape):
                rows.append((*shape, count, inner, alignment))
    fixed: dict[str, Any] = {name: getattr(p, name) for name in SIGNATURE}
    fixed["index_bits"] = index_bits(p)
    return of_rows("causal_conv", fixed, ALGORITHM, rows)
