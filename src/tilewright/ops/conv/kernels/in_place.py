"""Layers whose windows lie side by side, of images with channels outside of pixels: products that
read the image, or write its gradient, as it lies. Pipeline ``in_place``.

Idea. Where the filter is the stride, forward and the gradient of x are one product of pixels of y
with the channels and taps of a window. A pixel's window is in lines of TAPS elements, and windows
that are neighbours along the width have their lines side by side in memory. So a tile of pixels by
columns (channel, tap's line, tap) is a set of runs, one for each line: of neighbouring pixels with
all taps of the line. A tile is exchanged between threads: from [pixels, lines, taps], as a product
has it, to [pixels, taps] of each line, as memory has it (`conv_in_place_data`), or the other way
(`conv_in_place`).

Data movement. x is read or written once, in vectors along its lines; nothing is copied before or
behind. y is read or written along its pixels, and read once for each tile of columns; the filters
come from L2.

What limits it: memory, where layers halve an image. The exchange goes through shared memory. Of
forward, it stands between a load and its product, so loads are not ahead of products, and other
workgroups of the compute unit hide that.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.device.schedule import tile_coordinates


@triton.jit
def _places(begin, runs, lines, line, heights, window, strides):
    """Where [elements of runs, lines of a window] of the image that begins at `begin` are, and the
    channel of each line.

    runs: elements of the lines of pixels of y, each with its taps. line: such elements of a line
        of pixels; heights: lines of pixels of an image's plane. window: a window's lines in depth
        and in height.
    strides: of (image, channel, depth, height) of the image.
    """
    row = runs // line
    d = row // heights * window[0]
    h = row % heights * window[1]
    at = begin + d * strides[2] + h * strides[3] + runs % line
    each = window[0] * window[1]
    channel = lines // each
    tap_d = lines % each // window[1]
    to = channel * strides[1] + tap_d * strides[2] + lines % window[1] * strides[3]
    return at[:, None] + to[None, :], channel


@triton.jit
def conv_in_place_data(
    y, w, made, extra, y_strides, w_stride, made_strides, images, pixels, filters, lines, line,
    heights, window,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    TAPS: tl.constexpr, READ: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr,
    TAKES: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of x's gradient: TILE_M pixels of y by TILE_N elements of their windows.

    y_strides: of (image, filter). w_stride: elements of a filter. pixels: of y, of an image. lines:
        of a window, in all channels. READ, VECTOR: elements of y and the filters, and of x, that
        are aligned together. The others: see `_places`.
    """
    tiles_m = tl.cdiv(pixels, TILE_M)
    tiles_n = tl.cdiv(lines * TAPS, TILE_N)
    tile_m, tile_n = tile_coordinates(tl.program_id(0), images * tiles_m, tiles_n, GROUP_M)
    image = tile_m // tiles_m
    first = tile_m % tiles_m * TILE_M
    m = first + tl.arange(0, TILE_M)
    n = tile_n * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    of_m = image * y_strides[0] + m
    some_m = (m < pixels)[None, :]
    some_n = (n < tl.multiple_of(lines * TAPS, READ))[None, :]
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    for k0 in range(0, filters, TILE_K):
        some = (k0 + k < filters)[:, None]
        a = tl.load(
            y + (((k0 + k) * y_strides[1])[:, None] + of_m[None, :]), mask=some & some_m, other=0.0
        )
        b = tl.load(w + ((k0 + k)[:, None] * w_stride + n[None, :]), mask=some & some_n, other=0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)

    LINES: tl.constexpr = TILE_N // TAPS
    out = tl.reshape(acc, (TILE_M, LINES, TAPS))
    out = tl.reshape(tl.permute(out, (0, 2, 1)), (TILE_M * TAPS, LINES))
    runs = first * TAPS + tl.arange(0, TILE_M * TAPS)
    r = tile_n * LINES + tl.arange(0, LINES)
    places, channels = _places(
        image * made_strides[0], runs, r, line, heights, window, made_strides
    )
    inside = (runs < tl.multiple_of(pixels * TAPS, VECTOR))[:, None] & (r < lines)[None, :]
    finish(out, made, extra, places, channels, inside, r < lines, CHAIN, TAKES, LARGEST)


@triton.jit
def conv_in_place(
    x, w, made, extra, x_strides, w_stride, made_strides, images, pixels, filters, lines, line,
    heights, window,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    TAPS: tl.constexpr, VECTOR: tl.constexpr, PRECISION: tl.constexpr, TAKES: tl.constexpr,
    LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of y: TILE_M pixels by TILE_N filters. made_strides: of (image, filter). VECTOR:
    elements of x and of the filters that are aligned together. The others: as of
    `conv_in_place_data`."""
    tiles_m = tl.cdiv(pixels, TILE_M)
    tiles_n = tl.cdiv(filters, TILE_N)
    tile_m, tile_n = tile_coordinates(tl.program_id(0), images * tiles_m, tiles_n, GROUP_M)
    image = tile_m // tiles_m
    first = tile_m % tiles_m * TILE_M
    n = tile_n * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    LINES: tl.constexpr = TILE_K // TAPS
    runs = first * TAPS + tl.arange(0, TILE_M * TAPS)
    some_m = (runs < tl.multiple_of(pixels * TAPS, VECTOR))[:, None]
    some_n = (n < filters)[:, None]
    begin = image * x_strides[0]
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    for r0 in range(0, lines, LINES):
        r = r0 + tl.arange(0, LINES)
        places, _ = _places(begin, runs, r, line, heights, window, x_strides)
        a = tl.load(x + places, mask=some_m & (r < lines)[None, :], other=0.0)
        a = tl.permute(tl.reshape(a, (TILE_M, TAPS, LINES)), (0, 2, 1))
        b = tl.load(
            w + (n[:, None] * w_stride + (r0 * TAPS + k)[None, :]),
            mask=some_n & (r0 * TAPS + k < tl.multiple_of(lines * TAPS, VECTOR))[None, :],
            other=0.0,
        )  # fmt: skip
        a = tl.reshape(a, (TILE_M, TILE_K))
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)

    m = first + tl.arange(0, TILE_M)
    places = (image * made_strides[0] + m)[:, None] + (n * made_strides[1])[None, :]
    finish(
        acc, made, extra, places, n, (m < pixels)[:, None] & (n < filters)[None, :], n < filters,
        CHAIN, TAKES, LARGEST,
    )  # fmt: skip
