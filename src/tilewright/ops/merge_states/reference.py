"""What merged states must be, in float64, and how far a kernel may be from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import arrays
from tilewright.ops.merge_states.problem import MergeStatesProblem
from tilewright.tolerance import Tolerance, logsumexp_tolerance, tolerance


def reference(p: MergeStatesProblem, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by name, or o and lse in place, for float64 `inputs`, NumPy's or torch's."""
    o, lse = inputs["o"], inputs["lse"]
    if p.form == "stack":
        states = [(o[:, s], lse[:, s]) for s in range(p.states)]
    else:
        states = [(o, lse), (inputs["other_o"], inputs["other_lse"])]
    import numpy as np

    ours = [tuple(map(_numpy, state)) for state in states]
    most = np.full((p.rows, p.heads), -np.inf)
    for _, log in ours:
        most = np.maximum(most, log)
    base = np.where(np.isneginf(most), 0.0, most)
    total = np.zeros((p.rows, p.heads))
    sums = np.zeros((p.rows, p.heads, p.head_dim))
    for part, log in ours:
        weight = np.exp(log - base)
        total += weight
        sums += np.where(weight[..., None] > 0, part, 0.0) * weight[..., None]
    with np.errstate(divide="ignore"):
        merged = sums / np.where(total == 0, 1.0, total)[..., None], base + np.log(total)
    if p.masked:
        kept = _numpy(inputs["mask"])[:, None] == 0
        before = ours[0]
        merged = (
            np.where(kept[..., None], before[0], merged[0]),
            np.where(kept, before[1], merged[1]),
        )
    names = ("o", "lse") if p.form == "in_place" else ("merged_o", "merged_lse")
    return {name: _like(o, x) for name, x in zip(names, merged, strict=True)}


def _numpy(x: Any) -> Any:
    return x.cpu().numpy() if arrays.is_torch(x) else x


def _like(like: Any, x: Any) -> Any:
    if not arrays.is_torch(like):
        return x
    import torch

    return torch.from_numpy(x).to(like.device)


def tolerances(p: MergeStatesProblem) -> Mapping[str, Tolerance]:
    """How far each output may be from the reference."""
    states = max(1, p.states) if p.form == "stack" else 2
    names = ("o", "lse") if p.form == "in_place" else ("merged_o", "merged_lse")
    # Weights are shares of one, so a sum has no larger terms than O has elements.
    found = tolerance("fp32", p.dtype, states, 1, 2.0), logsumexp_tolerance(0.0)
    return dict(zip(names, found, strict=True))
