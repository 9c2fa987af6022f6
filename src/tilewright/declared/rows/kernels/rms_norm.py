"""RMS norm of rows, with a sum before it and rounding to 8 bits behind it. Idea and data: `_norms`.

What limits it: memory. Times on an H200, and counts: docs/notes/declared-rows.md.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._norms import norm


@triton.jit
def rms_norm(
    x, w, residual, smooth, scale, y, total, rstd, row_scales, block_scales, rows, columns,
    x_stride, residual_stride, eps, offset, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, AGAIN: tl.constexpr, AHEAD: tl.constexpr, has_w: tl.constexpr,
    has_residual: tl.constexpr, has_smooth: tl.constexpr, quant: tl.constexpr,
    statistics: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    norm(
        x, w, None, residual, smooth, scale, y, total, None, rstd, row_scales, block_scales, rows,
        columns, x_stride, residual_stride, eps, offset, BLOCK, ROWS, HELD, AGAIN, AHEAD, False,
        has_w, False, has_residual, has_smooth, quant, statistics,
    )  # fmt: skip
