"""Operations on an operand before the matrix instruction; shared by the kernels that support them.

The chains of functions are those of `epilogue`, applied to a tile of A or B in registers, in fp32.
The result is rounded once to the operand's dtype. Elements outside of the operand were loaded as
zero and are set to zero again, since an operation may change a zero.
"""

import triton
import triton.language as tl

from tilewright.ops.device.epilogue import apply, rounded


@triton.jit
def combine(
    x, extra, row, col, rows, cols, CHAIN: tl.constexpr, TAKES: tl.constexpr, ROW: tl.constexpr,
    MASK_ROWS: tl.constexpr, MASK_COLS: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """`x`, the tile at (row, col) of an operand of rows × cols, after the operations of CHAIN with
    operands `extra`. ROW says whether the operand, and so its matrices, are row-major."""
    out = x
    if len(CHAIN) > 0:
        y = apply(x, extra, row, col, rows, cols, CHAIN, TAKES, ROW, MASK_ROWS, MASK_COLS)
        if MASK_ROWS:
            y = tl.where((row + tl.arange(0, x.shape[0]) < rows)[:, None], y, 0.0)
        if MASK_COLS:
            y = tl.where((col + tl.arange(0, x.shape[1]) < cols)[None, :], y, 0.0)
        out = rounded(y, x.dtype, LARGEST)
    return out
