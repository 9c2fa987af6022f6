"""1×1 convolutions of channels-first images whose rows of pixels are no whole 16 bytes, in all
directions: 7×7 and 14×14 images, audio of odd length.

Idea. An image is a matrix [channels, pixels], and its result the weights times it. Rows that are no
whole 16 bytes are nothing for the copy engine, nor for loads of 16 bytes: elements are loaded by
themselves, or two or four of them, with neighbouring threads at neighbouring pixels. The weights
are whole rows, and come in vectors, by asynchronous copies. Loads of fewer than 4 bytes are none of
these; so the pixels of the next step are on their way, in registers, while those of a step are
multiplied (AHEAD).

The gradient of the weights sums over pixels: there both operands are such rows, and steps go
through the images, each from its first pixel. As many parts as all compute units have room for are
added by `weights.conv_totals`, or by `conv_few_totals` if they are many.

Data movement. Forward and for the data, a tile has all channels of its pixels, which tiles of other
filters read again from L2. Nothing is turned or copied.

What limits it: loads and stores of one element for each lane, twice for each pixel and channel of a
tile, so wide tiles of filters; memory, for few filters. Counts: docs/notes/conv-askew.md.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish


@triton.jit
def _rows(at, count, along, strides, there, TILE_K: tl.constexpr):
    """TILE_K rows from `at` of a matrix of `count` rows, at the columns `along`, as [row, column].

    strides: elements from a row to the next. there: of the columns.
    """
    rows = at + tl.arange(0, TILE_K)
    mask = (rows < count)[:, None] & there[None, :]
    return tl.load(along[None, :] + (rows * strides)[:, None], mask=mask, other=0.0)


@triton.jit
def conv_askew(
    source, weights, made, extra, channels_in, channels_out, pixels, of_source, of_weights, of_made,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, DATA: tl.constexpr,
    AHEAD: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, TAKES: tl.constexpr,
    LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile [TILE_M pixels, TILE_N channels] of the result of one image.

    of_source, of_made: elements from an image, and from a channel, to the next.
    of_weights: elements from a filter to the next; its channels are neighbours.
    """
    tiles_m = tl.cdiv(pixels, TILE_M)
    tiles_n = tl.cdiv(channels_out, TILE_N)
    cols = tl.program_id(0) % tiles_n * TILE_N + tl.arange(0, TILE_N)
    rows = tl.program_id(0) // tiles_n % tiles_m * TILE_M + tl.arange(0, TILE_M)
    image = (tl.program_id(0) // tiles_n // tiles_m).to(tl.int64)
    there = rows < pixels
    cols_there = cols < channels_out
    along = source + image * of_source[0] + rows
    acc = tl.zeros((TILE_N, TILE_M), tl.float32)
    if AHEAD:
        x = _rows(0, channels_in, along, of_source[1], there, TILE_K)
    for k0 in tl.range(0, channels_in, TILE_K, num_stages=STAGES):
        if DATA:
            w = _rows(k0, channels_in, weights + cols, of_weights, cols_there, TILE_K).T
        else:
            k = k0 + tl.arange(0, TILE_K)
            mask = cols_there[:, None] & (k < channels_in)[None, :]
            w = tl.load(weights + (cols * of_weights)[:, None] + k[None, :], mask=mask, other=0.0)
        if AHEAD:
            following = _rows(k0 + TILE_K, channels_in, along, of_source[1], there, TILE_K)
        else:
            x = _rows(k0, channels_in, along, of_source[1], there, TILE_K)
        acc = tl.dot(w, x, acc, input_precision=PRECISION)
        if AHEAD:
            x = following
    places = (image * of_made[0] + rows)[:, None] + (cols * of_made[1])[None, :]
    finish(
        acc.T, made, extra, places, cols, there[:, None] & cols_there[None, :], cols_there,
        CHAIN, TAKES, LARGEST,
    )  # fmt: skip


@triton.jit
def _columns(step, each, along, of_image, pixels, there, TILE_K: tl.constexpr):
    """TILE_K pixels of all rows `along`, as [row, pixel]: those of `step`, of which an image has
    `each`."""
    at = step % each * TILE_K + tl.arange(0, TILE_K)
    image = (step // each).to(tl.int64)
    mask = there[:, None] & (at < pixels)[None, :]
    return tl.load((along + image * of_image)[:, None] + at[None, :], mask=mask, other=0.0)


@triton.jit
def conv_askew_weights(
    x, y, made, images, channels, filters, pixels, of_x, of_y, of_weights, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, AHEAD: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, TWO_STAGE: tl.constexpr,
):  # fmt: skip
    """TILE_M filters and TILE_N channels of the weights, from a part of the steps of all images."""
    tiles_n = tl.cdiv(channels, TILE_N)
    tiles = tl.cdiv(filters, TILE_M) * tiles_n
    part = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    rows = tile // tiles_n * TILE_M + tl.arange(0, TILE_M)
    cols = tile % tiles_n * TILE_N + tl.arange(0, TILE_N)
    rows_there = rows < filters
    cols_there = cols < channels
    each = tl.cdiv(pixels, TILE_K)
    share = images * each // splits  # and one more for each of the first parts
    more = images * each - share * splits
    first = part * share + min(part, more)
    past = first + share + (part < more).to(tl.int32)
    y += rows * of_y[1]
    x += cols * of_x[1]
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    if AHEAD:
        a = _columns(first, each, y, of_y[0], pixels, rows_there & (first < past), TILE_K)
        b = _columns(first, each, x, of_x[0], pixels, cols_there & (first < past), TILE_K)
    for step in tl.range(first, past, num_stages=STAGES):
        if AHEAD:
            goes_on = step + 1 < past
            next_a = _columns(step + 1, each, y, of_y[0], pixels, rows_there & goes_on, TILE_K)
            next_b = _columns(step + 1, each, x, of_x[0], pixels, cols_there & goes_on, TILE_K)
        else:
            a = _columns(step, each, y, of_y[0], pixels, rows_there, TILE_K)
            b = _columns(step, each, x, of_x[0], pixels, cols_there, TILE_K)
        acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        if AHEAD:
            a = next_a
            b = next_b
    mask = rows_there[:, None] & cols_there[None, :]
    if TWO_STAGE:
        made += part * filters.to(tl.int64) * channels
        tl.store(made + (rows * channels)[:, None] + cols[None, :], acc, mask=mask)
    else:
        places = (rows * of_weights)[:, None] + cols[None, :]
        tl.store(made + places, acc.to(made.dtype.element_ty), mask=mask)
