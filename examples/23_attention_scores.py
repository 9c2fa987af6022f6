"""What else may happen to scores: ALiBi, a bias, a soft cap, a sink; and the rows' logarithms."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from common import softmax_attention

rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 2, 40, 4, 32), np.float32)
away = np.arange(40)[:, None] - np.arange(40)

slopes = (2.0 ** -np.arange(1, 5)).astype(np.float32)  # one for each head
o = tw.attention(q, k, v, slopes=slopes)
added = -slopes[:, None, None] * abs(away)
assert np.allclose(o, softmax_attention(q, k, v, added=added), atol=1e-3)

bias = rng.standard_normal((1, 4, 40, 40), np.float32)  # one for the whole batch
o = tw.attention(q, k, v, bias=bias)
assert np.allclose(o, softmax_attention(q, k, v, added=bias), atol=1e-3)

scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(32)
o, lse = tw.attention(q, k, v, softcap=2.0, lse=True)
capped = 2.0 * np.tanh(scores / 2.0)
assert np.allclose(o, softmax_attention(q, k, v, added=capped - scores), atol=1e-3)
assert np.allclose(lse, np.log(np.exp(capped).sum(-1)), atol=1e-3)
print(f"scores of up to {scores.max():.1f} are capped to {capped.max():.2f}")

sinks = np.full(4, 3.0, np.float32)
o, lse = tw.attention(q, k, v, sinks=sinks, lse=True)
left = 1 - np.exp(3.0 - lse).swapaxes(1, 2)[..., None]  # what the sink leaves to the keys
assert np.allclose(o, left * softmax_attention(q, k, v), atol=1e-3)
print(f"a sink takes {1 - left.mean():.0%} of the weight")
