"""One query and many keys: several workgroups share the keys, and a second kernel combines."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from common import target

gpu = target()
dispatcher = tw.Dispatcher(device=gpu)
for kv_len in (512, 8192, 65536):
    problem = tw.AttentionProblem(
        batch=1, heads=32, kv_heads=8, q_len=1, kv_len=kv_len, head_dim=128
    )
    plan = dispatcher.select(problem)
    grids = " then ".join("x".join(map(str, step.grid)) for step in plan.launch.steps)
    print(f"{kv_len:6} keys on {gpu.name}: workgroups {grids}")
assert len(plan.launch.steps) == 2

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 1, 8, 32), np.float32)
k, v = rng.standard_normal((2, 1, 700, 2, 32), np.float32)
whole, split = (
    f"attention_fp32_fp32_fp32_d32x32_none_16x32_w4_s1_basic_{scheduler}_al16"
    for scheduler in ("tile", "split128")
)
one = tw.Dispatcher().run_named(whole, q, k, v)
other = tw.Dispatcher().run_named(split, q, k, v)
print(f"split into parts of 128 keys, results differ by {abs(one - other).max():.0e}")
assert np.allclose(one, other, atol=1e-5)
