"""Multi-ABD: operations on A and B before the product, and on C after it, in one kernel.

Operands follow B: those of pre_a, those of pre_b, those of the epilogue.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw

rng = np.random.default_rng()
m, n, k = 48, 64, 128


def random(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


a, residual, b, mask, bias = random(m, k), random(m, k), random(k, n), random(k, n), random(n)
half = np.array([0.5], np.float32)
chains = {"pre_a": "add+scale", "pre_b": "mul", "epilogue": "bias+relu"}
c = tw.gemm(a, b, residual, half, mask, bias, **chains)
expected = np.maximum(((a + residual) * half) @ (b * mask) + bias, 0)
print(f"(A + R)/2 · (B * M): off by at most {abs(c - expected).max() / abs(expected).max():.0e}")

# An RMSNorm's weights belong to A's columns, its reciprocal norms to A's rows.
norm, weight = 1 / np.sqrt((a**2).mean(1) + 1e-6), random(k)
c = tw.gemm(a, b, norm, weight, pre_a="row_scale+col_scale")
assert np.allclose(c, (a * norm[:, None] * weight) @ b, atol=1e-3)
print("a normalised A without a pass of its own")

problem = tw.GemmProblem(m, n, k, **chains)
print(tw.Dispatcher().select(problem).config.name)
