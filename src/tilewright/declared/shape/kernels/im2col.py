"""Windows of images as rows.

Idea. A workgroup writes a tile of ROWS windows × COLUMNS of their pixels. Which pixel a window
begins at is worked out once for each row, and where in the window a column reads once for each
column; an element adds the two and compares the place with the image.

Data. Every element of y is written once; pixels are read once for each window that they are in,
mostly from L2. READS and WRITES: what the channels of a group and the strides of x are multiples
of, and what the columns are. A lane reads and writes as many elements at once, up to 16 bytes.

What limits it: memory, the writes. Where channels are few, integer arithmetic for each element.
Not timed.
"""

import triton
import triton.language as tl

from tilewright.declared.shape.kernels.strided_copy import in_steps
from tilewright.ops.conv.kernels.division import quotient


@triton.jit
def over(number, size, by, shift, READS: tl.constexpr):
    """number // size: by a division where the compiler must see how vectors fall into it."""
    if READS > 1:
        found = number // size
    else:
        found = quotient(number, by, shift)
    return found


@triton.jit
def im2col(
    x, y, depth, height, width, channels, x_n, x_d, x_h, x_w, x_c, filter_d, filter_h, filter_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w, groups,
    out_d, out_h, out_w, rows, columns, by_d, shift_d, by_h, shift_h, by_w, shift_w,
    by_each, shift_each, by_taps, shift_taps, by_filter_h, shift_filter_h, by_filter_w,
    shift_filter_w,
    UNIT: tl.constexpr, READS: tl.constexpr, WRITES: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS windows × COLUMNS of them. UNIT: whether channels are neighbours in x."""
    each = in_steps(channels // groups, READS)
    columns = in_steps(columns, WRITES)
    x_n, x_d = in_steps(x_n, READS), in_steps(x_d, READS)
    x_h, x_w = in_steps(x_h, READS), in_steps(x_w, READS)
    across = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)

    tap = over(j, each, by_each, shift_each, READS)
    group = over(tap, filter_d * filter_h * filter_w, by_taps, shift_taps, READS)
    channel = j - tap * each + group * each
    tap_h = over(tap, filter_w, by_filter_w, shift_filter_w, READS)
    tap_d = over(tap_h, filter_h, by_filter_h, shift_filter_h, READS)
    right = (tap - tap_h * filter_w) * dilation_w
    below = (tap_h - tap_d * filter_h) * dilation_h
    behind = (tap_d - group * filter_d) * dilation_d
    step = channel if UNIT else channel * x_c
    inner = behind * x_d + below * x_h + right * x_w + step

    line = quotient(row, by_w, shift_w)
    plane = quotient(line, by_h, shift_h)
    image = quotient(plane, by_d, shift_d)
    left = (row - line * out_w) * stride_w - pad_w
    above = (line - plane * out_h) * stride_h - pad_h
    ahead = (plane - image * out_d) * stride_d - pad_d
    outer = image * x_n + ahead * x_d + above * x_h + left * x_w

    at_w = left[:, None] + right[None, :]
    at_h = above[:, None] + below[None, :]
    at_d = ahead[:, None] + behind[None, :]
    whole = (row < rows)[:, None] & (j < columns)[None, :]
    inside = (at_w >= 0) & (at_w < width) & (at_h >= 0) & (at_h < height)
    inside &= (at_d >= 0) & (at_d < depth) & whole
    values = tl.load(x + outer[:, None] + inner[None, :], inside, 0)
    tl.store(y + row.to(tl.int64)[:, None] * columns + j[None, :], values, whole)
