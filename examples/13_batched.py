"""Batches: many products of one size in one launch; stacked, sharing one, or lying anywhere."""

from __future__ import annotations

import numpy as np

import tilewright as tw

rng = np.random.default_rng()
batch, m, n, k = 6, 40, 48, 32
a, b = (
    rng.standard_normal((batch, m, k), np.float32),
    rng.standard_normal((batch, k, n), np.float32),
)

c = tw.gemm(a, b)
assert np.allclose(c, a @ b, atol=1e-3)
print(f"{batch} products of their own: {c.shape}")

# One matrix for all: here A is not batched; a batch of 1 or an expanded array would do as well.
c = tw.gemm(a[0], b)
assert np.allclose(c, a[0] @ b, atol=1e-3)

# An epilogue's vectors are everyone's, its matrices are batched like C.
bias, residual = rng.standard_normal(n, np.float32), rng.standard_normal(c.shape, np.float32)
c = tw.gemm(a, b, bias, residual, epilogue="bias+relu+add")
assert np.allclose(c, np.maximum(a @ b + bias, 0) + residual, atol=1e-3)

# By pointers: matrices that lie anywhere, any of them more than once.
left, right = [a[3], a[0], a[0]], [b[1], b[5], b[1]]
out = tw.gemm(tw.pointers(left), tw.pointers(right))
for x, y, z in zip(left, right, out.arrays, strict=True):
    assert np.allclose(z, x @ y, atol=1e-3)
print(f"by pointers: {out}")

# Nothing to do is served too.
print(f"an empty batch gives {tw.gemm(a[:0], b[:0]).shape}")
