"""Forms of what sends tokens to experts."""

from __future__ import annotations

from typing import Any

import torch

from forms.common import kind

LEAST = 1e-20


def topk(x: Any, k: int, index_dtype: str) -> Any:
    values, indices = torch.topk(x, k)
    return values, indices.to(kind(index_dtype))


def _scores(logits: Any, scoring: str) -> Any:
    logits = logits.float()
    if scoring == "sigmoid":
        return logits.sigmoid()
    return logits.softmax(-1) if scoring == "softmax" else logits


def topk_routing(
    logits: Any, bias: Any, routed_scaling_factor: float, k: int, scoring: str, renormalize: bool,
    n_group: int, topk_group: int, group_score: str,
) -> Any:  # fmt: skip
    scores = _scores(logits, scoring)
    by = scores if bias is None else scores + bias
    if n_group > 1:
        groups = by.unflatten(-1, (n_group, -1))
        best = groups.topk(2).values.sum(-1) if group_score == "top2" else groups.amax(-1)
        among = torch.zeros_like(best).scatter_(-1, best.topk(topk_group).indices, 1.0)
        by = groups.masked_fill(among[..., None] == 0, float("-inf")).flatten(-2)
    ids = by.topk(k).indices
    weights = scores.gather(-1, ids)
    if scoring == "softmax_of_chosen":
        weights = weights.softmax(-1)
    elif renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + LEAST)
    return weights * routed_scaling_factor, ids.int()


def topk_routing_backward(
    logits: Any, ids: Any, dweights: Any, routed_scaling_factor: float, scoring: str,
    renormalize: bool,
) -> Any:  # fmt: skip
    places, arrived = ids.long(), dweights * routed_scaling_factor
    scores = _scores(logits, scoring)
    chosen = scores.gather(-1, places)
    if scoring == "softmax_of_chosen":
        chosen = chosen.softmax(-1)
    elif renormalize:
        total = chosen.sum(-1, keepdim=True) + LEAST
        arrived = (arrived - (chosen * arrived).sum(-1, keepdim=True) / total) / total
    if scoring == "sigmoid":
        slopes = chosen * (1 - chosen) * arrived
        return torch.zeros_like(scores).scatter_(-1, places, slopes).to(logits.dtype)
    products = chosen * arrived
    shared = products.sum(-1, keepdim=True)
    if scoring == "softmax_of_chosen":
        slopes = products - chosen * shared
        return torch.zeros_like(scores).scatter_(-1, places, slopes).to(logits.dtype)
    return (-scores * shared).scatter_add_(-1, places, products).to(logits.dtype)


FORMS = {
    "topk": topk,
    "topk_routing": topk_routing,
    "topk_routing_backward": topk_routing_backward,
}
