"""Attention of one sequence, as plainly as torch says it."""

from __future__ import annotations

import torch


def attention(q, keys, values, scale, *, left=None, softcap=None, sinks=None, slopes=None):
    """The last queries of a sequence over all its keys, causal, in fp32: [n, heads, size].

    q: [n, heads, size]; keys, values: [rows, heads of keys, size]. left: keys before its own place
    that a query sees; None for all. softcap, sinks [heads], slopes [heads] as in
    `tilewright.attention`.
    """
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.float().repeat_interleave(group, 1) for x in (keys, values))
    scores = scale * torch.einsum("qhd,khd->hqk", q.float(), keys)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    places = torch.arange(len(keys), device=q.device)
    back = places[len(keys) - len(q) :, None] - places
    if slopes is not None:
        scores = scores - torch.tensor(slopes, device=q.device)[:, None, None] * back
    hidden = (back < 0) | (back > (len(keys) if left is None else left))
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        column = sinks.float()[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values)
