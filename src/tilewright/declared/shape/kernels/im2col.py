"""Windows of images as rows.

Idea. A workgroup writes TILE elements of y as they lie, whatever its rows are: lines of memory are
written whole. Which window an element is of, and which pixel of it, is worked out for as many
elements as are read at once.

Data. Every element of y is written once; pixels are read once for each window that they are in,
mostly from L2. READS and WRITES: what the channels of a group and the strides of x are multiples
of, and what the columns are. A lane reads and writes as many elements at once, up to 16 bytes.
Where READS is 0, columns are too odd for that, and a line of a window lies together in x. Elements
are then read one by one, and written in vectors over the ends of rows, of which WRITES says how
many there are. Where a window begins is worked out once for a vector, and once more for the row
behind it; what is left for each element is its line, and where it is in this.

Every division is a product and a shift, dimensions that images do not have are left out (DIMS), and
places are in 32 bits where these hold all (NEAR).

What limits it: memory, the writes. Where channels are few, integer arithmetic: in a build for sm_90
(Triton 3.6.0) of two dimensions a lane has 24 instructions for 16 bytes of 64 channels beside 72
that all its vectors share, and 48 for 8 bytes of 20 channels. On an H200 (2026-11-30, single calls)
tiles of 64 windows × 64 columns took 69.3 µs for 64 images of 56×56 with 64 channels, 3×3, and 54.3
for 1103 of 26×10 with 20, where torch's compiled code took 65.5 and 35.1. This form took 67.3
and 33.7. 7×7 of 64 images of 224×224 with 3 channels took 227 µs element by element, with 50
instructions for each, and 141 over the ends of rows, with 32 (2026-12-01, in graphs).
"""

import triton
import triton.language as tl

from tilewright.declared.shape.kernels.strided_copy import in_steps
from tilewright.ops.device.division import quotient


