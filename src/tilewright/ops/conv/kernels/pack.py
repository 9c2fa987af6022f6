"""Pixels of few channels, and their filters, as rows in which a filter's row meets one run of
elements: the first kernel of pipeline ``packed``.

Idea. Vectors of elements must begin at multiples of their size, and three channels are 6 bytes. So
a pixel gets 4 or 8 channels, zeros behind its own; and images get the zeros of their padding, so
that the second kernel (`packed`) reads without masks of places.

Data movement. A workgroup writes one row: of x first, then of the weights. It reads x once, in
whatever layout, and writes 4 or 8 channels for each of `channels`.

What limits it: memory and the launch (docs/notes/conv-packed.md).
"""

import triton
import triton.language as tl


@triton.jit
def _row(
    source, made, row, made_sizes, before, sizes, channels, to_row, strides, shift,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write row number `row` of [outer, depth, height]: `to_row` elements, the first of pixel
    -before."""
    h = row % made_sizes[1] - before[1]
    d = row // made_sizes[1] % made_sizes[0] - before[0]
    outer = row // made_sizes[1] // made_sizes[0]
    there = (h >= 0) & (h < sizes[1]) & (d >= 0) & (d < sizes[0])
    source += outer.to(tl.int64) * strides[0] + d.to(tl.int64) * strides[2]
    source += h.to(tl.int64) * strides[3]
    made += row.to(tl.int64) * to_row
    for first in range(0, to_row, BLOCK):
        at = first + tl.arange(0, BLOCK)
        pixel = (at >> shift) - before[2]
        channel = at & ((1 << shift) - 1)
        inside = there & (pixel >= 0) & (pixel < sizes[2]) & (channel < channels)
        places = pixel * strides[4] + channel * strides[1]
        values = tl.load(source + places, mask=inside, other=0.0)
        tl.store(made + at, values, mask=at < to_row)


@triton.jit
def conv_pack(
    x, w, packed_x, packed_w, x_strides, w_strides, rows, made_sizes, before, sizes, taps, channels,
    row_x, row_w, shift, BLOCK: tl.constexpr, FILTERS: tl.constexpr,
):  # fmt: skip
    """x_strides, w_strides: of (image or filter, channel, depth, height, width). rows: of packed x.
    made_sizes: depth and height of it. before: padding before x. sizes, taps: depth, height and
    width of x and of the filter. row_x, row_w: elements of a packed row. shift: of a packed pixel's
    elements, as a power of two. FILTERS: whether w is packed too; else it is ()."""
    row = tl.program_id(0)
    if row < rows:
        _row(x, packed_x, row, made_sizes, before, sizes, channels, row_x, x_strides, shift, BLOCK)
    elif FILTERS:
        _row(
            w, packed_w, row - rows, (taps[0], taps[1]), (0, 0, 0), taps, channels, row_w,
            w_strides, shift, BLOCK,
        )  # fmt: skip
