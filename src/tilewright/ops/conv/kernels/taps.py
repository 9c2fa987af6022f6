"""A layout step: each pixel of y is the sum of what its taps have, which a product has left for
each pixel of x (see `tapping`).

Idea. The products lie tap by tap, each with the pixels of x as an image has them. A workgroup has
one filter and neighbouring pixels of y, and adds up AT_ONCE taps at a time, each of the pixels that
it sees; then comes the epilogue. Threads are along the pixels, which taps of a stride of 1 see as
neighbours too, and a thread has all AT_ONCE loads under way.

What limits it: memory. The products are read once, in fp32, and y is written once. By counting,
where a tap lies takes some 12 instructions for each product, about as long on an H200.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish

AT_ONCE = tl.constexpr(16)
"""Taps whose products are loaded together."""


@triton.jit
def _met(pixel, tap, stride, dilation, before, size):
    """[taps, pixels]: the pixels of x that pixels of y meet through taps along a dimension, and
    whether they are there."""
    at = (pixel * stride - before)[None, :] + (tap * dilation)[:, None]
    return at, (at >= 0) & (at < size)


@triton.jit
def taps(
    source, made, extra, filters, plane, outs, sizes, filter, stride, dilation, before,
    made_strides, PIXELS: tl.constexpr, CHAIN: tl.constexpr, TAKES: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    """Make y of the products `source`, [filters, taps, images, pixels of x].

    plane: elements from a tap's products to the next tap's. outs, sizes: pixels of y and of x, by
        dimension; filter: taps.
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
    every = filter[0] * filter[1] * filter[2]
    source += k.to(tl.int64) * every * plane + n * (sizes[0] * sizes[1] * sizes[2])
    total = tl.zeros((PIXELS,), tl.float32)
    for first in range(0, every, AT_ONCE):
        tap = first + tl.arange(0, AT_ONCE)
        at_w, in_w = _met(w, tap % filter[2], stride[2], dilation[2], before[2], sizes[2])
        row = tap // filter[2]
        at_h, in_h = _met(h, row % filter[1], stride[1], dilation[1], before[1], sizes[1])
        at_d, in_d = _met(d, row // filter[1], stride[0], dilation[0], before[0], sizes[0])
        meets = (tap < every)[:, None] & there[None, :] & in_d & in_h & in_w
        place = (at_d * sizes[1] + at_h) * sizes[2] + at_w
        of_tap = tap.to(tl.int64) * plane
        total += tl.sum(tl.load(source + (of_tap[:, None] + place), mask=meets, other=0), 0)
    channels = k + tl.arange(0, 1)
    places = n * made_strides[0] + d * made_strides[2] + h * made_strides[3] + w * made_strides[4]
    places = places[:, None] + (channels * made_strides[1])[None, :]
    finish(
        total[:, None], made, extra, places, channels, there[:, None], channels < filters,
        CHAIN, TAKES, LARGEST,
    )  # fmt: skip
