"""A layout step: each pixel of y is the sum of what its taps have, which a product has left for
each pixel of x (see `tapping`).

Idea. A row has, for a pixel of x, the products with all taps of all filters. A workgroup has one
filter and neighbouring pixels of y, and adds up a tap after another, each from the row of the pixel
that the tap sees; then comes the epilogue.

Data movement. A row's taps of one filter lie side by side, so what the workgroup reads for one tap
is in the lines that it has read for the taps before.

What limits it: memory. The rows are read once, in fp32, and y is written once.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish


@triton.jit
def taps(
    source, made, extra, filters, row, outs, sizes, filter, stride, dilation, before, made_strides,
    PIXELS: tl.constexpr, CHAIN: tl.constexpr, TAKES: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Make y of the rows `source`.

    row: elements from a row to the next. outs, sizes: pixels of y and of x, by dimension; filter:
        taps.
    made_strides: of (image, channel, depth, height, width) of y.
    """
    pixels = outs[0] * outs[1] * outs[2]
    across = tl.cdiv(pixels, PIXELS)
    part = tl.program_id(0) % across
    rest = tl.program_id(0) // across
    k = rest % filters
    n = (rest // filters).to(tl.int64)
    pixel = part * PIXELS + tl.arange(0, PIXELS)
    w = pixel % outs[2]
    h = pixel // outs[2] % outs[1]
    d = pixel // outs[2] // outs[1]
    there = pixel < pixels
    total = tl.zeros((PIXELS,), tl.float32)
    tap = k * filter[0] * filter[1] * filter[2]
    for i in range(filter[0]):
        at_d = d * stride[0] - before[0] + i * dilation[0]
        meets_d = there & (at_d >= 0) & (at_d < sizes[0])
        for j in range(filter[1]):
            at_h = h * stride[1] - before[1] + j * dilation[1]
            meets_h = meets_d & (at_h >= 0) & (at_h < sizes[1])
            for m in range(filter[2]):
                at_w = w * stride[2] - before[2] + m * dilation[2]
                meets = meets_h & (at_w >= 0) & (at_w < sizes[2])
                place = ((n * sizes[0] + at_d) * sizes[1] + at_h) * sizes[2] + at_w
                total += tl.load(source + place * row + tap, mask=meets, other=0)
                tap += 1
    channels = k + tl.arange(0, 1)
    places = n * made_strides[0] + d * made_strides[2] + h * made_strides[3] + w * made_strides[4]
    places = places[:, None] + (channels * made_strides[1])[None, :]
    finish(
        total[:, None], made, extra, places, channels, there[:, None], channels < filters,
        CHAIN, TAKES, LARGEST,
    )  # fmt: skip
