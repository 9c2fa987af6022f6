"""A list of products of different sizes, in one launch.

`pack` writes down once where the matrices are; on a GPU they stay where they are, so the list can
run again whenever they have changed.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw
from common import place
from tilewright.ops.grouped_gemm import pack

rng = np.random.default_rng()
sizes = [(70, 96, 64), (0, 96, 64), (5, 40, 128), (200, 8, 24)]
pairs = [
    (rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32).T)
    for m, n, k in sizes
]
right = [np.maximum(a @ b, 0) for a, b in pairs]
if place() != "cpu":
    import torch

    pairs = [(torch.from_numpy(a).to(place()), torch.from_numpy(b).to(place())) for a, b in pairs]

packed = pack(pairs, epilogue="relu")
tw.grouped_gemm(*packed.inputs, out=packed.out, **packed.options)
for (m, n, k), result, expected in zip(sizes, packed.outputs, right, strict=True):
    result = result if place() == "cpu" else result.cpu().numpy()
    assert np.allclose(result, expected, atol=1e-3)
    print(f"{m:3}×{n}×{k} is right")
print(f"{len(sizes)} products in one launch")
