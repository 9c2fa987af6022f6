"""The gradient of x, of few channels, as a sub-pixel convolution of y's gradient, through pointers,
on every architecture: pipeline ``subpixel``.

Idea. Three channels fill three of the 16 columns that matrix instructions multiply at least, and
with a stride each pixel of x meets other taps, so that `implicit` walks y once for each residue of
the stride. Here a row of a tile is a block of neighbouring pixels of x with all their channels
(`subpixel.Blocks`), a stride of 2 by 2 giving 12 columns, and two such blocks 24. All meet the same
pixels of y, so y is walked once, and each step has all columns. Where a pixel has no tap at a pixel
of y, its weight is zero: of 4 by 5 pixels that a block of 2 by 4 meets under a filter of 7×7 with
stride 2, 0.61 of the products are wanted.

Data movement. `conv_subpixel_filters` writes the weights as [pixels of y that a block meets,
filters, columns], some kB. `conv_subpixel` walks these pixels: a step multiplies TILE_K filters of
one of them for TILE_M blocks, and reads y in whole vectors. A tile has blocks of several lines, so
that few of its rows are empty; no step divides. Each block is stored to its lines of x.

What limits it: the loads. In the example each element of y is loaded 10 times; `implicit` loads it
49 times. It takes 86 µs on an H200, and cuDNN 455. Other stems: docs/notes/conv-subpixel.md.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.conv.kernels.places import apart, channel, offset


@triton.jit
def _tap(block, pixel, stride, dilation, before, taps):
    """(the tap through which pixel `block` of a block meets a pixel of y, counted from block 0's
    pixel -before; whether there is one)."""
    ahead = block + before - pixel * stride
    tap = ahead // dilation
    return tap, (ahead >= 0) & (tap < taps) & (tap * dilation == ahead)


@triton.jit
def conv_subpixel_filters(
    w, packed_w, w_strides, channels_in, channels_out, block, first, met, stride, dilation, before,
    taps, TILE_N: tl.constexpr, NDIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The weights of ROWS filters at one pixel of y. block, first, met: see `subpixel.Blocks`. The
    others are those of the catalogue (`arguments`)."""
    parts = tl.cdiv(channels_in, ROWS)
    at = tl.program_id(0) // parts
    filters = tl.program_id(0) % parts * ROWS + tl.arange(0, ROWS)
    _, d, h, v = apart(at, met, NDIM)
    column = tl.arange(0, TILE_N)
    of = column % channels_out
    rest, pixel_d, pixel_h, pixel_w = apart(column // channels_out, block, NDIM)
    tap_w, there = _tap(pixel_w, first[2] + v, stride[2], dilation[2], before[2], taps[2])
    there = there & (rest == 0)
    places = of * w_strides[1] + tap_w * w_strides[4]
    if NDIM > 1:
        tap_h, met_h = _tap(pixel_h, first[1] + h, stride[1], dilation[1], before[1], taps[1])
        there = there & met_h
        places += tap_h * w_strides[3]
    if NDIM > 2:
        tap_d, met_d = _tap(pixel_d, first[0] + d, stride[0], dilation[0], before[0], taps[0])
        there = there & met_d
        places += tap_d * w_strides[2]
    some = (filters < channels_in)[:, None]
    values = tl.load(
        w + (filters[:, None] * w_strides[0] + places[None, :]), mask=some & there[None, :],
        other=0.0,
    )  # fmt: skip
    row = at * channels_in + filters
    tl.store(packed_w + (row[:, None] * TILE_N + column[None, :]), values, mask=some)


@triton.jit
def conv_subpixel(
    source, packed_w, made, extra, source_strides, made_strides, channels_in, channels_out, sizes,
    full, block, first, met, stride, across,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, NDIM: tl.constexpr,
    UNIT: tl.constexpr, UNIT_OUT: tl.constexpr, PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of blocks of x's gradient. across: a power of two, of the tile's blocks that are side
    by side. The others: as of `conv_subpixel_filters`."""
    wide = tl.cdiv(full[2], block[2])
    high = tl.cdiv(full[1], block[1])
    tiles = (tl.cdiv(full[0], block[0]), tl.cdiv(high, TILE_M // across), tl.cdiv(wide, across))
    image, d, h_tile, w_tile = apart(tl.program_id(0), tiles, NDIM)
    row = tl.arange(0, TILE_M)
    w = w_tile * across + row % across
    h = h_tile * (TILE_M // across) + row // across
    # Pixels of y: of this tile's blocks and the first that they meet.
    y_d = d * (block[0] // stride[0]) + first[0]
    y_h = h * (block[1] // stride[1]) + first[1]
    y_w = w * (block[2] // stride[2]) + first[2]
    y_w = tl.where((w < wide) & (h < high), y_w, -(1 << 30))
    base = image * source_strides[0] + offset(y_d, y_h, y_w, source_strides, NDIM)
    k = tl.arange(0, TILE_K)
    column = tl.arange(0, TILE_N)

    acc = tl.zeros((TILE_M, TILE_N), tl.int32 if INT_ACC else tl.float32)
    on_d = 0
    on_h = 0
    on_w = 0
    filters = 0
    at = 0
    for _ in range(met[0] * met[1] * met[2] * tl.cdiv(channels_in, TILE_K)):
        line = y_w + on_w
        there = (line >= 0) & (line < sizes[2])
        if NDIM > 1:
            there = there & (y_h + on_h >= 0) & (y_h + on_h < sizes[1])
        if NDIM > 2:
            there = there & (y_d + on_d >= 0) & (y_d + on_d < sizes[0])
        some = filters + k < channels_in
        to = offset(on_d, on_h, on_w, source_strides, NDIM)
        channels = channel(filters + k, source_strides[1], UNIT) + to
        a = tl.load(
            source + (base[:, None] + channels[None, :]),
            mask=there[:, None] & some[None, :], other=0.0,
        )  # fmt: skip
        b = tl.load(
            packed_w + ((at * channels_in + filters + k)[:, None] * TILE_N + column[None, :]),
            mask=some[:, None], other=0.0,
        )  # fmt: skip
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        # The pixel's next filters, or the first ones of the next pixel.
        filters += TILE_K
        over = filters >= channels_in
        filters = tl.where(over, 0, filters)
        at = tl.where(over, at + 1, at)
        on_w = tl.where(over, on_w + 1, on_w)
        over = on_w == met[2]
        on_w = tl.where(over, 0, on_w)
        on_h = tl.where(over, on_h + 1, on_h)
        over = on_h == met[1]
        on_h = tl.where(over, 0, on_h)
        on_d = tl.where(over, on_d + 1, on_d)

    of = column % channels_out
    rest, pixel_d, pixel_h, pixel_w = apart(column // channels_out, block, NDIM)
    x_w = (w * block[2])[:, None] + pixel_w[None, :]
    inside = (x_w < full[2]) & (rest == 0)[None, :]
    if NDIM > 1:
        inside = inside & ((h * block[1])[:, None] + pixel_h[None, :] < full[1])
    if NDIM > 2:
        inside = inside & (d * block[0] + pixel_d < full[0])[None, :]
    begin = image * made_strides[0]
    begin += offset(d * block[0], h * block[1], w * block[2], made_strides, NDIM)
    within = offset(pixel_d, pixel_h, pixel_w, made_strides, NDIM)
    places = begin[:, None] + (within + channel(of, made_strides[1], UNIT_OUT))[None, :]
    if UNIT_OUT:
        # Neighbouring columns are neighbours in memory, but the compiler cannot see it through the
        # remainders. It would store 32 blocks at once, each in a sector of its own.
        places = tl.max_contiguous(places, (1, 2))
    finish(acc, made, extra, places, of, inside, rest == 0, CHAIN, TAKES, LARGEST)
