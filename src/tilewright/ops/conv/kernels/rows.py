"""Depthwise convolutions with large filters, in all directions: a row of the filter at a time.

Idea. A row of a tile is a strip of neighbouring pixels of the result. For each row of the filter,
the pixels of the source that the strip meets are loaded once and are in registers, as are the row's
taps, and all products of the two follow: the row is unrolled, and the filter's other rows are a
loop. So S·STRIP products take S + STRIP - 1 loads of pixels and S of taps; tap by tap they would
take S·STRIP. The gradient of the data walks the rows of its residue classes (see `geometry`); its
width has a stride of 1.

The gradient of the weights has a tile for each row of the filter: registers hold a sum for each tap
of the row. Rows of a tile add theirs up at the end; parts of the pixels are added by
`conv_few_totals`.

Data movement. The filter's rows read the same rows of the source again, from L1 or L2: a window
that moved down too, as `held` has it, would need registers for each tap.

What limits it: multiply-adds. A 31×31 layer takes 716 µs forward on an H200, and cuDNN 3363:
docs/notes/conv-rows.md.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.conv.kernels.places import apart, channel, inside, offset, walk
from tilewright.ops.conv.kernels.strips import joined, pixels_of_row, seen_by, zeros


@triton.jit
def conv_rows(
    source, weights, made, extra, source_strides, weight_strides, made_strides, images,
    channels_out, sizes, full, walked, taps, stride, dilation, before, phase, common, inverse,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, NDIM: tl.constexpr, DATA: tl.constexpr,
    TAPS_W: tl.constexpr, STEP_W: tl.constexpr, STRIP: tl.constexpr, FILTERS: tl.constexpr,
    UNIT: tl.constexpr, UNIT_OUT: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of the result: TILE_M strips of TILE_N channels. The arguments are those of the
    catalogue (`arguments`)."""
    PIXELS: tl.constexpr = (STRIP - 1) * STEP_W + TAPS_W
    strips = tl.cdiv(walked[2], STRIP)
    lines = images * walked[0] * walked[1] * strips
    tiles_n = tl.cdiv(channels_out, TILE_N)
    tiles = tl.cdiv(lines, TILE_M) * tiles_n
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
    number = tile // tiles_n * TILE_M + tl.arange(0, TILE_M)
    cols = tile % tiles_n * TILE_N + tl.arange(0, TILE_N)
    cols_there = cols < channels_out
    image, d, h, strip = apart(number, (walked[0], walked[1], strips), NDIM)
    at_d = origin_d + d * pixel_d
    at_h = origin_h + h * pixel_h
    w = strip * STRIP
    # The first pixel of the source that the strip sees.
    from_w = w * STEP_W - before[2]
    if DATA:
        from_w = w + before[2] - (TAPS_W - 1)
        d = class_d + d * stride[0]
        h = class_h + h * stride[1]
    there = (number < lines) & inside(d, h, w, full, NDIM)
    first = seen_by(cols, FILTERS, DATA)
    base = (image * source_strides[0])[:, None] + channel(first, source_strides[1], UNIT)[None, :]
    between = channel(1, source_strides[1], UNIT)
    first_filter = first if DATA else cols
    like = tl.zeros((TILE_M, TILE_N), tl.int32 if INT_ACC else tl.float32)
    sums = zeros(STRIP, like)
    for j_d in range(count_d):
        for j_h in range(count_h):
            in_d = at_d + j_d * tap_d
            in_h = at_h + j_h * tap_h
            seen = there & inside(in_d, in_h, in_h * 0, (sizes[0], sizes[1], 1), NDIM)
            row = first_d * 0
            if NDIM > 1:
                row = (first_h + j_h * apart_h) * weight_strides[3]
            if NDIM > 2:
                row += (first_d + j_d * apart_d) * weight_strides[2]
            for j_f in tl.static_range(FILTERS if DATA else 1):
                pixels = pixels_of_row(
                    source + j_f * between,
                    base + offset(in_d, in_h, in_h * 0, source_strides, NDIM)[:, None], from_w,
                    seen, cols_there, sizes[2], source_strides[4], like, PIXELS,
                )  # fmt: skip
                factors = zeros(0, like)
                of = (first_filter + j_f) * weight_strides[0] + row
                for tap in tl.static_range(TAPS_W):  # noqa: B007
                    factor = tl.load(weights + of, mask=cols_there, other=0.0)
                    of += weight_strides[4]
                    factors = factors + (factor.to(like.dtype)[None, :],)
                more = zeros(0, like)
                for t in tl.static_range(STRIP):
                    total = joined(sums[t], pixels, factors, t, 0, TAPS_W, STEP_W, DATA)
                    more = more + (total,)
                sums = more
    to = image * made_strides[0] + offset(d, h, w, made_strides, NDIM)
    to = to[:, None] + channel(cols, made_strides[1], UNIT_OUT)[None, :]
    for t in tl.static_range(STRIP):
        finish(
            sums[t], made, extra, to + t * made_strides[4], cols,
            (there & (w + t < full[2]))[:, None] & cols_there[None, :], cols_there,
            CHAIN, TAKES, LARGEST,
        )  # fmt: skip


