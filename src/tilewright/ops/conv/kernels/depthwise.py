"""Depthwise convolutions in all directions: every channel has one filter of its own.

Idea. There is nothing for the matrix units: a result is a sum over a filter's taps. Workgroups have
tiles of pixels and channels; lanes hold vectors of channels, and walk the taps with fp32 sums in
registers. The gradient of the data is the same walk in each residue class (see `geometry`). The
gradient of the weights keeps sums [pixels of a step, taps, channels], so that lanes add up without
meeting; they meet once, at the end. Parts of the pixels are added by `weights.conv_few_totals`, for
all depthwise kernels.

Data movement. Every tap reads its pixels: from memory for the first, then from L1 and L2. Weights
are few and stay in L1.

What limits it: memory for small filters; from 7×7 on, reads from L1 and multiply-adds. A window
that slides along the width would keep pixels in registers: `held` has it, and is faster
(docs/notes/conv-depthwise.md).
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.conv.kernels.places import apart, channel, inside, offset, walk
from tilewright.ops.device.division import apart_by


@triton.jit
def conv_depthwise(
    source, weights, made, extra, source_strides, weight_strides, made_strides, images,
    channels_out, sizes, full, walked, walked_by, taps, stride, dilation, before, phase, common,
    inverse,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, NDIM: tl.constexpr, DATA: tl.constexpr,
    UNIT: tl.constexpr, UNIT_OUT: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of the result. The arguments are those of the catalogue (`arguments`)."""
    pixels = images * walked[0] * walked[1] * walked[2]
    tiles_n = tl.cdiv(channels_out, TILE_N)
    tiles = tl.cdiv(pixels, TILE_M) * tiles_n
    tile = tl.program_id(0) % tiles
    class_d = 0
    class_h = 0
    class_w = 0
    if DATA:
        _, class_d, class_h, class_w = apart(tl.program_id(0) // tiles, stride, NDIM)
    first_w, count_w, apart_w, origin_w, pixel_w, tap_w = walk(
        class_w, taps[2], stride[2], dilation[2], before[2], phase[2], common[2], inverse[2], DATA
    )
    first_h, count_h, apart_h, origin_h, pixel_h, tap_h = walk(
        class_h, taps[1], stride[1], dilation[1], before[1], phase[1], common[1], inverse[1], DATA
    )
    first_d, count_d, apart_d, origin_d, pixel_d, tap_d = walk(
        class_d, taps[0], stride[0], dilation[0], before[0], phase[0], common[0], inverse[0], DATA
    )
    # Neighbouring workgroups have the same pixels, whose channels are neighbours in memory.
    rows = tile // tiles_n * TILE_M + tl.arange(0, TILE_M)
    cols = tile % tiles_n * TILE_N + tl.arange(0, TILE_N)
    image, d, h, w = apart_by(rows, walked, walked_by, NDIM)
    at_d = origin_d + d * pixel_d
    at_h = origin_h + h * pixel_h
    at_w = origin_w + w * pixel_w
    there = rows < pixels
    if DATA:
        d = class_d + d * stride[0]
        h = class_h + h * stride[1]
        w = class_w + w * stride[2]
        there = there & inside(d, h, w, full, NDIM)
    cols_there = cols < channels_out
    base = image * source_strides[0] + offset(at_d, at_h, at_w, source_strides, NDIM)
    base = base[:, None] + channel(cols, source_strides[1], UNIT)[None, :]
    w_cols = cols * weight_strides[0]
    acc = tl.zeros((TILE_M, TILE_N), tl.int32 if INT_ACC else tl.float32)
    for j_d in range(count_d):
        for j_h in range(count_h):
            for j_w in range(count_w):
                seen = inside(
                    at_d + j_d * tap_d, at_h + j_h * tap_h, at_w + j_w * tap_w, sizes, NDIM
                )
                to = offset(j_d * tap_d, j_h * tap_h, j_w * tap_w, source_strides, NDIM)
                x = tl.load(
                    source + (base + to), mask=(seen & there)[:, None] & cols_there[None, :],
                    other=0.0,
                )  # fmt: skip
                of = offset(
                    first_d + j_d * apart_d, first_h + j_h * apart_h, first_w + j_w * apart_w,
                    weight_strides, NDIM,
                )  # fmt: skip
                factor = tl.load(weights + (w_cols + of), mask=cols_there, other=0.0)
                acc += x.to(acc.dtype) * factor.to(acc.dtype)[None, :]
    places = image * made_strides[0] + offset(d, h, w, made_strides, NDIM)
    places = places[:, None] + channel(cols, made_strides[1], UNIT_OUT)[None, :]
    finish(
        acc, made, extra, places, cols, there[:, None] & cols_there[None, :], cols_there,
        CHAIN, TAKES, LARGEST,
    )  # fmt: skip


@triton.jit
def conv_depthwise_weights(
    x, y, made, x_strides, y_strides, made_strides, images, channels_out, sizes, outs, outs_by,
    taps, stride, dilation, before, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, NDIM: tl.constexpr,
    UNIT: tl.constexpr, TWO_STAGE: tl.constexpr,
):  # fmt: skip
    """TILE_M taps of TILE_N channels, from a part of the pixels, TILE_K at a time."""
    all_taps = taps[0] * taps[1] * taps[2]
    tiles_m = tl.cdiv(all_taps, TILE_M)
    tiles_n = tl.cdiv(channels_out, TILE_N)
    part = tl.program_id(0) // (tiles_m * tiles_n)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    tap = tile // tiles_n * TILE_M + tl.arange(0, TILE_M)
    cols = tile % tiles_n * TILE_N + tl.arange(0, TILE_N)
    tap_there = tap < all_taps
    cols_there = cols < channels_out
    _, tap_d, tap_h, tap_w = apart(tap, taps, NDIM)
    from_d = tap_d * dilation[0] - before[0]
    from_h = tap_h * dilation[1] - before[1]
    from_w = tap_w * dilation[2] - before[2]
    to = offset(from_d, from_h, from_w, x_strides, NDIM)
    columns = channel(cols, x_strides[1], UNIT)
    pixels = images * outs[0] * outs[1] * outs[2]
    share = tl.cdiv(tl.cdiv(pixels, TILE_K), splits) * TILE_K
    acc = tl.zeros((TILE_K, TILE_M, TILE_N), tl.float32)
    for p0 in range(part * share, min((part + 1) * share, pixels), TILE_K):
        p = p0 + tl.arange(0, TILE_K)
        p_there = p < pixels
        image, d, h, w = apart_by(p, outs, outs_by, NDIM)
        of_y = image * y_strides[0] + offset(d, h, w, y_strides, NDIM)
        g = tl.load(
            y + (of_y[:, None] + channel(cols, y_strides[1], UNIT)[None, :]),
            mask=p_there[:, None] & cols_there[None, :], other=0.0,
        )  # fmt: skip
        d = d * stride[0]
        h = h * stride[1]
        w = w * stride[2]
        of_x = image * x_strides[0] + offset(d, h, w, x_strides, NDIM)
        seen = inside(
            d[:, None] + from_d[None, :], h[:, None] + from_h[None, :],
            w[:, None] + from_w[None, :], sizes, NDIM,
        )  # fmt: skip
        seen = seen & p_there[:, None] & tap_there[None, :]
        places = (of_x[:, None] + to[None, :])[:, :, None] + columns[None, None, :]
        v = tl.load(x + places, mask=seen[:, :, None] & cols_there[None, None, :], other=0.0)
        acc += v.to(tl.float32) * g.to(tl.float32)[:, None, :]
    total = tl.sum(acc, 0)
    mask = tap_there[:, None] & cols_there[None, :]
    if TWO_STAGE:
        count = channels_out.to(tl.int64) * all_taps
        places = (cols * all_taps)[None, :] + tap[:, None]
        tl.store(made + part * count + places, total, mask=mask)
    else:
        places = offset(tap_d, tap_h, tap_w, made_strides, NDIM)
        places = places[:, None] + (cols * made_strides[0])[None, :]
        tl.store(made + places, total.to(made.dtype.element_ty), mask=mask)
