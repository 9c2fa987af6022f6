"""Pixels of few channels, and their filters, as rows of which the copy engine can take a filter's
row at a time: the step before `gluon_ws` in pipeline ``gluon_packed``.

Idea. The copy engine moves whole 16 bytes, and three channels are 6. So a pixel gets `pitch`
channels, 4 or 8, zeros behind its own, and a row of the image gets the zeros of its padding. A row
of the filter then meets neighbouring elements for each pixel of the result, and these begin a
multiple of 16 bytes apart: a tensor map describes such overlapping rows as it does any others.
`gluon_ws` multiplies them as it does channels, with a filter that has lost its width.

Data movement. A workgroup writes one row: of x first, then of the weights. It reads x once, in
whatever layout, and writes `pitch` / channels times as much.

What limits it: memory and the launch. The convolution's result is mostly several times as large as
packed x. Not timed yet.
"""

import triton
import triton.language as tl


@triton.jit
def _row(
    source, made, row, depth, height, width, channels, margin, to_row,
    by_outer, by_channel, by_depth, by_height, by_width, shift, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write row number `row` of [outer, depth, height]: `to_row` elements, of which those of place
    number `margin` are of the first of `width` pixels."""
    h = row % height
    d = row // height % depth
    outer = row // height // depth
    source += outer.to(tl.int64) * by_outer + d.to(tl.int64) * by_depth + h.to(tl.int64) * by_height
    made += row.to(tl.int64) * to_row
    for first in range(0, to_row, BLOCK):
        at = first + tl.arange(0, BLOCK)
        pixel = (at >> shift) - margin
        channel = at & ((1 << shift) - 1)
        inside = (pixel >= 0) & (pixel < width) & (channel < channels)
        places = pixel * by_width + channel * by_channel
        values = tl.load(source + places, mask=inside, other=0.0)
        tl.store(made + at, values, mask=at < to_row)


@triton.jit
def conv_pack(
    x, w, packed_x, packed_w, x_strides, w_strides, rows, sizes, taps, channels, margin, row_x,
    row_w, shift, BLOCK: tl.constexpr,
):  # fmt: skip
    """x_strides, w_strides: of (image or filter, channel, depth, height, width). rows: of all
    images. sizes, taps: depth, height and width of x and of the filter. margin: zeros before a row
    of x. row_x, row_w: elements of a packed row. shift: of a packed pixel's elements, as a
    power of two."""
    row = tl.program_id(0)
    if row < rows:
        _row(
            x, packed_x, row, sizes[0], sizes[1], sizes[2], channels, margin, row_x,
            x_strides[0], x_strides[1], x_strides[2], x_strides[3], x_strides[4], shift, BLOCK,
        )  # fmt: skip
    else:
        _row(
            w, packed_w, row - rows, taps[0], taps[1], taps[2], channels, 0, row_w,
            w_strides[0], w_strides[1], w_strides[2], w_strides[3], w_strides[4], shift, BLOCK,
        )  # fmt: skip
