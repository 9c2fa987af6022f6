"""MX formats: fp8 activations and fp4 weights, a power of two as scale for each 32 of K.

GPUs with block-scaled matrix instructions multiply them as they are; the others convert first.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.quantise import dequantise, quantise

A, B = "1x32-e8m0", "32x1-e8m0"
rng = np.random.default_rng()
m, n, k = 32, 64, 256
dispatcher = tw.Dispatcher()

x, w = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)
qx, sx = quantise(x, A, "e4m3fn")
qw, sw = quantise(w.T, B, "e2m1")  # bytes: what is in them is said in the call
out = np.empty((m, n), np.float32)
dispatcher.run("gemm", qx, qw, sx, sw, out=out, dtype_b="e2m1", scale_a=A, scale_b=B)
exact = dequantise(qx, sx, A) @ dequantise(qw, sw, B, packed="e2m1")
assert np.allclose(out, exact, atol=1e-2)
lost = np.linalg.norm(exact - x @ w.T) / np.linalg.norm(exact)
print(f"the product of MX fp8 and MX fp4 is right; quantising cost {lost:.0%}")

problem = tw.GemmProblem(4096, 4096, 4096, dtype_a="e2m1", scale_a=A, scale_b=B)
for device in ("h200_sxm", "mi300x", "mi355x", "b200"):
    chosen = tw.Dispatcher(device=device).select(problem).config
    print(f"MX fp4 on {device}: pipeline {chosen.pipeline}")
