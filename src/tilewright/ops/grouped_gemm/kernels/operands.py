"""Moves an epilogue's operands to one group; shared by every grouped kernel.

An epilogue's vectors over rows and its matrices have the rows of C, so `apply` finds them by the
row's number among all rows. A scalar serves all groups. Vectors over columns exist once for each
group, one after another.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def _any(widths):
    return any(width != "0" for width in widths)


@triton.constexpr_function
def _width(widths, i):
    """The divisor of N for operand `i`; 0 if it is not a vector over columns. The leading dimension
    of matrices may follow the operands."""
    return int(widths[i]) if i < len(widths) else 0


@triton.jit
def of_group(extra, group, n, WIDTHS: tl.constexpr):
    """`extra`, with each vector over columns replaced by that of `group`. WIDTHS has a digit for
    each operand: N divided by it is the vector's length; 0 for operands that are not vectors over
    columns."""
    out = extra
    if _any(WIDTHS):
        out = ()
        for i in tl.static_range(len(extra)):
            out += (_moved(extra[i], group, n, _width(WIDTHS, i)),)
    return out


@triton.jit
def _moved(x, group, n, WIDTH: tl.constexpr):
    if WIDTH != 0:
        x += group.to(tl.int64) * (n // WIDTH)
    return x
