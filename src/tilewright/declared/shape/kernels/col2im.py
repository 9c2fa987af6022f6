"""Windows summed back into images.

Idea. A workgroup has a tile of ROWS pixels × COLUMNS channels, and walks over the taps of the
filter: a tap belongs to one window for each pixel, or to none. Where windows are some pixels apart,
each pixel walks over its own taps, which are as far apart (step_…), unless the filter is dilated:
patches that do not overlap have one tap for each pixel. So every element of y is read by one pixel,
nothing is added atomically, and results repeat bit for bit.

Data. Sums are in fp32, in the order of the taps. VECTOR: what the channels of a group are multiples
of, so that a lane moves as many at once, up to 16 bytes. NEXT: whether windows are one pixel apart,
which saves divisions.

What limits it: memory: y is read once. In graphs, an H200 (2026-12-01) took 65.8 µs for windows of
3 × 3 over 64 images of 56 × 56 × 64 in bf16, 3.9 TB/s.
"""

import triton
import triton.language as tl

from tilewright.declared.shape.kernels.strided_copy import in_steps
from tilewright.ops.device.division import quotient


@triton.jit
def window(place, stride, by, shift, count, NEXT: tl.constexpr):
    """The window that begins at a pixel, and whether there is one."""
    if NEXT:
        found = place
        there = (place >= 0) & (place < count)
    else:
        found = quotient(place, by, shift)
        there = (place >= 0) & (found * stride == place) & (found < count)
    return found, there


@triton.jit
def first_tap(place, stride, step, by, shift, NEXT: tl.constexpr):
    """The first tap of a filter that a pixel meets in a window, of taps `step` apart."""
    found = 0
    if not NEXT:
        found = (place - quotient(place, by, shift) * stride) * (step == stride)
    return found


@triton.jit
def col2im(
    y, x, out_d, out_h, out_w, columns, filter_d, filter_h, filter_w, stride_d, stride_h, stride_w,
    pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w, depth, height, width, groups,
    rows, channels, by_depth, shift_depth, by_height, shift_height, by_width, shift_width,
    by_stride_d, shift_stride_d, by_stride_h, shift_stride_h, by_stride_w, shift_stride_w,
    by_across, shift_across, step_d, step_h, step_w, steps_d, steps_h, steps_w,
    NEXT: tl.constexpr, VECTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS pixels × COLUMNS channels. step_…: from one tap of a pixel to its next. steps_…: how
    many there are at most."""
    each = in_steps(channels // groups, VECTOR)
    channels = in_steps(channels, VECTOR)
    columns = in_steps(columns, VECTOR)
    above = quotient(tl.program_id(0), by_across, shift_across)
    row = above * ROWS + tl.arange(0, ROWS)
    left = tl.program_id(0) - above * tl.cdiv(channels, COLUMNS)
    channel = left * COLUMNS + tl.arange(0, COLUMNS)
    line = quotient(row, by_width, shift_width)
    plane = quotient(line, by_height, shift_height)
    image = quotient(plane, by_depth, shift_depth)
    right = row - line * width + pad_w
    below = line - plane * height + pad_h
    behind = plane - image * depth + pad_d
    image = image.to(tl.int64) * out_d
    taps = filter_d * filter_h * filter_w
    first = channel // each * (taps * each) + channel % each
    whole = (row < rows)[:, None] & (channel < channels)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    first_w = first_tap(right, stride_w, step_w, by_stride_w, shift_stride_w, NEXT)
    first_h = first_tap(below, stride_h, step_h, by_stride_h, shift_stride_h, NEXT)
    first_d = first_tap(behind, stride_d, step_d, by_stride_d, shift_stride_d, NEXT)
    at_d, at_h, at_w = above * 0, above * 0, above * 0
    for _ in range(steps_d * steps_h * steps_w):
        tap_w = first_w + at_w * step_w
        tap_h = first_h + at_h * step_h
        tap_d = first_d + at_d * step_d
        w, in_w = window(
            right - tap_w * dilation_w, stride_w, by_stride_w, shift_stride_w, out_w, NEXT
        )
        h, in_h = window(
            below - tap_h * dilation_h, stride_h, by_stride_h, shift_stride_h, out_h, NEXT
        )
        d, in_d = window(
            behind - tap_d * dilation_d, stride_d, by_stride_d, shift_stride_d, out_d, NEXT
        )
        there = in_w & in_h & in_d
        if not NEXT:
            there = there & (tap_w < filter_w) & (tap_h < filter_h) & (tap_d < filter_d)
        tap = (tap_d * filter_h + tap_h) * filter_w + tap_w
        place = ((image + d) * out_h + h) * out_w + w
        at = (place * columns + tap * each)[:, None] + first[None, :]
        inside = whole & there[:, None]
        total += tl.load(y + at, inside, 0.0).to(tl.float32)
        # The next tap, counted: a division at each would take more than the rest of its places.
        over_w = (at_w + 1 == steps_w).to(tl.int32)
        over_h = over_w * (at_h + 1 == steps_h).to(tl.int32)
        at_w = (at_w + 1) * (1 - over_w)
        at_h = (at_h + over_w) * (1 - over_h)
        at_d += over_h
    to = x + row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(to, total.to(x.dtype.element_ty), whole)
