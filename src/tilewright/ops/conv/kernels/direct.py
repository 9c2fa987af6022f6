"""Convolutions in all directions on the vector units, where pixels are neighbours in memory.

Idea. Of channels-first images, a plane of a channel is a stretch of memory. A workgroup makes
TILE_M neighbouring pixels of one channel, of TILE_N images: neighbouring threads have neighbouring
pixels, so that all loads and stores of a warp are of neighbours, whatever the tap. It walks boxes
of what a pixel sees: BOX_C channels of the group and BOX_D × BOX_H × BOX_W taps, which are written
out. So their loads are on their way at once, rows and columns are compared with the image once for
all taps, and taps of a row are constants from one address. Weights are scalars. Depthwise filters,
and layers of few channels or few filters, need no more than this; nothing is turned.

Pixels of a tile are numbered through rows and planes, so that small images fill it too. In the
gradient of the data, a tile is of one residue class (see `geometry`).

In the gradient of the weights, a workgroup has a box of taps of one filter and one channel, and
walks tiles of pixels of y; threads have a pixel and its images, keep a sum for each tap, and add
these up at the end. Parts of the pixels are added by `weights.conv_few_totals`.

Data movement. Every tap reads its pixels: from memory for the first, then from L1. Workgroups of
several filters read the same pixels from L2. Forward and in the gradient of the data,
pixels and images past the last are read as the last, and not stored.

What limits it: loads of one element for each lane, of which a compute unit does 32 in a clock, so
one for each product, and some instructions beside it; memory for small filters.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.conv.kernels.places import apart, inside, offset, walk
from tilewright.ops.conv.kernels.strips import zeros
from tilewright.ops.device.division import apart_by


@triton.jit
def _within(at, size):
    return (at >= 0) & (at < size)


@triton.jit
def _walk(
    residue, taps, stride, dilation, before, phase, common, inverse, THERE: tl.constexpr,
    DATA: tl.constexpr,
):  # fmt: skip
    """As `walk`. With a stride of 1 the gradient of the data has one class, whose walk takes no
    division. THERE: whether the problem has the dimension."""
    if not THERE:
        found = (0, 1, 0, 0, 0, 0)
    elif not DATA:
        found = walk(residue, taps, stride, dilation, before, phase, common, inverse, False)
    else:
        first = taps * 0
        count = taps
        taps_apart = first + 1
        origin = before
        by_tap = -dilation
        if stride > 1:
            first, count, taps_apart, origin, _, by_tap = walk(
                residue, taps, stride, dilation, before, phase, common, inverse, True
            )
        found = (first, count, taps_apart, origin, 1, by_tap)
    return found


@triton.jit
def _beside(strides):
    """The strides of an array whose pixels are neighbours. Of one column, the stride is said to be
    0, and taps beside it are counted from it."""
    return strides[0], strides[1], strides[2], strides[3], 1


@triton.jit
def conv_direct(
    source, weights, made, extra, source_strides, weight_strides, made_strides, images, groups,
    channels_in, channels_out, sizes, full, walked, walked_by, taps, stride, dilation, before,
    phase, common, inverse,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, BOX_C: tl.constexpr, BOX_D: tl.constexpr,
    BOX_H: tl.constexpr, BOX_W: tl.constexpr, NDIM: tl.constexpr, DATA: tl.constexpr,
    INT_ACC: tl.constexpr, TAKES: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of the result. The arguments are those of the catalogue (`arguments`)."""
    ALONG: tl.constexpr = -1 if DATA else 1  # the pixel of the next tap of a row
    pixels = walked[0] * walked[1] * walked[2]
    number = tl.program_id(0)
    class_d = number * 0
    class_h = number * 0
    class_w = number * 0
    if DATA:  # noqa: SIM102 - the compiler decides the first alone
        if stride[0] * stride[1] * stride[2] > 1:
            number, class_d, class_h, class_w = apart(number, stride, NDIM)
    first_w, count_w, apart_w, origin_w, pixel_w, tap_w = _walk(
        class_w, taps[2], stride[2], dilation[2], before[2], phase[2], common[2], inverse[2],
        True, DATA,
    )  # fmt: skip
    first_h, count_h, apart_h, origin_h, pixel_h, tap_h = _walk(
        class_h, taps[1], stride[1], dilation[1], before[1], phase[1], common[1], inverse[1],
        NDIM > 1, DATA,
    )  # fmt: skip
    first_d, count_d, apart_d, origin_d, pixel_d, tap_d = _walk(
        class_d, taps[0], stride[0], dilation[0], before[0], phase[0], common[0], inverse[0],
        NDIM > 2, DATA,
    )  # fmt: skip
    tiles_m = tl.cdiv(pixels, TILE_M)
    channels = groups * channels_out
    rows = number % tiles_m * TILE_M + tl.arange(0, TILE_M)
    channel = number // tiles_m % channels
    group = channel // channels_out
    image = number // tiles_m // channels * TILE_N + tl.arange(0, TILE_N)
    there = rows < pixels
    image_there = image < images
    _, d, h, w = apart_by(tl.minimum(rows, pixels - 1), walked, walked_by, NDIM)
    image = tl.minimum(image, images - 1)
    at_d = origin_d + d * pixel_d
    at_h = origin_h + h * pixel_h
    at_w = origin_w + w * pixel_w
    along = _beside(source_strides)
    base = offset(at_d, at_h, at_w, along, NDIM)[:, None]
    base = source + (base + (image * source_strides[0])[None, :])
    # What the first tap of the first channel adds; weights of the data's gradient are walked along
    # filters.
    of_source = group * channels_in * source_strides[1]
    if DATA:
        of_weights = group * channels_in * weight_strides[0]
        of_weights += (channel - group * channels_out) * weight_strides[1]
        next_weights = weight_strides[0]
    else:
        of_weights = channel * weight_strides[0]
        next_weights = weight_strides[1]
    of_weights += offset(first_d, first_h, first_w, weight_strides, NDIM)
    acc = tl.zeros((TILE_M, TILE_N), tl.int32 if INT_ACC else tl.float32)
    for c_0 in range(0, channels_in, BOX_C):
        for d_0 in range(0, count_d, BOX_D):
            for h_0 in range(0, count_h, BOX_H):
                for w_0 in range(0, count_w, BOX_W):
                    for box in tl.static_range(BOX_C * BOX_D * BOX_H):
                        j_c = c_0 + box // (BOX_D * BOX_H)
                        j_d = d_0 + box // BOX_H % BOX_D
                        j_h = h_0 + box % BOX_H
                        known = (j_c < channels_in) & (j_d < count_d) & (j_h < count_h)
                        row = there & known
                        if NDIM > 1:
                            row = row & _within(at_h + j_h * tap_h, sizes[1])
                        if NDIM > 2:
                            row = row & _within(at_d + j_d * tap_d, sizes[0])
                        to = of_source + j_c * source_strides[1]
                        to += offset(j_d * tap_d, j_h * tap_h, w_0 * tap_w, along, NDIM)
                        line = base + to
                        of = of_weights + j_c * next_weights
                        of += offset(
                            j_d * apart_d, j_h * apart_h, w_0 * apart_w, weight_strides, NDIM
                        )
                        for i in tl.static_range(BOX_W):
                            column = _within(at_w + (w_0 * tap_w + i * ALONG), sizes[2])
                            if BOX_W > 1:
                                column = column & (w_0 + i < count_w)
                            x = tl.load(line + i * ALONG, mask=(row & column)[:, None], other=0.0)
                            factor = tl.load(
                                weights + of, mask=known & (w_0 + i < count_w), other=0.0
                            )
                            acc += x.to(acc.dtype) * factor.to(acc.dtype)
                            of += apart_w * weight_strides[4]
    if DATA:
        d = class_d + d * stride[0]
        h = class_h + h * stride[1]
        w = class_w + w * stride[2]
        there = there & inside(d, h, w, full, NDIM)
    places = offset(d, h, w, made_strides, NDIM) + channel * made_strides[1]
    places = places[:, None] + (image * made_strides[0])[None, :]
    finish(
        acc, made, extra, places, channel + image * 0, there[:, None] & image_there[None, :],
        image_there, CHAIN, TAKES, LARGEST,
    )  # fmt: skip


