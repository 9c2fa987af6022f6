"""Where pixels and taps are, for all kernels of convolutions.

Sizes, strides and filters come as tuples of three spatial dimensions (depth, height, width). Those
that a problem of NDIM dimensions does not have come first; they are of size 1, and cost nothing.
Strides of arrays are (image, channel, depth, height, width), 64-bit integers where an array spans
2 GiB or more, and then so are all offsets.
"""

import triton
import triton.language as tl


@triton.jit
def apart(number, sizes, NDIM: tl.constexpr):
    """What is left, depth, height and width of a number that counts width first."""
    width = number % sizes[2]
    rest, depth, height = apart_line(number // sizes[2], sizes, NDIM)
    return rest, depth, height, width


@triton.jit
def apart_line(number, sizes, NDIM: tl.constexpr):
    """What is left, depth and height of the number of a line of pixels, which counts height
    first."""
    height = number * 0
    depth = number * 0
    if NDIM > 1:
        height = number % sizes[1]
        number = number // sizes[1]
    if NDIM > 2:
        depth = number % sizes[0]
        number = number // sizes[0]
    return number, depth, height


@triton.jit
def offset(depth, height, width, strides, NDIM: tl.constexpr):
    """Elements from pixel 0 of an image to a pixel, or from tap 0 of a filter to a tap."""
    found = width * strides[4]
    if NDIM > 1:
        found += height * strides[3]
    if NDIM > 2:
        found += depth * strides[2]
    return found


@triton.jit
def inside(depth, height, width, sizes, NDIM: tl.constexpr):
    """Whether a pixel is one of the image, and not in its padding."""
    found = (width >= 0) & (width < sizes[2])
    if NDIM > 1:
        found = found & (height >= 0) & (height < sizes[1])
    if NDIM > 2:
        found = found & (depth >= 0) & (depth < sizes[0])
    return found


@triton.jit
def channel(number, stride, UNIT: tl.constexpr):
    """Elements from channel 0. UNIT: neighbouring channels are neighbours in memory."""
    found = number
    if not UNIT:
        found = number * stride
    return found


@triton.jit
def walk(
    residue, taps, stride, dilation, before, phase, common, inverse, DATA: tl.constexpr
):  # fmt: skip
    """How the pixels of a result walk over their source, along one dimension.

    Returns the first tap, the number of taps, how far apart they are, the source's pixel of pixel
    0 and the first tap, and how far the source's pixel moves with each pixel and with each tap.

    residue: of the result's pixels, in the gradient of the data (see `geometry`). phase: `before`
        modulo the stride, not negative.
    """
    first = residue * 0
    count = taps
    taps_apart = first + 1
    origin = first - before
    by_pixel = stride
    by_tap = dilation
    if DATA:
        taps_apart = stride // common
        rest = (residue + phase) % stride
        first = rest // common * inverse % taps_apart
        count = (max(taps - first, 0) + taps_apart - 1) // taps_apart
        count = tl.where(rest % common == 0, count, 0)
        # The stride divides this where there is a tap.
        origin = (residue + before - first * dilation) // stride
        by_pixel = residue * 0 + 1
        by_tap = -(dilation // common)
    return first, count, taps_apart, origin, by_pixel, by_tap
