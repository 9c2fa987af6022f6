"""Block scales: fp8 in the DeepSeek form, one scale for all, and int8 weights in groups along K."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.quantise import dequantise, quantise

rng = np.random.default_rng()
m, n, k = 64, 256, 512
dispatcher = tw.Dispatcher()
x = rng.standard_normal((m, k), np.float32) * 10 ** rng.uniform(-3, 3, (m, 1)).astype(np.float32)
weight = rng.standard_normal((n, k), np.float32)
exact = x @ weight.T


def error(c: np.ndarray) -> float:
    """How far rows of `c` are off, as a share of their size."""
    return float((abs(c.astype(np.float32) - exact) / exact.std(1, keepdims=True)).mean())


a, sa = quantise(x, "1x128")
b, sb = quantise(weight.T, "128x128")
print(f"{a.dtype}: off by {abs(dequantise(a, sa, '1x128') - x).max() / abs(x).max():.1%} at most")
c = dispatcher.run("gemm", a, b, sa, sb, scale_a="1x128", scale_b="128x128")
print(f"A in 1x128, B in 128x128: rows are off by {error(c):.1%}")

one, scale = quantise(x, f"{m}x{k}")
two, other = quantise(weight.T, f"{k}x{n}")
c = dispatcher.run("gemm", one, two, (scale * other).reshape(1), epilogue="scale")
print(f"one scale for all, with rows of very different size: {error(c):.0%}")

groups, scales = quantise(weight.T, "128x1-bf16", "int8")
rows, each = quantise(x, f"1x{k}", "int8")
c = tw.gemm(rows, groups, scales, each, scale_b="128x1-bf16", epilogue="row_scale")
print(f"int8, weights in groups of 128 along K: {error(c):.1%}")

problem = tw.GemmProblem(4096, 7168, 2048, dtype_a="e4m3fn", scale_a="1x128", scale_b="128x128")
print(dispatcher.select(problem).config.name)
