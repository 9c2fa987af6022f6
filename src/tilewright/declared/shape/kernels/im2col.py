"""Windows of images as rows.

Idea. A workgroup writes a tile of ROWS windows × COLUMNS of their pixels. Which pixel a window
begins at is worked out once for each row, and where in the window a column reads once for each
column; an element adds the two and compares the place with the image.

Data. Every element of y is written once; pixels are read once for each window that they are in,
mostly from L2. READS and WRITES: what the channels of a group and the strides of x are multiples
of, and what the columns are. A lane reads and writes as many elements at once, up to 16 bytes.

Every division is a product and a shift, dimensions that images do not have are left out (DIMS), and
places are in 32 bits where these hold all (NEAR).

What limits it: memory, the writes. Where channels are few, integer arithmetic for each element. For
a 3×3 of 64 channels of 2 bytes a lane of sm_90 has 57 instructions for 16 bytes, of 20 channels 46
for 8 bytes; with divisions, three dimensions and 64 bits they were 199 and 136. Not timed since.
"""

import triton
import triton.language as tl

from tilewright.declared.shape.kernels.strided_copy import in_steps
from tilewright.ops.conv.kernels.division import quotient


@triton.jit
def over(number, by, shift, READS: tl.constexpr):
    """number // size, of sizes that are multiples of READS: the compiler is told that neighbours
    have one quotient, which it does not see in a product's upper half (as `quotient` has it: it
    must be told of the shift; what follows that is folded away, and what it was told with it)."""
    upper = tl.umulhi(number.to(tl.uint32) << 1, by.to(tl.uint32))
    return tl.max_constancy(upper >> shift.to(tl.uint32), READS).to(tl.int32)


@triton.jit
def within(place, size):
    """Whether a place is in an image: places before it are large as unsigned numbers."""
    return place.to(tl.uint32) < size.to(tl.uint32)


@triton.jit
def im2col(
    x, y, depth, height, width, x_n, x_d, x_h, x_w, x_c, filter_d, filter_h, filter_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    out_d, out_h, out_w, each, rows, columns, by_d, shift_d, by_h, shift_h, by_w, shift_w,
    by_each, shift_each, by_taps, shift_taps, by_filter_h, shift_filter_h, by_filter_w,
    shift_filter_w, by_across, shift_across,
    UNIT: tl.constexpr, DIMS: tl.constexpr, NEAR: tl.constexpr, READS: tl.constexpr,
    WRITES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS windows × COLUMNS of them. UNIT: whether channels are neighbours in x. DIMS: of the
    images. NEAR: whether 32 bits hold all places in x and y. each: channels of a group. by_across,
    shift_across: what divides by the tiles beside each other."""
    if NEAR:
        x_n, x_d, x_h = x_n.to(tl.int32), x_d.to(tl.int32), x_h.to(tl.int32)
        x_w, x_c = x_w.to(tl.int32), x_c.to(tl.int32)
    each = in_steps(each, READS)
    columns = in_steps(columns, WRITES)
    x_n, x_d = in_steps(x_n, READS), in_steps(x_d, READS)
    x_h, x_w = in_steps(x_h, READS), in_steps(x_w, READS)
    down = quotient(tl.program_id(0), by_across, shift_across)
    first = (tl.program_id(0) - down * tl.cdiv(columns, COLUMNS)) * COLUMNS
    row = down * ROWS + tl.arange(0, ROWS)
    j = first + tl.arange(0, COLUMNS)

    tap = over(j, by_each, shift_each, READS)
    group = over(tap, by_taps, shift_taps, READS)
    channel = j - tap * each + group * each
    tap -= group * (filter_d * filter_h * filter_w)
    tap_h = over(tap, by_filter_w, shift_filter_w, READS)
    right = (tap - tap_h * filter_w) * dilation_w
    inner = (channel if UNIT else channel * x_c) + right * x_w

    line = quotient(row, by_w, shift_w)
    left = (row - line * out_w) * stride_w - pad_w
    outer = left * x_w
    inside = within(left[:, None] + right[None, :], width)
    image = line
    if DIMS > 1:
        tap_d = over(tap_h, by_filter_h, shift_filter_h, READS)
        below = (tap_h - tap_d * filter_h) * dilation_h
        plane = quotient(line, by_h, shift_h)
        above = (line - plane * out_h) * stride_h - pad_h
        inner += below * x_h
        outer += above * x_h
        inside &= within(above[:, None] + below[None, :], height)
        image = plane
        if DIMS > 2:
            behind = tap_d * dilation_d
            image = quotient(plane, by_d, shift_d)
            ahead = (plane - image * out_d) * stride_d - pad_d
            inner += behind * x_d
            outer += ahead * x_d
            inside &= within(ahead[:, None] + behind[None, :], depth)
    outer += image * x_n

    whole = (row < rows)[:, None] & (j < columns)[None, :]
    values = tl.load((x + outer)[:, None] + inner[None, :], inside & whole, 0)
    start = (row if NEAR else row.to(tl.int64)) * columns
    tl.store((y + start)[:, None] + j[None, :], values, whole)
