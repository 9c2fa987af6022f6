"""One matrix product: Tilewright chooses a kernel, builds it if it must, and launches it.

On a machine without a GPU the same kernel runs through Triton's interpreter.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from common import place

rng = np.random.default_rng(0)
a = rng.standard_normal((200, 128), dtype=np.float32)
b = rng.standard_normal((128, 96), dtype=np.float32)
if place() == "cpu":
    c = tw.gemm(a, b)
else:
    import torch

    c = tw.gemm(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()).cpu().numpy()
error = abs(c - a.astype(np.float64) @ b).max()
print(f"C is {c.shape[0]}x{c.shape[1]} on {place()}; largest error {error:.1e}")
assert error < 1e-3
