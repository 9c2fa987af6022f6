"""Contractions: an einsum of two operands, as a GEMM over the arrays as they lie."""

from __future__ import annotations

import numpy as np

import tilewright as tw

rng = np.random.default_rng()
heads, tokens, dim = 3, 40, 32
q, k, v = (rng.standard_normal((tokens, heads, dim), np.float32) for _ in "qkv")

# The heads of one sequence lie within each other's rows; nothing is copied.
scores = tw.gemm(q, k, equation="qhd,khd->hqk")
assert np.allclose(scores, np.einsum("qhd,khd->hqk", q, k), atol=1e-3)
mixed = tw.gemm(scores, v, equation="heads q k, k heads dim -> q heads dim")
assert np.allclose(mixed, np.einsum("hqk,khd->qhd", scores, v), rtol=1e-3, atol=1e-2)
print(f"scores {scores.shape}, mixed {mixed.shape}")

# Dimensions that are walked as one become one: this is a single product of 120 rows.
weights = rng.standard_normal((48, dim), np.float32)
projected = tw.gemm(q, weights, equation="qhd,od->qho", epilogue="relu")
assert np.allclose(projected, np.maximum(q @ weights.T, 0), atol=1e-3)

# With sequences and heads, the batch has two dimensions that do not lie as one.
many = tw.gemm(np.stack([q, -q]), np.stack([k, k]), equation="bqhd,bkhd->bhqk")
assert np.allclose(many, np.stack([scores, -scores]), atol=1e-3)

# Where the strides allow no GEMM, the error says which dimensions are in the way.
try:
    tw.gemm(q, k.transpose(0, 2, 1).copy(), equation="qhd,kdh->qk")
except tw.errors.BadArgument as error:
    print(error)
