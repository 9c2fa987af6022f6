"""How far gradients may be from the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.ops.attention.tolerances import uneven
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.operands import operands
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.tolerance import (
    SCORES,
    Tolerance,
    cancelling,
    score_error,
    softmax_tolerance,
)

_SPREAD = 3.0
"""How much more than O's the rows of gradients differ: a key that many queries see first, or alone,
gains as much as all others together."""


def tolerances(
    p: AttentionBackwardProblem, config: AttentionBackwardConfig | None
) -> Mapping[str, Tolerance]:
    """By gradient. Each is a sum of products with the weights of a softmax, or with their
    gradients, which are rounded to the dtype of Q before they are multiplied."""
    scores = score_error(p.dtype, max(p.head_dim, p.head_dim_v), capped=p.softcap > 0)
    n_q, n_kv = p.q_len * p.group, p.kv_len
    terms = {"dq": n_kv, "dk": n_q, "dv": n_q, "dbias": p.batch * p.heads}
    terms |= dict.fromkeys(("dsinks", "dslopes"), p.batch * p.q_len * n_kv)
    rows = p.batch * p.kv_len * p.kv_heads
    spread = _SPREAD * uneven(p) * math.sqrt(max(1.0, rows / max(1, p.batch * n_q)))
    scale = SCORES * p.head_dim**-0.5
    factors = {"dq": scale, "dk": scale, "dbias": 1.0, "dslopes": float(max(p.q_len, p.kv_len))}
    found = {}
    for one in operands(p):
        if one.written:
            count = max(1, terms[one.name])
            usual = softmax_tolerance(p.dtype, one.dtype, count, scores, spread)
            magnitude = factors.get(one.name, 0.0) * math.sqrt(count)
            # A query of one key has dP = delta: its gradients are nothing but rounding.
            found[one.name] = cancelling(usual, p.dtype, p.head_dim_v, magnitude)
    return found
