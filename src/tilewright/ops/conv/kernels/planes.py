"""Depthwise convolutions of small channels-first images, in all directions, on the matrix units.

Idea. On the vector units a product of a pixel and a tap is a load, a mask and some more
instructions of a lane, and 5×5 taps have 25 of them for each pixel. A few rows of a small image are
some tens of neighbouring elements (`rows` of the result, and the `window` of the source that they
see), and their products with a filter are those with a matrix [elements seen, elements made] that
has a tap wherever one joins the two, and zeros elsewhere. It is the same for all images, and for
all such rows of an image: what a filter sees above and below an image is before and behind its
elements. So a workgroup writes the matrix of one channel once, and multiplies the rows of many
images, each of which it loads once for all taps. The gradient of the data is the same with rows of
y; strides only leave out taps.

In the gradient of the weights, the matrix is the product: of the window's elements and those of dY,
summed over images. A tap's weight is the sum of all elements that it joins. Parts of the images are
added by `weights.conv_few_totals`.

Edges. The matrix has zeros, and an infinite pixel, or NaN, would spoil the elements that do not see
it. If a sum is NaN, the workgroup computes these images again, pixel by pixel, and leaves out what
no tap joins.

Data movement. Pixels move one by one, neighbouring threads at neighbouring pixels. Rows of the
result read the rows between them again, from L1.

What limits it: instructions: writing the matrix for few images, loads and stores for many. Counts:
docs/notes/conv-planes.md.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.device.division import quotient


@triton.jit
def _under(number, size):
    """Whether numbers are from 0 to under a size: one comparison."""
    return number.to(tl.uint32, bitcast=True) < size.to(tl.uint32, bitcast=True)


@triton.jit
def _joined(k, q, window, rows, widths, taps, down, along):
    """For elements k of a window and q of its rows of the result: the row and the column of the tap
    that joins them, and whether there is one.

    window, rows: elements of each. widths: of lines of the source and of the result, and what
    divides by them. down, along: of the tap's row and column, what a line (pixel) of the source and
    of the result adds, and the first.
    """
    i = quotient(k, widths[2], widths[3])
    j = quotient(q, widths[4], widths[5])
    r = (i * down[0] + down[2])[:, None] + (j * down[1])[None, :]
    s = (k - i * widths[0]) * along[0] + along[2]
    s = s[:, None] + ((q - j * widths[1]) * along[1])[None, :]
    there = (k < window)[:, None] & (q < rows)[None, :]
    return r, s, there & _under(r, taps[0]) & _under(s, taps[1])


@triton.jit
def _matrix(weights, weight_strides, k, q, window, rows, widths, taps, down, along):
    """The matrix of a channel's taps, and where there is one."""
    r, s, there = _joined(k, q, window, rows, widths, taps, down, along)
    of = r * weight_strides[3] + s * weight_strides[4]
    return tl.load(weights + of, mask=there, other=0.0), there


@triton.jit
def _of_images(source, tile, images, strides, at, inside, TILE_M: tl.constexpr):
    """The elements `at` of TILE_M images, as [image, element]; 0 where not `inside`."""
    image = tile * TILE_M + tl.arange(0, TILE_M)
    mask = (image < images)[:, None] & inside[None, :]
    return tl.load((source + image * strides[0])[:, None] + at[None, :], mask=mask, other=0.0)


@triton.jit
def conv_planes(
    source, weights, made, extra, source_strides, weight_strides, made_strides, channels, images,
    chunks, each, first, apart, pixels, full, window, rows, widths, taps, down, along,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, TAKES: tl.constexpr,
    LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """`each` tiles of TILE_M images of one channel of the result; a tile is of one of the `chunks`
    that images are cut into.

    first, apart: the first element of an image's first window, and elements from a window to the
    next. pixels, full: elements of an image of the source and of the result. Others: see `_joined`.
    """
    channel = tl.program_id(0) % channels
    begin = tl.program_id(0) // channels * each
    tiles = tl.cdiv(images, TILE_M)
    k = tl.arange(0, TILE_K)
    q = tl.arange(0, TILE_N)
    filter = weights + channel * weight_strides[0]
    matrix, _ = _matrix(filter, weight_strides, k, q, window, rows, widths, taps, down, along)
    source += channel * source_strides[1]
    for step in range(begin, min(begin + each, chunks * tiles)):
        tile = step % tiles
        at = step // tiles * apart + first + k
        out = step // tiles * rows
        x = _of_images(source, tile, images, source_strides, at, _under(at, pixels), TILE_M)
        acc = tl.dot(x, matrix)
        if tl.max((acc != acc).to(tl.int32)) > 0:
            acc = tl.zeros((TILE_M, TILE_N), tl.float32)
            for one in range(window):
                here = one + tl.arange(0, 1)
                row, known = _matrix(
                    filter, weight_strides, here, q, window, rows, widths, taps, down, along
                )
                here += step // tiles * apart + first
                pixel = _of_images(
                    source, tile, images, source_strides, here, _under(here, pixels), TILE_M
                )
                acc += tl.where(known, pixel.to(tl.float32) * row.to(tl.float32), 0.0)
        image = tile * TILE_M + tl.arange(0, TILE_M)
        there = (q < rows) & (out + q < full)
        places = (image * made_strides[0])[:, None] + (channel * made_strides[1] + out + q)[None, :]
        finish(
            acc, made, extra, places, channel + q * 0, (image < images)[:, None] & there[None, :],
            there, CHAIN, TAKES, LARGEST,
        )  # fmt: skip


@triton.jit
def conv_planes_weights(
    x, y, made, x_strides, y_strides, made_strides, channels, images, chunks, first, apart, pixels,
    full, window, rows, widths, taps, down, along, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, TWO_STAGE: tl.constexpr,
):  # fmt: skip
    """All taps of a channel, from a part of the tiles of all chunks."""
    channel = tl.program_id(0) % channels
    part = tl.program_id(0) // channels
    tiles = tl.cdiv(images, TILE_M)
    share = tl.cdiv(chunks * tiles, splits)
    k = tl.arange(0, TILE_K)
    q = tl.arange(0, TILE_N)
    x += channel * x_strides[1]
    y += channel * y_strides[1]
    acc = tl.zeros((TILE_K, TILE_N), tl.float32)
    for step in range(part * share, min((part + 1) * share, chunks * tiles)):
        tile = step % tiles
        at = step // tiles * apart + first + k
        v = _of_images(x, tile, images, x_strides, at, _under(at, pixels), TILE_M)
        out = step // tiles * rows + q
        g = _of_images(y, tile, images, y_strides, out, (q < rows) & (out < full), TILE_M)
        acc = tl.dot(v.T, g, acc)
    r, s, there = _joined(k, q, window, rows, widths, taps, down, along)
    tap = r * taps[1] + s + tl.where(there, 0, 1 << 24)
    for number in range(taps[0] * taps[1]):
        total = tl.sum(tl.sum(tl.where(tap == number, acc, 0.0), 1), 0)
        if TWO_STAGE:
            place = (part * channels + channel) * (taps[0] * taps[1]) + number
        else:
            place = channel * made_strides[0] + number // taps[1] * made_strides[3]
            place += number % taps[1] * made_strides[4]
        tl.store(made + place, total.to(made.dtype.element_ty))
