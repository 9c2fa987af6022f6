"""NumPy arrays in and out: every dtype, and layouts taken from the strides.

bf16 and the fp8 types are ml_dtypes'. NumPy arrays are in the CPU's memory, so kernels run
through the interpreter, on a machine with a GPU too: this is for checking, not for speed.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import tilewright as tw

rng = np.random.default_rng(0)
dtypes = (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
for kind in dtypes:
    a = rng.standard_normal((40, 64)).astype(kind)
    b = rng.standard_normal((48, 64)).astype(kind).T  # column-major, as a Linear layer's weight
    c = tw.gemm(a, b)
    reference = a.astype(np.float64) @ b.astype(np.float64)
    error = abs(c.astype(np.float64) - reference).max()
    print(f"{np.dtype(kind).name:>14} -> {c.dtype.name:<8} largest error {error:.1e}")
    assert error < 0.25

a = rng.integers(-128, 128, (40, 64), dtype=np.int8)
b = rng.integers(-128, 128, (64, 48), dtype=np.int8)
out = np.empty((40, 48), np.int32, order="F")  # C may be column-major too
tw.gemm(a, b, out=out)
assert np.array_equal(out, a.astype(np.int32) @ b.astype(np.int32))
print("int8 -> int32 is exact")
