"""A one-tile product with a GEMM's arguments, as a user of Triton would write and launch it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a, b, c, m, n, k, lda, ldb, ldc, TILE: tl.constexpr):
    i = tl.arange(0, TILE)
    inside = (i < m)[:, None] & (i < n)[None, :]
    x = tl.load(a + i[:, None] * lda + i[None, :], mask=(i < k)[None, :], other=0.0)
    y = tl.load(b + i[None, :] * ldb + i[:, None], mask=(i < k)[:, None], other=0.0)
    tl.store(c + i[:, None] * ldc + i[None, :], tl.dot(x, y).to(c.dtype.element_ty), mask=inside)
