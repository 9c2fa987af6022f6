"""A mixture-of-experts layer: rows sorted by expert, sizes known on the device alone.

The up projection of every expert is one launch with the gate folded in (SwiGLU), the down
projection another. Nothing waits for the routing's result to reach the host.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.ops.grouped_gemm import check

rng = np.random.default_rng(0)
tokens, experts, hidden, inner = 96, 6, 64, 48
x = rng.standard_normal((tokens, hidden), np.float32)
up = rng.standard_normal((experts, 2 * inner, hidden), np.float32)  # rows gate, up, gate, up…
down = rng.standard_normal((experts, hidden, inner), np.float32)

expert = np.minimum(rng.geometric(0.4, tokens) - 1, experts - 1)  # a router's choice: skewed
order = np.argsort(expert, kind="stable")
ends = np.cumsum(np.bincount(expert, minlength=experts)).astype(np.int32)
rows = x[order]
check(rows, up.transpose(0, 2, 1), ends)  # on request only: on a GPU it waits

gated = tw.grouped_gemm(rows, up.transpose(0, 2, 1), ends, epilogue="swiglu")
y = tw.grouped_gemm(gated, down.transpose(0, 2, 1), ends)

for e, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
    h = rows[begin:end] @ up[e].T
    h = h[:, 0::2] / (1 + np.exp(-h[:, 0::2])) * h[:, 1::2]
    assert np.allclose(y[begin:end], h @ down[e].T, rtol=1e-3, atol=1e-2)
    print(f"expert {e}: {end - begin:2} rows")
print(f"{tokens} rows through {experts} experts in two launches")
