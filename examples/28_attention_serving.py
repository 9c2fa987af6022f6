"""Batch prefill over pages that sequences share, then decoding: plan once, run for each layer."""

from __future__ import annotations

import torch

from tilewright.flash_attn import flash_attn_func
from tilewright.serving import PagedAttention, append_paged_kv_cache, get_batch_indices_positions

torch.manual_seed(0)
heads, kv_heads, dim, page = 4, 2, 32, 16
shape = {"num_qo_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim, "page_size": page}
indptr = torch.tensor([0, 3, 5], dtype=torch.int32)
indices = torch.tensor([4, 7, 0, 4, 2], dtype=torch.int32)  # page 4 is a prefix of both
last = torch.tensor([5, 16], dtype=torch.int32)  # so they have 37 and 32 rows
layers = torch.randn(3, 8, 2, page, kv_heads, dim)

qo = torch.tensor([0, 21, 37], dtype=torch.int32)  # 21 and 16 new rows, behind the prefix
batch, places = get_batch_indices_positions(qo, torch.tensor([37, 32]), 37)
attention = PagedAttention("cpu")
attention.plan(qo, indptr, indices, last, **shape, causal=True)
for cache in layers:
    q, k, v = torch.randn(37, heads, dim), *torch.randn(2, 37, kv_heads, dim)
    append_paged_kv_cache(k, v, batch, places, cache, indices, indptr)
    o = attention.run(q, cache)
    for rows, pages, length in ((slice(0, 21), [4, 7, 0], 37), (slice(21, 37), [4, 2], 32)):
        keys, values = (cache[pages, i].flatten(0, 1)[None, :length] for i in (0, 1))
        right = flash_attn_func(q[None, rows], keys, values, causal=True)[0]
        assert torch.allclose(o[rows], right, atol=1e-5)
        assert torch.equal(keys[0, 16:], k[rows])
print(f"prefill of {len(q)} rows through {len(layers)} layers")

attention.plan(None, indptr, indices, last, **shape)  # one query for each sequence
o, lse = attention.run(torch.randn(2, heads, dim), layers[0], return_lse=True)
print(f"decode gives {list(o.shape)}, and logarithms {list(lse.shape)}")
