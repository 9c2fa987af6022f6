"""Epilogues: bias and activation, dequantised int8, a gated pair, all inside the kernel.

Operands of the epilogue follow B, in the order of the chain.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw

rng = np.random.default_rng()
m, n, k = 64, 96, 128
dispatcher = tw.Dispatcher()

a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
bias, residual = rng.standard_normal(n, np.float32), rng.standard_normal((m, n), np.float32)
c = dispatcher.run("gemm", a, b, bias, residual, epilogue="bias+relu+add")
assert np.allclose(c, np.maximum(a @ b + bias, 0) + residual, atol=1e-3)
print("bias, relu and a residual, in one kernel")

qa, qb = (rng.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
rows, columns = rng.random(m, np.float32), rng.random(n, np.float32)
out = np.empty((m, n), np.float32)
dispatcher.run("gemm", qa, qb, rows, columns, out=out, epilogue="row_scale+col_scale")
exact = (qa.astype(np.float64) @ qb.astype(np.float64)) * rows[:, None] * columns
print(f"int8, dequantised: off by at most {abs(out - exact).max() / abs(exact).max():.0e}")

gated = dispatcher.run("gemm", a, b, epilogue="swiglu")
print(f"swiglu makes {n} columns {gated.shape[1]}")

problem = tw.GemmProblem(m, n, k, epilogue="bias+gelu")
print(dispatcher.select(problem).config.name)