@triton.jit
def conv_rows_weights(
    x, y, made, x_strides, y_strides, made_strides, images, channels_out, sizes, outs, taps, stride,
    dilation, before, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, NDIM: tl.constexpr, TAPS_W: tl.constexpr,
    STEP_W: tl.constexpr, STRIP: tl.constexpr, FILTERS: tl.constexpr, UNIT: tl.constexpr,
    TWO_STAGE: tl.constexpr,
):  # fmt: skip
    """A row of the filter of TILE_N channels, from a part of the strips, TILE_M at a time."""
    PIXELS: tl.constexpr = (STRIP - 1) * STEP_W + TAPS_W
    strips = tl.cdiv(outs[2], STRIP)
    lines = images * outs[0] * outs[1] * strips
    tiles_n = tl.cdiv(channels_out, TILE_N)
    filter_rows = taps[0] * taps[1]
    row = tl.program_id(0) // tiles_n % filter_rows
    part = tl.program_id(0) // (tiles_n * filter_rows)
    cols = tl.program_id(0) % tiles_n * TILE_N + tl.arange(0, TILE_N)
    cols_there = cols < channels_out
    seen_x = channel(seen_by(cols, FILTERS, False), x_strides[1], UNIT)
    tap_d = row // taps[1]
    tap_h = row % taps[1]
    share = tl.cdiv(tl.cdiv(lines, TILE_M), splits) * TILE_M
    like = tl.zeros((TILE_M, TILE_N), tl.float32)
    sums = zeros(TAPS_W, like)
    for line in range(part * share, min((part + 1) * share, lines), TILE_M):
        number = line + tl.arange(0, TILE_M)
        there = number < lines
        image, d, h, strip = apart(number, (outs[0], outs[1], strips), NDIM)
        w = strip * STRIP
        from_y = image * y_strides[0] + offset(d, h, h * 0, y_strides, NDIM)
        seen_y = pixels_of_row(
            y, from_y[:, None] + channel(cols, y_strides[1], UNIT)[None, :], w, there, cols_there,
            outs[2], y_strides[4], like, STRIP,
        )  # fmt: skip
        in_d = d * stride[0] - before[0] + tap_d * dilation[0]
        in_h = h * stride[1] - before[1] + tap_h * dilation[1]
        seen = there & inside(in_d, in_h, in_h * 0, (sizes[0], sizes[1], 1), NDIM)
        from_x = image * x_strides[0] + offset(in_d, in_h, in_h * 0, x_strides, NDIM)
        pixels = pixels_of_row(
            x, from_x[:, None] + seen_x[None, :],
            w * STEP_W - before[2], seen, cols_there, sizes[2], x_strides[4], like, PIXELS,
        )  # fmt: skip
        more = zeros(0, like)
        for tap in tl.static_range(TAPS_W):
            total = sums[tap]
            for t in tl.static_range(STRIP):
                total += pixels[t * STEP_W + tap] * seen_y[t]
            more = more + (total,)
        sums = more
    for tap in tl.static_range(TAPS_W):
        total = tl.sum(sums[tap], 0)
        if TWO_STAGE:
            count = channels_out.to(tl.int64) * filter_rows * TAPS_W
            place = part * count + (cols * filter_rows + row) * TAPS_W + tap
        else:
            place = cols * made_strides[0] + offset(tap_d, tap_h, tap, made_strides, NDIM)
        tl.store(made + place, total.to(made.dtype.element_ty), mask=cols_there)
