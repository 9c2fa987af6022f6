"""Weights of 4 bits: quantise once in groups of 128, multiply, and compare.

A stays bf16, B is int4: two to a byte along K, with a scale for each 128 of K of a column.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.quantise import dequantise, quantise

rng = np.random.default_rng()
m, n, k = 16, 96, 512
dispatcher = tw.Dispatcher()

x = rng.standard_normal((m, k), np.float32).astype(ml_dtypes.bfloat16)
w = rng.standard_normal((n, k), np.float32)  # a Linear layer's [out, in]
packed, scales = quantise(w.T, "128x1-bf16", "int4")  # B is w transposed, [k, n]
print(f"{w.astype('e').nbytes} bytes in fp16, {packed.nbytes + scales.nbytes} in int4 with scales")

y = dispatcher.run("gemm", x, packed, scales, dtype_b="int4", scale_b="128x1-bf16")
exact = x.astype("float64") @ dequantise(packed, scales, "128x1-bf16", packed="int4")
assert np.allclose(y.astype("float64"), exact, rtol=0.01, atol=0.1)
lost = np.linalg.norm(exact - x.astype("float64") @ w.T) / np.linalg.norm(exact)
print(f"the product is exact to bf16; quantising the weights cost {lost:.0%}")

problem = tw.GemmProblem(m, n, k, dtype_b="int4", scale_b="128x1-bf16")
print(dispatcher.select(problem).config.name)
