"""What attention must give, in float64, and the inputs that it is checked with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.operands import operands
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.tolerance import Tolerance, tolerance


def make_inputs(problem: AttentionProblem, rng: Any) -> Mapping[str, Any]:
    """Fresh values for every operand that kernels read, and for the scalars given at the call."""
    found: dict[str, Any] = rng.independent(o for o in operands(problem) if o.read)
    return {**found, "scale": problem.head_dim**-0.5, "seed": 0, "offset": 0}


def reference(p: AttentionProblem, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """O (and LSE) of batches without further features."""
    import numpy as np

    q, k, v = (np.swapaxes(np.asarray(inputs[name]), 1, 2) for name in ("q", "k", "v"))
    k, v = (np.repeat(x, p.group, 1) for x in (k, v))
    s = q @ np.swapaxes(k, 2, 3) * inputs["scale"]
    seen = p.mask.seen(np.arange(p.q_len), np.arange(p.kv_len), p.q_len, p.kv_len)
    s = np.where(seen, s, -np.inf)
    most = s.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(most), most, 0.0))
    total = e.sum(-1, keepdims=True)
    o = e @ v / np.where(total > 0, total, 1.0)
    return {"o": np.swapaxes(o, 1, 2)}


def tolerances(
    problem: AttentionProblem, config: AttentionConfig | None
) -> Mapping[str, Tolerance]:
    """How far O may be from the reference."""
    p = problem
    return {"o": tolerance(p.dtype, p.dtype_o, max(1, p.kv_len), amplified=2.0)}
