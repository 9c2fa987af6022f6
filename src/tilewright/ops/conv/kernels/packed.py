"""Forward convolution of packed images of few channels, through pointers, on every architecture:
the second kernel of pipeline ``packed``.

Idea. Rows are pixels of one line of the result, columns its channels. In packed x (`packing`) a row
of the filter with its channels is one run of elements for each pixel, and runs of neighbouring
pixels overlap. A step multiplies TILE_K elements of the runs by as many of the filter's row. The
result is the product that an image unfolded into a matrix would have; the matrix exists nowhere.

Data movement. All addresses of a step are the tile's first ones plus a number, and masks are of the
run's end alone. Vectors are of 4 or 8 elements. Runs overlap in L1, and the rows of a filter's
height in L2. Elements behind a run belong to other pixels' runs. They are masked, as an infinite
one times the zeros there would be NaN.

What limits it. Addresses and loads of the runs' vectors, about 50 instructions of a lane for each;
and storing the result, which is many times as large as x. In graphs on an H200 four stems run 2.25
to 3.04 times as fast as cuDNN's. Measurements, and what was tried: docs/notes/conv-packed.md.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.conv.kernels.places import apart_line, channel, offset
from tilewright.ops.device.schedule import tile_coordinates


@triton.jit
def conv_packed(
    packed_x, packed_w, made, extra, made_strides, images, channels_out, walked, taps, stride,
    packed_strides, packed_steps, pitch, row_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    NDIM: tl.constexpr, VECTOR: tl.constexpr, UNIT_OUT: tl.constexpr, PRECISION: tl.constexpr,
    INT_ACC: tl.constexpr, TAKES: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of the result. packed_strides, packed_steps: see `packing`. pitch: channels of a
    packed pixel. row_w: elements of a packed filter's row. VECTOR: elements that all runs begin at
    multiples of. The others are those of the catalogue (`arguments`)."""
    across = tl.cdiv(walked[2], TILE_M)
    tiles_m = images * walked[0] * walked[1] * across
    tiles_n = tl.cdiv(channels_out, TILE_N)
    tile_m, tile_n = tile_coordinates(tl.program_id(0), tiles_m, tiles_n, GROUP_M)
    image, d, h = apart_line(tile_m // across, walked, NDIM)
    w = tile_m % across * TILE_M + tl.arange(0, TILE_M)
    there = w < walked[2]
    cols = tile_n * TILE_N + tl.arange(0, TILE_N)
    cols_there = cols < channels_out

    line = image * packed_strides[0] + d * stride[0] * packed_strides[1]
    line += h * stride[1] * packed_strides[2]
    base = tl.multiple_of(line + w * packed_steps[2], VECTOR)
    k = tl.arange(0, TILE_K)
    run = taps[2] * pitch // VECTOR * VECTOR  # so the compiler knows a multiple
    filter_rows = taps[0] * taps[1]
    w_base = cols * (filter_rows * row_w)

    acc = tl.zeros((TILE_M, TILE_N), tl.int32 if INT_ACC else tl.float32)
    row = 0
    tap_h = 0
    first = 0
    to = line * 0  # of the strides' type
    for _ in range(filter_rows * tl.cdiv(run, TILE_K)):
        at = tl.multiple_of(to + first, VECTOR)
        within = (first + k < run)[None, :]
        a = tl.load(
            packed_x + (base[:, None] + (at + k)[None, :]), mask=there[:, None] & within, other=0.0
        )
        b = tl.load(
            packed_w + (w_base[None, :] + (row * row_w + first + k)[:, None]),
            mask=cols_there[None, :], other=0.0,
        )  # fmt: skip
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        # The rest of the run, or the next row of the filter.
        first += TILE_K
        over = first >= run
        first = tl.where(over, 0, first)
        row = tl.where(over, row + 1, row)
        tap_h = tl.where(over, tap_h + 1, tap_h)
        to = tl.where(over, to + packed_steps[1], to)
        deep = tap_h == taps[1]
        tap_h = tl.where(deep, 0, tap_h)
        to = tl.where(deep, to + packed_steps[0] - taps[1] * packed_steps[1], to)

    line = image * made_strides[0] + offset(d, h, 0, made_strides, NDIM)
    places = (line + w * made_strides[4])[:, None]
    places = places + channel(cols, made_strides[1], UNIT_OUT)[None, :]
    finish(
        acc, made, extra, places, cols, there[:, None] & cols_there[None, :], cols_there, CHAIN,
        TAKES, LARGEST,
    )  # fmt: skip
