"""CuPy's arrays in and out, on a stream of CuPy's, without a copy.

An array of CuPy is read and written through DLPack. Where CuPy or a GPU is missing, the script says
so, and NumPy's arrays stand in.
"""

from __future__ import annotations

import numpy as np

import tilewright as tw

try:
    import cupy

    cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # no package, no driver, no GPU
    print(f"NumPy stands in for CuPy here: {type(error).__name__}")
    cupy = None

xp = np if cupy is None else cupy
rng = np.random.default_rng(0)
a = xp.asarray(rng.standard_normal((64, 96), np.float32))
b = xp.asarray(rng.standard_normal((48, 96), np.float32)).T  # read as it lies
bias = xp.asarray(rng.standard_normal(48, np.float32))
out = xp.empty((64, 48), np.float32)

if cupy is None:
    tw.gemm(a, b, bias=bias, epilogue="bias+relu", out=out)
else:
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()  # the arrays were filled on another stream
    tw.gemm(a, b, bias=bias, epilogue="bias+relu", out=out, stream=stream.ptr)
    stream.synchronize()

error = float(abs(out - xp.maximum(a @ b + bias, 0)).max())
print(
    f"{type(out).__module__.split('.')[0]}: bias and relu in the product's kernel: {error < 1e-3}"
)
assert error < 1e-3