@triton.constexpr_function
def together(WRITES, dtype):
    """Elements of a vector: as many as columns are multiples of, up to 16 bytes."""
    return min(WRITES, 128 // dtype.primitive_bitwidth)


@triton.jit
def across(number, by, shift, READS: tl.constexpr):
    """number // size of numbers [vectors, 1 or elements of each], of sizes that are multiples of
    READS: the compiler is told that neighbours have one quotient, which it does not see in a
    product's upper half (as `quotient` has it: it must be told of the shift; what follows that is
    folded away, and what it was told with it)."""
    found = quotient(number, by, shift)
    if number.shape[1] > 1:
        upper = tl.umulhi(number.to(tl.uint32) << 1, by.to(tl.uint32))
        found = tl.max_constancy(upper >> shift.to(tl.uint32), [1, max(1, READS)]).to(tl.int32)
    return found


@triton.jit
def within(place, size):
    """Whether a place is in an image: places before it are large as unsigned numbers."""
    return place.to(tl.uint32) < size.to(tl.uint32)


@triton.jit
def corner(
    row, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, out_d, out_h, out_w, by_d, shift_d,
    by_h, shift_h, by_w, shift_w, DIMS: tl.constexpr,
):  # fmt: skip
    """The image of windows, and where in it they begin: before 0 in the padding."""
    line = quotient(row, by_w, shift_w)
    column = (row - line * out_w) * stride_w - pad_w
    image = line
    down = line
    back = line
    if DIMS > 1:
        image = quotient(line, by_h, shift_h)
        down = (line - image * out_h) * stride_h - pad_h
    if DIMS > 2:
        plane = image
        image = quotient(plane, by_d, shift_d)
        back = (plane - image * out_d) * stride_d - pad_d
    return image, back, down, column


@triton.jit
def first_place(image, back, down, column, x_n, x_d, x_h, x_w, DIMS: tl.constexpr):
    """Where windows begin in x: anywhere before it in the padding."""
    at = column * x_w + image * x_n
    if DIMS > 1:
        at += down * x_h
    if DIMS > 2:
        at += back * x_d
    return at


@triton.jit
def im2col(
    x, y, depth, height, width, x_n, x_d, x_h, x_w, x_c, filter_d, filter_h, filter_w,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    out_d, out_h, out_w, each, rows, columns, by_d, shift_d, by_h, shift_h, by_w, shift_w,
    by_each, shift_each, by_taps, shift_taps, by_filter_h, shift_filter_h, by_filter_w,
    shift_filter_w, by_columns, shift_columns,
    UNIT: tl.constexpr, DIMS: tl.constexpr, NEAR: tl.constexpr, GROUPED: tl.constexpr,
    READS: tl.constexpr, WRITES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """TILE elements of y. UNIT: whether channels are neighbours in x. DIMS: of the images. NEAR:
    whether 32 bits hold all places in x and y. GROUPED: whether there are several groups. each:
    channels of a group; where READS is 0, elements of a line of a window."""
    LINES: tl.constexpr = READS == 0
    if NEAR:
        x_n, x_d, x_h = x_n.to(tl.int32), x_d.to(tl.int32), x_h.to(tl.int32)
        x_w, x_c = x_w.to(tl.int32), x_c.to(tl.int32)
    each = in_steps(each, READS)
    columns = in_steps(columns, 0 if LINES else WRITES)
    x_n, x_d = in_steps(x_n, READS), in_steps(x_d, READS)
    x_h, x_w = in_steps(x_h, READS), in_steps(x_w, READS)
    VECTOR: tl.constexpr = together(WRITES, x.dtype.element_ty)
    start = tl.program_id(0) * TILE
    if NEAR:
        above = quotient(start, by_columns, shift_columns)
    else:
        start = tl.program_id(0).to(tl.int64) * TILE
        above = start // columns
    begin = tl.arange(0, TILE // VECTOR) * VECTOR
    n = tl.arange(0, VECTOR)[None, :]
    place = (start - above * columns).to(tl.int32) + begin
    below = quotient(place, by_columns, shift_columns)
    row = (above.to(tl.int32) + below)[:, None]
    j = (place - below * columns)[:, None]
    if READS < VECTOR:
        j += n
    image, back, down, column = corner(
        row, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, out_d, out_h, out_w, by_d, shift_d,
        by_h, shift_h, by_w, shift_w, DIMS,
    )  # fmt: skip
    if LINES:
        over = j >= columns
        j -= tl.where(over, columns, 0)
        image_b, back_b, down_b, column_b = corner(
            row + 1, stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, out_d, out_h, out_w, by_d,
            shift_d, by_h, shift_h, by_w, shift_w, DIMS,
        )  # fmt: skip
        at = tl.where(
            over,
            first_place(image_b, back_b, down_b, column_b, x_n, x_d, x_h, x_w, DIMS),
            first_place(image, back, down, column, x_n, x_d, x_h, x_w, DIMS),
        )
        back = tl.where(over, back_b, back)
        down = tl.where(over, down_b, down)
        tap_h = quotient(j, by_each, shift_each)
        along = j - tap_h * each
        at += along
        inside = within(tl.where(over, column_b * x_w, column * x_w) + along, width * x_w)
    else:
        tap = across(j, by_each, shift_each, READS)
        channel = j - tap * each
        if GROUPED:
            group = across(tap, by_taps, shift_taps, READS)
            channel += group * each
            tap -= group * (filter_d * filter_h * filter_w)
        tap_h = across(tap, by_filter_w, shift_filter_w, READS)
        column += (tap - tap_h * filter_w) * dilation_w
        inside = within(column, width)
        at = first_place(image, back, down, column, x_n, x_d, x_h, x_w, DIMS)
        at += channel if UNIT else channel * x_c
    if DIMS > 1:
        if DIMS > 2:
            tap_d = across(tap_h, by_filter_h, shift_filter_h, READS)
            tap_h -= tap_d * filter_h
            inside &= within(back + tap_d * dilation_d, depth)
            at += tap_d * (dilation_d * x_d)
        inside &= within(down + tap_h * dilation_h, height)
        at += tap_h * (dilation_h * x_h)
    if READS >= VECTOR:
        at += n

    whole = row < rows
    values = tl.load(x + at, inside & whole, 0)
    tl.store((y + start + begin)[:, None] + n, values, whole)
