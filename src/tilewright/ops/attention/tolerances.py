"""How far outputs of attention may be from the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.inputs import BOUNDS
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.tolerance import (
    Tolerance,
    logsumexp_tolerance,
    score_error,
    softmax_row_tolerance,
    tolerance,
)

_LENGTHS = 1.5
"""How much more uneven rows are where lengths lie on the device, and some sequences are empty."""

_TURN = 4.0
"""Elementwise operations of rotary embedding, for `tolerance`."""


def tolerances(p: AttentionProblem, config: AttentionConfig | None) -> Mapping[str, Tolerance]:
    """By output. Of K and V under append: of the rows that are written; all others must be equal,
    and are, within any tolerance, where they hold NaN."""
    turned = _TURN if p.rotary_dim else 0.0
    scores = score_error(p.dtype, p.head_dim, capped=p.softcap > 0, combined=turned)
    values = 1.0 / BOUNDS["o_scale"][0] if "oscale" in p.words else 1.0
    beside = values if "sinks" in p.words else 0.0
    found = {
        "o": softmax_row_tolerance(p.dtype, p.dtype_o, max(1, p.kv_len), scores, beside=beside),
        "lse": logsumexp_tolerance(scores),
        "random": Tolerance(0.0, 0.0),
    }
    if p.new_kv:
        same = p.dtype == p.dtype_kv
        changed = tolerance("fp32", p.dtype_kv, 1, amplified=max(1.0, turned))
        found["k"] = Tolerance(0.0, 0.0) if same and not p.rotary_dim else changed
        found["v"] = Tolerance(0.0, 0.0) if same else changed
    return found


def uneven(p: AttentionProblem) -> float:
    """How many times smaller rows without keys make the rms of all rows: of gradients, whose rows
    have no weights of their own."""
    n_q, n_kv = p.lengths
    rows = p.total_q if "packedq" in p.words else p.batch * p.q_len
    seen = p.batch * _rows_with_keys(p, n_q, n_kv)
    found = math.sqrt(max(1, rows) / max(1, min(rows, seen)))
    known = not p.words & {"packedq", "packedkv", "usedq", "usedkv"}
    return found if known else found * _LENGTHS


def _rows_with_keys(p: AttentionProblem, n_q: int, n_kv: int) -> int:
    """Queries that see a key."""
    mask, shift = p.mask, n_kv - n_q if p.mask.bottom_right else 0
    first = 0 if mask.right is None else max(0, -(shift + mask.right))
    end = n_q
    if mask.left is not None and not mask.first:
        end = min(n_q, n_kv + mask.left - shift)
    return max(0, end - first) if n_kv else 0
