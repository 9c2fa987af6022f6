"""Inputs that the backward pass is checked with: attention's, O and LSE from the float64 reference
of the forward pass, rounded, and random gradients. Rows that no sequence has are NaN throughout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import arrays
from tilewright.ops.attention import inputs as forward
from tilewright.ops.attention.reference import reference
from tilewright.ops.attention.rows import queries_at, sequences, whole
from tilewright.ops.attention_backward.operands import operands
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem


def make_inputs(p: AttentionBackwardProblem, rng: Any) -> Mapping[str, Any]:
    """Fresh values for every operand that kernels read, and for the scalars given at the call."""
    stated = {one.name: one for one in operands(p) if one.read}
    given = forward.make_inputs(p, rng)
    wide = {
        name: x if isinstance(x, int | float) else arrays.to_float64(x) for name, x in given.items()
    }
    wrote = reference(p.forward, wide)
    found = dict(given)
    for name in ("o", "lse"):
        found[name] = rng.filled(stated[name], wrote[name])
    found |= rng.independent([stated["do"]])
    used = [queries_at(p, of) for of in sequences(p, whole(given))]
    forward.poison_others(p, "q", found["do"], used)
    if p.accumulate:
        found |= rng.independent(one for one in stated.values() if one.written)
    if p.dlse:
        found |= rng.independent([stated["dlse"]])
        found["dlse"][wrote["lse"] != wrote["lse"]] = float("nan")
    return {name: found[name] for name in stated} | {
        name: x for name, x in given.items() if name not in stated
    }
