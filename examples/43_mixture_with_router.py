"""A whole mixture-of-experts layer in one call: a router's logits, two experts for each token,
SwiGLU, and the weighted sum. `tilewright.moe.plan` says which kernel serves each step.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw

rng = np.random.default_rng(0)
tokens, experts, hidden, inner, k = 48, 6, 64, 48, 2
x = rng.standard_normal((tokens, hidden), np.float32)
logits = rng.standard_normal((tokens, experts), np.float32)
up = rng.standard_normal((experts, 2 * inner, hidden), np.float32)  # rows gate, up, gate, up…
down = rng.standard_normal((experts, hidden, inner), np.float32)

y = tw.routed_moe(x, logits, up, down, k=k, renormalize=True, interleaved=True)

weights, chosen = tw.topk_routing(logits, k=k, renormalize=True)
h = np.einsum("th,tkrh->tkr", x, up[chosen])
h = h[..., 0::2] / (1 + np.exp(-h[..., 0::2])) * h[..., 1::2]
wanted = np.einsum("tk,tki,tkhi->th", weights, h, down[chosen])
assert np.allclose(y, wanted, rtol=1e-3, atol=1e-2)
print(f"{tokens} tokens through {k} of {experts} experts each, as one layer")
