"""Arrays of any library that speaks DLPack, in and out without a copy. Needs torch.

The library here is a class of two methods. Its memory is read where it lies, and written with
`out=`. A call that makes its output returns a tensor of torch, which others read by DLPack again.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw


class Foreign:
    """An array that says nothing but DLPack."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory

    def __dlpack__(self, **how: object) -> object:
        return self._memory.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._memory.__dlpack_device__()


rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((40, 64), (48, 64)))
c = np.empty((40, 48), np.float16)
tw.gemm(Foreign(a), Foreign(b.T), out=Foreign(c))
expected = a.astype(np.float64) @ b.T.astype(np.float64)
print(f"written where it lies: largest error {abs(c - expected).max():.1e}")
assert np.allclose(c, expected, atol=0.05)

made = tw.gemm(Foreign(a), Foreign(b.T))
again = np.from_dlpack(made)
print(f"made as {type(made).__module__}.{type(made).__name__}; the same memory is read by NumPy:")
made[0, 0] = 7
print(f"a write to one is seen in the other: {again[0, 0] == 7}")
assert np.array_equal(again[1:], c[1:])
