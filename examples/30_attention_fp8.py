"""A cache in fp8 under 16-bit queries, and everything in fp8, with scales."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import tilewright as tw
from common import softmax_attention

rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 2, 64, 4, 32), np.float32)
v *= 40.0
right = softmax_attention(q, k, v)


def scaled(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In fp8, and a scale for each sequence and head."""
    scale = abs(x).max((1, 3)) / 448.0
    return (x / scale[:, None, :, None]).astype(ml_dtypes.float8_e4m3fn), scale.astype(np.float32)


(q8, q_scale), (k8, k_scale), (v8, v_scale) = map(scaled, (q, k, v))
results = {
    "bf16": tw.attention(*(x.astype(ml_dtypes.bfloat16) for x in (q, k, v))),
    "cache in fp8": tw.attention(
        q.astype(ml_dtypes.bfloat16), k8, v8, k_scale=k_scale, v_scale=v_scale
    ),
    "all in fp8": tw.attention(q8, k8, v8, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale),
}
for name, o in results.items():
    error = np.sqrt(((o.astype(np.float64) - right) ** 2).mean() / (right**2).mean())
    print(f"{name:12} {o.dtype}, relative error {error:.1e}")
    assert error < (0.01 if name == "bf16" else 0.06)
