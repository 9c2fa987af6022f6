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


def sort_by_expert(
    ids: Any, expert_map: Any, weights: Any, experts: int, block: int, capacity: int
) -> Any:
    found, rows = ids.flatten().long(), ids.numel()
    if expert_map is not None:
        known = (found >= 0) & (found < len(expert_map))
        found = torch.where(known, expert_map[found.clamp(0, len(expert_map) - 1)].long(), -1)
    found = torch.where((found >= 0) & (found < experts), found, experts)
    if capacity:
        chosen = torch.nn.functional.one_hot(found, experts + 1)
        before = (chosen.cumsum(0) * chosen).sum(-1)
        found = torch.where(before > capacity, experts, found)
    counts = found.new_zeros(experts + 1).scatter_add_(0, found, torch.ones_like(found))
    begun = counts.cumsum(0) - counts
    padded = (counts[:experts] + block - 1) // block * block
    ends = padded.cumsum(0)
    most = min(rows, experts) + (rows - min(rows, experts)) // block
    slots = most * block
    of_rows, by_expert = torch.sort(found, stable=True)
    first = torch.cat((ends - padded, found.new_full((1,), slots)))
    number = torch.arange(rows, device=ids.device)
    at = torch.where(of_rows < experts, first[of_rows] + number - begun[of_rows], slots)
    order = found.new_full((slots + 1,), rows).scatter_(0, at, by_expert)[:slots]
    placed = torch.where(at < slots, at, -1)
    places = torch.empty_like(found).scatter_(0, by_expert, placed)
    starts = torch.arange(most, device=ids.device) * block
    of_blocks = torch.searchsorted(ends, starts, right=True)
    of_blocks = torch.where(starts < ends[-1], of_blocks, -1)
    made = (order, of_blocks, counts[:experts], ends, ends[-1:], places.view(ids.shape))
    found = tuple(one.int() for one in made)
    if weights is None:
        return found
    taken = weights.flatten()[by_expert]
    return (*found, weights.new_zeros(slots + 1).scatter_(0, at, taken)[:slots])


def sum_of_experts(
    rows: Any, places: Any, weights: Any, shared: Any, routed_scaling_factor: float, out_dtype: str
) -> Any:
    there = (places >= 0) & (places < len(rows))
    terms = torch.where(there[..., None], rows[torch.where(there, places, 0).long()], 0)
    if weights is not None:
        terms = terms.float() * weights[..., None].float()
    y = terms.sum(-2, dtype=torch.float32) * routed_scaling_factor
    return (y if shared is None else y + shared.float()).to(kind(out_dtype))


def sum_of_experts_backward(
    rows: Any, places: Any, dy: Any, weights: Any, routed_scaling_factor: float
) -> Any:
    count, (tokens, k) = len(rows), places.shape
    there = (places >= 0) & (places < count)
    terms = (dy.float() * routed_scaling_factor)[:, None, :].expand(tokens, k, -1)
    each = terms if weights is None else terms * weights[..., None].float()
    flat = torch.where(there, places, count).long().reshape(-1)
    drows = torch.zeros(count + 1, rows.shape[1], dtype=rows.dtype, device=rows.device)
    drows[flat] = each.reshape(tokens * k, -1).to(rows.dtype)
    if weights is None:
        return drows[:count]
    chosen = torch.where(there[..., None], rows[torch.where(there, places, 0).long()], 0)
    dweights = (chosen.float() * terms).sum(-1)
    return drows[:count], dweights.to(weights.dtype)


def take_rows(x: Any, order: Any, places: Any, per_row: int) -> Any:
    there = (order >= 0) & (order < len(x) * per_row)
    rows = x[torch.where(there, order // per_row, 0).long()]
    return torch.where(there[:, None], rows, torch.zeros((), dtype=x.dtype, device=x.device))


def sorted_routing(
    logits: Any, bias: Any, routed_scaling_factor: float, k: int, scoring: str, renormalize: bool,
    n_group: int, topk_group: int, group_score: str,
) -> Any:  # fmt: skip
    weights, ids = topk_routing(
        logits, bias, routed_scaling_factor, k, scoring, renormalize, n_group, topk_group,
        group_score,
    )  # fmt: skip
    order, _, _, ends, _, places = sort_by_expert(ids, None, None, logits.shape[-1], 1, 0)
    return weights, ids, order, ends, places


FORMS = {
    "sort_by_expert": sort_by_expert,
    "sorted_routing": sorted_routing,
    "sum_of_experts": sum_of_experts,
    "sum_of_experts_backward": sum_of_experts_backward,
    "take_rows": take_rows,
    "topk": topk,
    "topk_routing": topk_routing,
    "topk_routing_backward": topk_routing_backward,
}
