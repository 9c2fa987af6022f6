"""A decode loop over a cache in pages: each step appends a row, rotated by its place, and reads."""

from __future__ import annotations

import torch

from tilewright.flash_attn import flash_attn_func, flash_attn_with_kvcache

torch.manual_seed(0)
batch, heads, kv_heads, dim, page, steps = 2, 4, 2, 32, 16, 4
lengths = torch.tensor([30, 7], dtype=torch.int32)  # rows that each sequence has already
cache = torch.full((8, 2, page, kv_heads, dim), torch.nan)  # no page but its rows is ever read
table = torch.tensor([[3, 6, 1], [5, 0, 2]], dtype=torch.int32)
angles = torch.arange(64)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
cos, sin = angles.cos(), angles.sin()

history = [torch.randn(2, int(n), kv_heads, dim) for n in lengths]
for b, rows in enumerate(history):
    for i in range(rows.shape[1]):
        cache[table[b, i // page], :, i % page] = rows[:, i]
for _ in range(steps):
    q, k, v = torch.randn(batch, 1, heads, dim), *torch.randn(2, batch, 1, kv_heads, dim)
    o = flash_attn_with_kvcache(
        q, cache[:, 0], cache[:, 1], k, v, cos, sin, cache_seqlens=lengths, block_table=table,
        causal=True, rotary_interleaved=False,
    )  # fmt: skip
    for b in range(batch):
        n = int(lengths[b])
        c, s = cos[n], sin[n]
        (q1, q2), (k1, k2) = q[b].chunk(2, -1), k[b].chunk(2, -1)
        turned = [torch.cat((x * c - y * s, x * s + y * c), -1) for x, y in ((q1, q2), (k1, k2))]
        history[b] = torch.cat((history[b], torch.stack((turned[1], v[b]))), 1)
        right = flash_attn_func(turned[0][None], *history[b][:, None])
        assert torch.allclose(o[b], right[0], atol=1e-5)
    lengths += 1
print(f"{steps} tokens of {batch} sequences; they now have {lengths.tolist()} rows in the cache")
