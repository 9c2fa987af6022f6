"""Dropout: reproducible by seed and offset, and the random numbers on request."""

from __future__ import annotations

import numpy as np

import tilewright as tw

rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 2, 64, 4, 32), np.float32)

share = 64 / 256  # weights are dropped in units of 1/256
o, random = tw.attention(q, k, v, dropout=share, seed=7, random=True)
again = tw.attention(q, k, v, dropout=share, seed=7)
other = tw.attention(q, k, v, dropout=share, seed=7, offset=1)
assert np.array_equal(o, again) and not np.allclose(o, other, atol=1e-2)

kept = random >= 64  # a byte for each weight, [batch, heads, queries, keys]
print(f"{1 - kept.mean():.1%} of the weights became zero")
assert abs(kept.mean() - 0.75) < 0.01

scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(32)
weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
weights = np.where(kept, weights / (1 - share), 0.0)
assert np.allclose(o, np.einsum("bhij,bjhd->bihd", weights, v), atol=1e-3)
