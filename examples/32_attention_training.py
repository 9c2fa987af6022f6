"""A GPT that trains with dropout, grouped queries and a window; its loss beside torch's."""

from __future__ import annotations

import math

import torch

import tilewright as tw
from common import place
from gpt import DIM, HEADS, KV_HEADS, trained

WINDOW, DROPPED = 16, 26 / 256  # weights are dropped in units of 1/256


def ours(q, k, v, seed):
    return tw.attention(
        q, k, v, mask="causal", window=(WINDOW - 1, None), dropout=DROPPED, seed=seed
    )


def torch_s(q, k, v, seed):
    """One operation after another. The bytes of dropout depend on the seed and on places alone."""
    with torch.no_grad():
        _, random = tw.attention(q, k, v, dropout=DROPPED, seed=seed, random=True)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, -2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(DIM)
    seen = torch.ones_like(s, dtype=torch.bool).tril().triu(1 - WINDOW)
    weights = s.masked_fill(~seen, -torch.inf).softmax(-1)
    weights = torch.where(random >= 256 * DROPPED, weights / (1 - DROPPED), 0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


_, found = trained(ours, place(), steps=4)
_, wanted = trained(torch_s, place(), steps=4)
for step, (one, other) in enumerate(zip(found, wanted, strict=True)):
    print(f"step {step}: loss {one:.4f}, torch's {other:.4f}")
    assert abs(one - other) < 2e-3
print(f"after {len(found)} steps the loss is {found[-1]:.2f}, {found[0] - found[-1]:.2f} less")
assert found[-1] < found[0] - 1
