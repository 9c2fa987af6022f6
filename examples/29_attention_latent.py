"""Latent attention: all heads share one key, whose first elements are the value."""

from __future__ import annotations

import torch

import tilewright as tw
from common import softmax_attention
from tilewright.serving import LatentAttention

torch.manual_seed(0)
heads, latent, rope, page = 16, 64, 16, 16  # DeepSeek's have 128, 512, 64
cache = torch.randn(6, page, latent + rope)  # the only thing that is kept of a token
scale = (latent + rope) ** -0.5

indptr = torch.tensor([0, 3, 5], dtype=torch.int32)
indices = torch.tensor([5, 1, 3, 0, 2], dtype=torch.int32)
lengths = torch.tensor([37, 32], dtype=torch.int32)
attention = LatentAttention("cpu")
attention.plan(None, indptr, indices, lengths, heads, latent, rope, page, True, scale)
q = torch.randn(2, heads, latent + rope)
o = attention.run(q[..., :latent], q[..., latent:], cache[..., :latent], cache[..., latent:])

for b in range(2):
    rows = cache[indices[indptr[b] : indptr[b + 1]].long()].flatten(0, 1)[: lengths[b]]
    keys, values = rows[None, :, None], rows[None, :, None, :latent]
    right = softmax_attention(*(x.numpy() for x in (q[None, b : b + 1], keys, values)))
    assert abs(o[b].numpy() - right[0, 0]).max() < 1e-3
print(f"{heads} heads of {latent} values each from {cache[0, 0].numel()} numbers of a token")

contiguous = tw.attention(q[:, None], cache.reshape(2, 48, 1, -1), head_dim_v=latent)
print(f"without pages, and without v: {list(contiguous.shape)}")
