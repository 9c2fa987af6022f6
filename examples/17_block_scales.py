"""Block scales: an fp8 product in the DeepSeek form, and weights in groups along K.

Each block of an operand has a scale of its own; scales follow B in the call.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.quantise import dequantise, quantise

rng = np.random.default_rng()
m, n, k = 64, 256, 512
dispatcher = tw.Dispatcher()
x = rng.standard_normal((m, k), np.float32) * 10.0 ** rng.uniform(-3, 3, (m, 1)).astype(np.float32)
weight = rng.standard_normal((n, k), np.float32)


def error(c: np.ndarray, exact: np.ndarray) -> float:
    """How far rows of `c` are off, as a share of their size."""
    sizes = np.sqrt((exact**2).mean(1, keepdims=True))
    return float((abs(c.astype(np.float32) - exact) / sizes).mean())


a, sa = quantise(x, "1x128")
b, sb = quantise(weight.T, "128x128")
back = dequantise(a, sa, "1x128")
print(f"{a.dtype} and {sa.shape} scales; off by {abs(back / x - 1).max():.1%} at most")
c = dispatcher.run("gemm", a, b, sa, sb, scale_a="1x128", scale_b="128x128")
print(f"A in 1x128, B in 128x128: rows are off by {error(c, x @ weight.T):.1%}")

one, scale = quantise(x, f"{m}x{k}")
two, other = quantise(weight.T, f"{k}x{n}")
both = (scale * other).reshape(1)
c = dispatcher.run("gemm", one, two, both, epilogue="scale")
print(f"one scale for all, as rows differ a million-fold: {error(c, x @ weight.T):.0%}")

groups, scales = quantise(weight.T, "128x1-bf16", "int8")
rows, per_row = quantise(x, f"1x{k}", "int8")
out = dispatcher.run(
    "gemm", rows, groups, scales, per_row, scale_b="128x1-bf16", epilogue="row_scale"
)
print(f"int8 weights in groups of 128 along K: {error(out, x @ weight.T):.1%}")

problem = tw.GemmProblem(4096, 7168, 2048, dtype_a="e4m3fn", scale_a="1x128", scale_b="128x128")
print(dispatcher.select(problem).config.name)
