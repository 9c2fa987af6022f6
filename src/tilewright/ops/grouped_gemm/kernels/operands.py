"""Operands of an epilogue, moved to one group: shared by every grouped kernel.

An epilogue's vectors over rows and its matrices lie as the rows of C do, so `apply` finds them by
the row's number among all rows; a scalar is one for all. Vectors over columns are there once for
each group, one after another.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def _any(widths):
    return any(width != "0" for width in widths)


@triton.constexpr_function
def _width(widths, i):
    """What N is divided by for operand `i`; 0 if it is no vector over columns. Behind the operands
    may stand the leading dimension of matrices."""
    return int(widths[i]) if i < len(widths) else 0


@triton.jit
def of_group(extra, group, n, WIDTHS: tl.constexpr):
    """`extra` with each vector over columns at `group`'s. WIDTHS has a digit for each operand: what
    N is divided by to give its length, 0 for those that are no vectors over columns."""
    out = extra
    if _any(WIDTHS):
        out = ()
        for i in tl.static_range(len(extra)):
            out += (_moved(extra[i], group, n, _width(WIDTHS, i)),)
    return out


@triton.jit
def _moved(x, group, n, WIDTH: tl.constexpr):
    if WIDTH != 0:
        x += group * (n // WIDTH)
    return x
