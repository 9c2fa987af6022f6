"""Torch's calls of cuDNN's attention, which ``scaled_dot_product_attention`` prefers on some GPUs.

The contracts are those of flash attention, but for LSE, which is [batch, heads, queries, 1], and
computed where that is asked for, and for the random state. Where a record has cuDNN ahead of the
kernels here, torch keeps a call, whatever a table says: not every table's rows were measured beside
cuDNN.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.ops.library import CUDNN
from tilewright.torch.installing.decisions import Asked, Decisions
from tilewright.torch.installing.flash import DEBUG, FAMILIES, gradients, like, readable, why_not
from tilewright.torch.installing.overrides import Overrides, serving

__all__ = ["FAMILIES", "put"]


def put(overrides: Overrides, decisions: Decisions) -> None:
    """Serve torch's two operators of cuDNN's attention."""
    for aten, ask, results in (
        ("_scaled_dot_product_cudnn_attention", _forward, _results),
        ("_scaled_dot_product_cudnn_attention_backward", _backward, gradients),
    ):
        overrides.put(aten, serving(decisions, aten, ask, results))


def _why_not(q: Any, k: Any, v: Any, bias: Any, dropout_p: float, causal: bool, *more: Any) -> str:
    """See `flash.why_not`."""
    if bias is not None:
        return "there is a mask, or a bias"
    if causal and q.shape[2] != k.shape[2]:
        return "a causal mask is not square"
    return why_not(q, k, v, 2, dropout_p, causal, *more)


def _forward(
    q: Any,
    k: Any,
    v: Any,
    attn_bias: Any,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Asked | str:
    if return_debug_mask:
        return DEBUG
    if why := _why_not(q, k, v, attn_bias, dropout_p, is_causal):
        return why
    said = {"layout": "bhsd", "causal": is_causal, "scale": scale}
    out = torch.empty_like(q)
    if not compute_log_sumexp:
        return Asked("attention", (q, k, v), said, (out,), CUDNN)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    return Asked("attention", (q, k, v), said | {"lse": True}, (out, lse), CUDNN)


def _results(made: tuple[Any, ...], q: Any, k: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    out, *lse = made
    sums = lse[0] if lse else torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    seed, offset = (torch.empty((), dtype=torch.int64, device=q.device) for _ in range(2))
    return out, sums.unsqueeze(-1), None, None, q.shape[2], k.shape[2], seed, offset, None


def _backward(
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    philox_seed: Any,
    philox_offset: Any,
    attn_bias: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Asked | str:
    if cum_seq_q is not None:
        return "rows are packed"
    do = readable(do)
    if why := _why_not(q, k, v, attn_bias, dropout_p, is_causal, o, do):
        return why
    said = {"layout": "bhsd", "causal": is_causal, "scale": scale}
    operands = (q, k, v, o, lse.squeeze(-1).contiguous(), do)
    return Asked("attention_backward", operands, said, like(q, k, v), CUDNN)
