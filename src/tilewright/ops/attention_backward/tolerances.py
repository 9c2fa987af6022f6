"""How far gradients may be from the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilewright.dtypes import DTYPES
from tilewright.ops.attention.tolerances import uneven
from tilewright.ops.attention_backward import pipelines
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.operands import operands
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.library import library_of
from tilewright.tolerance import (
    SCORES,
    Tolerance,
    cancelling,
    heavy_element,
    rounded_terms,
    score_error,
    softmax_row_tolerance,
    softmax_tolerance,
)

_SPREAD = 3.0
"""How much more than O's the rows of dQ and dK differ: a key that many queries see first, or alone,
gains as much as all others together."""

_VALUES = 1.0
"""The rms of dO, whose sums dV has."""

_FEW_KEYS = 1.7
"""How much further dQ may be off where queries see few keys. O is rounded, so delta is off by a
share of it, times dO; a query of two keys is off by that times K, however small its gradient is. Of
60 problems of 64 heads, simulated in float64, 4 had an element beyond 1, the furthest at 1.33."""

_ELSEWHERE = 2.0
"""How much further another library's gradients may be off: it rounds in other places, as each
head's part of dK to 16 bits before a group's parts are summed. cuDNN's and FlashAttention-2's were
off by up to 1.6 times what kernels may be, under causal masks with 8 heads to a group."""


def tolerances(
    p: AttentionBackwardProblem, config: AttentionBackwardConfig | None
) -> Mapping[str, Tolerance]:
    """By gradient. Each is a sum of products with the weights of a softmax, or with their
    gradients, which are rounded to the dtype of Q before they are multiplied, as dO is. Without a
    config, and of an engine, they are those of another library's.

    A row of dV is a sum of rows of dO with weights, as a row of O is of rows of V, so its errors
    are shares of the row as well. Beside the rms of all rows they have no bound: with sinks most
    weights are small, and the key of one heavy weight has a row a hundred times as long. Rows of dQ
    and dK have such errors too, beside those of terms that cancel.
    """
    scores = score_error(p.dtype, max(p.head_dim, p.head_dim_v), capped=p.softcap > 0)
    n_q, n_kv = p.q_len * p.group, p.kv_len
    terms = {"dq": n_kv, "dk": n_q, "dv": n_q, "dbias": p.batch * p.heads}
    terms |= dict.fromkeys(("dsinks", "dslopes"), p.batch * p.q_len * n_kv)
    rows = p.batch * p.kv_len * p.kv_heads
    wider = DTYPES[p.dtype_o].bytes > DTYPES[p.dtype].bytes
    further = 2.0 if wider else 1.0  # dO loses as many bits as the weights do
    if config is None or library_of(config):
        further *= _ELSEWHERE
    spread = _SPREAD * uneven(p) * math.sqrt(max(1.0, rows / max(1, p.batch * n_q))) * further
    unseen = math.sqrt(p.kv_len / max(1, _keys_seen(p)))
    scale = SCORES * p.head_dim**-0.5
    factors = {
        "dq": scale, "dk": scale, "dbias": 1.0, "dslopes": float(max(p.q_len, p.kv_len)),
        "dsinks": float(max(1, n_kv)) ** -0.5,
    }  # fmt: skip
    found = {}
    for one in operands(p):
        if one.written:
            count = max(1, terms[one.name])
            by_row = softmax_row_tolerance(
                p.dtype, one.dtype, count, scores, beside=_VALUES, further=further
            )
            if one.name == "dv":
                found["dv"] = by_row
                continue
            among = max(spread, unseen) if one.name == "dk" else spread
            if one.name == "dq" and p.mask.kind != "none":
                among *= _FEW_KEYS
            usual = softmax_tolerance(p.dtype, one.dtype, count, scores, among)
            if one.name in ("dq", "dk"):
                usual = replace(usual, by_row=by_row.by_row)
            magnitude = factors.get(one.name, 0.0) * math.sqrt(count)
            # A query of one key has dP = delta: its gradients are nothing but rounding.
            if wider and one.name == "dbias":
                usual = heavy_element(usual, p.dtype, p.kv_len)  # sums of few terms: nothing evens
            elif one.name == "dbias" and _rounds_terms(p, config):
                usual = rounded_terms(usual)
            found[one.name] = cancelling(usual, p.dtype, p.head_dim_v, magnitude)
    return found


def _rounds_terms(p: AttentionBackwardProblem, config: AttentionBackwardConfig | None) -> bool:
    """Whether several gradients of scores are rounded to 16 bits before they are added to a bias's:
    those that go through memory, and another library's."""
    if p.dtype == "fp32" or p.batch * p.heads == math.prod(p.bias_shape):
        return False
    return config is None or any(
        one.name == "bias_sums" and one.there(config) for one in pipelines.of(config).parts
    )


def _keys_seen(p: AttentionBackwardProblem) -> int:
    """Keys of a sequence of full length that a query sees."""
    shift = p.kv_len - p.q_len if p.mask.bottom_right else 0
    end = p.kv_len if p.mask.right is None else min(p.kv_len, p.q_len + shift + p.mask.right)
    begin = 0 if p.mask.left is None or p.mask.first else max(0, shift - p.mask.left)
    return max(0, end - begin)
