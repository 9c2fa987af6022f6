"""Moves scales and an epilogue's operands to one group; shared by every grouped kernel.

An epilogue's vectors over rows and its matrices have the rows of C, so `apply` finds them by the
row's number among all rows. A scalar serves all groups. Vectors over columns exist once for each
group, one after another.

Of block scales, those of A follow its rows, or groups are a step apart; those of B are a step
apart.
"""

import triton
import triton.language as tl

from tilewright.ops.device.scale import size_of


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


@triton.jit
def scales_of_group(scales, begin, group, FORM: tl.constexpr, SCALES: tl.constexpr):
    """`scales`, as those of one product (see `ops/device/scale.py`), of the group whose first row
    is `begin`. Behind them `scales` has the step from group to group of A's and of B's."""
    out = scales
    if SCALES != "":
        A: tl.constexpr = 1 if size_of(SCALES, 0, 0) > 0 else 0
        B: tl.constexpr = 1 if size_of(SCALES, 1, 0) > 0 else 0
        STEPS: tl.constexpr = 3 * (A + B)
        out = ()
        if A > 0:
            rows = scales[0]  # if they are gathered, the map counts from A's first row
            if FORM == "masked":
                rows += group.to(tl.int64) * scales[STEPS]
            elif FORM != "gathered":
                rows += begin.to(tl.int64) * scales[1]
            out += (rows, scales[1], scales[2])
        if B > 0:
            at = group.to(tl.int64) * scales[STEPS + A]
            out += (scales[3 * A] + at, scales[3 * A + 1], scales[3 * A + 2])
    return out
