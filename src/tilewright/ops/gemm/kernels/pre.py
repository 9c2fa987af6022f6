"""What an operand goes through before the matrix instruction: shared by kernels that can.

The same chains of functions as in `epilogue`, on a tile of A or of B in registers, in fp32, and
then once rounded to the operand's dtype. What lies outside of the operand was loaded as zero and
is made zero again, since an operation may turn a zero into something.
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
    operands `extra`; ROW says whether the operand, and so its matrices, are row-major."""
    out = x
    if len(CHAIN) > 0:
        y = apply(x, extra, row, col, rows, cols, CHAIN, TAKES, ROW, MASK_ROWS, MASK_COLS)
        if MASK_ROWS:
            y = tl.where((row + tl.arange(0, x.shape[0]) < rows)[:, None], y, 0.0)
        if MASK_COLS:
            y = tl.where((col + tl.arange(0, x.shape[1]) < cols)[None, :], y, 0.0)
        out = rounded(y, x.dtype, LARGEST)
    return out
