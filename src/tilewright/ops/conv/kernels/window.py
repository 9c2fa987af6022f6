"""Depthwise forward, and the gradient of the data, with a window that slides along the width.

Idea. A row of a tile is a strip: four neighbouring pixels of the result. Along a row of the filter,
four pixels of the source are in registers; each tap loads one more, adds its product to all four
sums, and the window moves on by a pixel. So a filter of S columns reads (S + 3) / 4 pixels for each
pixel of the result and not S, and weights once for four pixels. It needs neighbouring pixels to
see neighbouring pixels: stride and dilation are 1 along the width.

In the gradient of the data, the window slides the same way and taps come last first.

Data movement. As in `depthwise`: from memory once, then from L1 and L2 for the filter's other rows.

What limits it: memory for small filters; then conversions to fp32 and multiply-adds. A strip that
ends behind the image computes pixels for nothing: images whose width is no multiple of four.
Compiled for 2-D in bf16 with 16 strips and 64 channels in 4 warps: 96 registers and 8 bytes of
spills on sm_90, 62 registers and none on gfx942. Not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.conv.kernels.places import apart, channel, inside, offset, walk

STRIP = tl.constexpr(4)
"""Pixels of a strip, for each of which there is a sum of its own below."""


@triton.jit
def _load(
    source, base, at_d, at_h, at_w, there, cols_there, sizes, source_strides,
    NDIM: tl.constexpr, INT_ACC: tl.constexpr,
):  # fmt: skip
    seen = there & inside(at_d, at_h, at_w, sizes, NDIM)
    to = offset(at_d, at_h, at_w, source_strides, NDIM)
    x = tl.load(
        source + (base + to[:, None]), mask=seen[:, None] & cols_there[None, :], other=0.0
    )  # fmt: skip
    return x.to(tl.int32 if INT_ACC else tl.float32)


@triton.jit
def _finish(
    acc, made, extra, image, d, h, w, there, cols, cols_there, full, made_strides,
    NDIM: tl.constexpr, UNIT_OUT: tl.constexpr,
    CHAIN: tl.constexpr, TAKES: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Store one pixel of each strip."""
    mask = (there & (w < full[2]))[:, None] & cols_there[None, :]
    places = image * made_strides[0] + offset(d, h, w, made_strides, NDIM)
    places = places[:, None] + channel(cols, made_strides[1], UNIT_OUT)[None, :]
    finish(acc, made, extra, places, cols, mask, cols_there, CHAIN, TAKES, LARGEST)


@triton.jit
def conv_window(
    source, weights, made, extra, source_strides, weight_strides, made_strides, images,
    channels_out, sizes, full, walked, taps, stride, dilation, before, phase, common, inverse,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, NDIM: tl.constexpr, DATA: tl.constexpr,
    UNIT: tl.constexpr, UNIT_OUT: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of the result. The arguments are those of the catalogue (`arguments`)."""
    strips = tl.cdiv(walked[2], STRIP)
    rows_of_strips = images * walked[0] * walked[1] * strips
    tiles_n = tl.cdiv(channels_out, TILE_N)
    tiles = tl.cdiv(rows_of_strips, TILE_M) * tiles_n
    tile = tl.program_id(0) % tiles
    class_d = 0
    class_h = 0
    if DATA:
        _, class_d, class_h, _ = apart(tl.program_id(0) // tiles, stride, NDIM)
    first_h, count_h, apart_h, origin_h, pixel_h, tap_h = walk(
        class_h, taps[1], stride[1], dilation[1], before[1], phase[1], common[1], inverse[1], DATA
    )
    first_d, count_d, apart_d, origin_d, pixel_d, tap_d = walk(
        class_d, taps[0], stride[0], dilation[0], before[0], phase[0], common[0], inverse[0], DATA
    )
    rows = tile // tiles_n * TILE_M + tl.arange(0, TILE_M)
    cols = tile % tiles_n * TILE_N + tl.arange(0, TILE_N)
    image, d, h, strip = apart(rows, (walked[0], walked[1], strips), NDIM)
    w = strip * STRIP
    at_d = origin_d + d * pixel_d
    at_h = origin_h + h * pixel_h
    # The source's first pixel of the strip's first; the gradient of the data sees its taps from
    # the last to the first.
    at_w = w - before[2]
    if DATA:
        at_w = w + before[2] - (taps[2] - 1)
        d = class_d + d * stride[0]
        h = class_h + h * stride[1]
    there = rows < rows_of_strips
    if DATA:
        there = there & inside(d, h, w, full, NDIM)
    cols_there = cols < channels_out
    base = image * source_strides[0]
    base = base[:, None] + channel(cols, source_strides[1], UNIT)[None, :]
    w_cols = cols * weight_strides[0]
    acc0 = tl.zeros((TILE_M, TILE_N), tl.int32 if INT_ACC else tl.float32)
    acc1 = acc0
    acc2 = acc0
    acc3 = acc0
    for j_d in range(count_d):
        for j_h in range(count_h):
            from_d = at_d + j_d * tap_d
            from_h = at_h + j_h * tap_h
            x0 = _load(
                source, base, from_d, from_h, at_w, there, cols_there, sizes, source_strides,
                NDIM, INT_ACC,
            )  # fmt: skip
            x1 = _load(
                source, base, from_d, from_h, at_w + 1, there, cols_there, sizes, source_strides,
                NDIM, INT_ACC,
            )  # fmt: skip
            x2 = _load(
                source, base, from_d, from_h, at_w + 2, there, cols_there, sizes, source_strides,
                NDIM, INT_ACC,
            )  # fmt: skip
            for j_w in range(taps[2]):
                x3 = _load(
                    source, base, from_d, from_h, at_w + (j_w + 3), there, cols_there, sizes,
                    source_strides, NDIM, INT_ACC,
                )  # fmt: skip
                tap = j_w
                if DATA:
                    tap = taps[2] - 1 - j_w
                of = offset(
                    first_d + j_d * apart_d, first_h + j_h * apart_h, tap, weight_strides, NDIM
                )
                factor = tl.load(weights + (w_cols + of), mask=cols_there, other=0.0)
                factor = factor.to(acc0.dtype)[None, :]
                acc0 += x0 * factor
                acc1 += x1 * factor
                acc2 += x2 * factor
                acc3 += x3 * factor
                x0 = x1
                x1 = x2
                x2 = x3
    _finish(
        acc0, made, extra, image, d, h, w, there, cols, cols_there, full, made_strides,
        NDIM, UNIT_OUT, CHAIN, TAKES, LARGEST,
    )  # fmt: skip
    _finish(
        acc1, made, extra, image, d, h, w + 1, there, cols, cols_there, full, made_strides,
        NDIM, UNIT_OUT, CHAIN, TAKES, LARGEST,
    )  # fmt: skip
    _finish(
        acc2, made, extra, image, d, h, w + 2, there, cols, cols_there, full, made_strides,
        NDIM, UNIT_OUT, CHAIN, TAKES, LARGEST,
    )  # fmt: skip
    _finish(
        acc3, made, extra, image, d, h, w + 3, there, cols, cols_there, full, made_strides,
        NDIM, UNIT_OUT, CHAIN, TAKES, LARGEST,
    )  # fmt: skip
