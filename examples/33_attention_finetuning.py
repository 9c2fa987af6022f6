"""Fine-tuning on sequences of different lengths: packed, without padding, by FlashAttention's
function. The gradients are those of one sequence after another."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from common import place
from gpt import TEXT, Gpt, trained
from tilewright.flash_attn import flash_attn_func, flash_attn_varlen_func

whole, losses = trained(lambda q, k, v, seed: flash_attn_func(q, k, v, causal=True), place(), 2)
print(f"trained on rows of one length: loss {losses[-1]:.2f}")

lengths = [9, 23, 1, 16]
text = torch.tensor(list(TEXT)).to(place())
sequences = [text[7 * n : 7 * n + length + 1] for n, length in enumerate(lengths)]
offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(place())
places = torch.cat([torch.arange(n) for n in lengths]).to(place())


def packed(q, k, v, seed):
    most = max(lengths)
    return flash_attn_varlen_func(q, k, v, offsets, offsets, most, most, causal=True)


model = Gpt(packed, rows=40).to(place())
model.load_state_dict(whole.state_dict())
rows, wanted = (torch.cat([x[at] for x in sequences]) for at in (slice(-1), slice(1, None)))
F.cross_entropy(model(rows, places=places), wanted, reduction="sum").backward()
whole.zero_grad()
for x in sequences:
    F.cross_entropy(whole(x[None, :-1])[0], x[1:], reduction="sum").backward()
both = zip(model.parameters(), whole.parameters(), strict=True)
worst = max(abs(a.grad - b.grad).max().item() for a, b in both)
print(f"{len(lengths)} sequences of {lengths} rows in one: gradients differ by {worst:.0e} at most")
assert worst < 1e-3
