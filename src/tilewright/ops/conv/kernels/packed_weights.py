"""The gradient of the weights from packed images of few channels, through pointers, on every
architecture: the second kernel of pipeline ``packed`` in that direction.

Idea. Rows are filters, columns the elements of a filter's packed rows (`packing`), SPREAD of each
row, and the sum is over pixels of y, some of one line in a step. A pixel meets a run of packed x
for each row of the filter. A tile has the columns of several rows, so that few tiles read y again:
7×7 filters of 3 channels are one tile of 256 columns. Columns that are no weight (zeros behind a
pixel's channels, and elements behind a run) are summed too, but not stored; no sum meets another's
elements.

Data movement. As in `packed`: addresses are those of the pixels plus a number for each column. Many
workgroups share the pixels; each stores its sums to its own part of a workspace, and
`conv_few_totals` adds the parts in order, so results repeat bit for bit.

What limits it: addresses and loads of the runs' vectors, and for few weights the sum of parts.
Measurements: docs/notes/conv-packed.md.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.places import apart_line, channel, offset
from tilewright.ops.device.schedule import tile_coordinates


@triton.jit
def conv_packed_weights(
    packed_x, y, sums, y_strides, images, channels, group_k, outs, taps, stride, packed_strides,
    packed_steps, pitch, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    NDIM: tl.constexpr, VECTOR: tl.constexpr, SPREAD: tl.constexpr, UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A part of a tile's sums: of [filters, taps, channels], in fp32. packed_strides, packed_steps:
    see `packing`. pitch: channels of a packed pixel. The others are those of the catalogue
    (`arguments`)."""
    filter_rows = taps[0] * taps[1]
    run = taps[2] * pitch // VECTOR * VECTOR  # so the compiler knows a multiple
    tiles_m = tl.cdiv(group_k, TILE_M)
    tiles_n = tl.cdiv(filter_rows * SPREAD, TILE_N)
    tiles = tiles_m * tiles_n
    part = tl.program_id(0) // tiles
    tile_m, tile_n = tile_coordinates(tl.program_id(0) % tiles, tiles_m, tiles_n, GROUP_M)
    k = tile_m * TILE_M + tl.arange(0, TILE_M)
    k_there = k < group_k
    col = tile_n * TILE_N + tl.arange(0, TILE_N)
    row = col // SPREAD
    within = col % SPREAD
    cols_there = (row < filter_rows) & (within < run)
    to = row // taps[1] * packed_steps[0] + row % taps[1] * packed_steps[1] + within

    across = tl.cdiv(outs[2], TILE_K)
    steps = images * outs[0] * outs[1] * across
    share = tl.cdiv(steps, splits)
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    for step in range(part * share, min((part + 1) * share, steps)):
        image, d, h = apart_line(step // across, outs, NDIM)
        w = step % across * TILE_K + tl.arange(0, TILE_K)
        there = w < outs[2]
        line = image * y_strides[0] + offset(d, h, 0, y_strides, NDIM)
        a = tl.load(
            y + ((line + w * y_strides[4])[:, None] + channel(k, y_strides[1], UNIT)[None, :]),
            mask=there[:, None] & k_there[None, :], other=0.0,
        )  # fmt: skip
        line = image * packed_strides[0] + d * stride[0] * packed_strides[1]
        line += h * stride[1] * packed_strides[2]
        base = tl.multiple_of(line + w * packed_steps[2], VECTOR)
        b = tl.load(
            packed_x + (base[:, None] + to[None, :]),
            mask=there[:, None] & cols_there[None, :], other=0.0,
        )  # fmt: skip
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)

    c = within % pitch
    places = (row * taps[2] + within // pitch) * channels + c
    each = filter_rows * taps[2] * channels
    sums += part * group_k.to(tl.int64) * each
    mask = k_there[:, None] & (cols_there & (c < channels))[None, :]
    tl.store(sums + ((k * each)[:, None] + places[None, :]), acc, mask=mask)