@triton.jit
def conv_direct_weights(
    x, y, made, x_strides, y_strides, made_strides, images, groups, group_c, group_k, sizes, outs,
    outs_by, taps, stride, dilation, before, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, BOX_D: tl.constexpr, BOX_H: tl.constexpr,
    BOX_W: tl.constexpr, NDIM: tl.constexpr, TWO_STAGE: tl.constexpr,
):  # fmt: skip
    """A box of taps of a filter and a channel, from a part of the pixels."""
    boxes_w = tl.cdiv(taps[2], BOX_W)
    boxes_h = tl.cdiv(taps[1], BOX_H)
    boxes = tl.cdiv(taps[0], BOX_D) * boxes_h * boxes_w
    box = tl.program_id(0) % boxes
    first_w = box % boxes_w * BOX_W
    first_h = box // boxes_w % boxes_h * BOX_H
    first_d = box // boxes_w // boxes_h * BOX_D
    pairs = groups * group_k * group_c
    pair = tl.program_id(0) // boxes % pairs
    part = tl.program_id(0) // boxes // pairs
    k = pair // group_c
    c = k // group_k * group_c + pair % group_c
    x += c * x_strides[1]
    y += k * y_strides[1]
    pixels = outs[0] * outs[1] * outs[2]
    tiles_m = tl.cdiv(pixels, TILE_M)
    tiles = tiles_m * tl.cdiv(images, TILE_N)
    share = tl.cdiv(tiles, splits)
    along_x = _beside(x_strides)
    along_y = _beside(y_strides)
    like = tl.zeros((TILE_M,), tl.float32)
    sums = zeros(BOX_D * BOX_H * BOX_W, like)
    for tile in range(part * share, min((part + 1) * share, tiles)):
        rows = tile % tiles_m * TILE_M + tl.arange(0, TILE_M)
        image = tile // tiles_m * TILE_N + tl.arange(0, TILE_N)
        there = rows < pixels
        image_there = image < images
        _, d, h, w = apart_by(tl.minimum(rows, pixels - 1), outs, outs_by, NDIM)
        image = tl.minimum(image, images - 1)
        of_y = offset(d, h, w, along_y, NDIM)[:, None] + (image * y_strides[0])[None, :]
        g = tl.load(y + of_y, mask=there[:, None] & image_there[None, :], other=0.0)
        g = g.to(tl.float32)
        at_d = d * stride[0] - before[0] + first_d * dilation[0]
        at_h = h * stride[1] - before[1] + first_h * dilation[1]
        at_w = w * stride[2] - before[2] + first_w * dilation[2]
        base = offset(at_d, at_h, at_w, along_x, NDIM)[:, None]
        base = x + (base + (image * x_strides[0])[None, :])
        more = zeros(0, like)
        for i in tl.static_range(BOX_D * BOX_H * BOX_W):
            to_d = i // (BOX_H * BOX_W) * dilation[0]
            to_h = i // BOX_W % BOX_H * dilation[1]
            row = there
            if NDIM > 1:
                row = row & _within(at_h + to_h, sizes[1])
            if NDIM > 2:
                row = row & _within(at_d + to_d, sizes[0])
            line = base + offset(to_d, to_h, to_h * 0, along_x, NDIM)
            column = _within(at_w + i % BOX_W, sizes[2])
            mask = (row & column)[:, None]
            if TILE_N > 1:
                mask = mask & image_there[None, :]
            v = tl.load(line + i % BOX_W, mask=mask, other=0.0)
            more = more + (sums[i] + tl.sum(v.to(tl.float32) * g, 1),)
        sums = more
    for i in tl.static_range(BOX_D * BOX_H * BOX_W):
        total = tl.sum(sums[i], 0)
        tap_d = first_d + i // (BOX_H * BOX_W)
        tap_h = first_h + i // BOX_W % BOX_H
        tap_w = first_w + i % BOX_W
        if TWO_STAGE:
            count = pairs.to(tl.int64) * taps[0] * taps[1] * taps[2]
            tap = (tap_d * taps[1] + tap_h) * taps[2] + tap_w
            place = part * count + (k * taps[0] * taps[1] * taps[2] + tap) * group_c
            place += pair % group_c
        else:
            place = k * made_strides[0] + pair % group_c * made_strides[1]
            place += offset(tap_d, tap_h, tap_w, made_strides, NDIM)
        known = (tap_d < taps[0]) & (tap_h < taps[1]) & (tap_w < taps[2])
        tl.store(made + place, total.to(made.dtype.element_ty), mask=known)
