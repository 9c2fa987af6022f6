"""Depthwise convolutions in all directions, with a filter that registers hold.

Idea. A row of a tile is a strip: `STRIP` neighbouring pixels of the result's width, of some
channels. It walks down the image. Each pixel of the source that the strip meets is loaded and
converted once, and added at once to all results that see it: the sums of the rows that are not
complete yet are in registers, and move up by a row with each step. So are the filters, which torch
keeps with taps innermost: reading a channel's tap is a load of 2 bytes, and one load serves the
rows of a segment (`steps`). Sizes and strides of the filter are constants, so that all of this is
unrolled.

In the gradient of the data, a row of y is added to the rows of x that it sees; strides move sums up
by so many rows. There are no residue classes: pixels are counted from the first of the padding,
where each step begins a new stride.

In the gradient of the weights, sums and filters change places: registers hold a sum for each tap,
and the rows of dY that the current row of x meets. Rows of a tile add theirs up at the end; parts
of the pixels are added by `conv_few_totals`.

In 1-D, strips walk along the width, and are one pixel wide.

Memory is far: under EARLY a step's pixels are asked for one step before, and are on their way while
the sums of the step are added up. Stores keep the compiler from doing so on its own.

Data movement. Each strip reads the columns beside it and the rows before its first (of `steps`),
which others read too, from L1 or L2. The taps are loads of 2 bytes, each of a lane's own channel
and so of a line of its own. So strips that walk far are better, if enough of them fill the device.

What limits it. Memory for small filters; from 7×7 on multiply-adds (`gluon_bands` has the matrix
units multiply). On an H200 it has 0.95 to 1.25 of cuDNN's speed forward and 1.42 to 3.58 for data
in 2-D. More measurements, loads and registers: docs/notes/conv-held.md.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.conv.kernels.places import channel
from tilewright.ops.conv.kernels.strips import joined, pixels_of_row, seen_by, widened, zeros


@triton.jit
def _turned(three, NDIM: tl.constexpr):
    """Depth, height and width; the width of 1-D as height."""
    if NDIM == 1:
        found = (three[0], three[2], three[1])
    else:
        found = (three[0], three[1], three[2])
    return found


@triton.jit
def _strides(five, NDIM: tl.constexpr):
    """Strides of depth, height and width; that of the width of 1-D as of the height."""
    if NDIM == 1:
        found = (five[2], five[4], five[3])
    else:
        found = (five[2], five[3], five[4])
    return found


@triton.jit
def _line(number, lines):
    """The image, the depth, the segment of rows and the strip of a numbered line."""
    rest = number // lines[2]
    above = rest // lines[1]
    return above // lines[0], above % lines[0], rest % lines[1], number % lines[2]


@triton.jit
def _row(
    source, base, d, at_h, from_w, there, cols_there, along, sizes, pad, stride, dilation, like,
    j_d: tl.constexpr, DATA: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """What a strip reads of row `at_h` of the source, at the depth of tap j_d. along, sizes: of
    depth, height and width; pad, stride, dilation: of the depth."""
    if DATA:
        places = d + pad - j_d * dilation
        at_d = places // stride
        seen = there & (places >= 0) & (places % stride == 0) & (at_d < sizes[0])
    else:
        at_d = d * stride - pad + j_d * dilation
        seen = there & (at_d >= 0) & (at_d < sizes[0])
    return pixels_of_row(
        source, base + (at_d * along[0] + at_h * along[1])[:, None], from_w,
        seen & (at_h >= 0) & (at_h < sizes[1]), cols_there, sizes[2], along[2], like, PIXELS,
    )  # fmt: skip


@triton.jit
def _rows_of_step(
    source, base, d, first_h, from_w, there, cols_there, along, sizes, pad, stride, dilation,
    between, FILTERS: tl.constexpr, DATA: tl.constexpr, TAPS_D: tl.constexpr, READ: tl.constexpr,
    PIXELS: tl.constexpr,
):  # fmt: skip
    """What a strip reads of all READ rows of a step, of which the first is `first_h`, of all depths
    and of FILTERS channels, `between` which so many elements lie, in the dtype of the source."""
    like = tl.zeros((there.shape[0], cols_there.shape[0]), source.dtype.element_ty)
    found = zeros(0, like)
    for j_d in tl.static_range(FILTERS * TAPS_D):
        of_filter = source + j_d // TAPS_D * between
        for j in tl.static_range(READ):
            found = found + _row(
                of_filter, base, d, first_h + j, from_w, there, cols_there, along, sizes, pad,
                stride, dilation, like, j_d % TAPS_D, DATA, PIXELS,
            )  # fmt: skip
    return found


@triton.jit
def conv_held(
    source, weights, made, extra, source_strides, weight_strides, made_strides, images,
    channels_out, sizes, full, stride, dilation, before, lines, steps, origin,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, NDIM: tl.constexpr,
    DATA: tl.constexpr, TAPS_D: tl.constexpr, TAPS_H: tl.constexpr, TAPS_W: tl.constexpr,
    STEP_H: tl.constexpr, STEP_W: tl.constexpr, STRIP: tl.constexpr, EARLY: tl.constexpr,
    FILTERS: tl.constexpr, UNIT: tl.constexpr, UNIT_OUT: tl.constexpr, INT_ACC: tl.constexpr,
    TAKES: tl.constexpr, LARGEST: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of the result: TILE_M strips of TILE_N channels, `steps` down. The arguments are
    those of the catalogue (`arguments`)."""
    AHEAD: tl.constexpr = (TAPS_H + STEP_H - 1) // STEP_H - 1
    MADE: tl.constexpr = STEP_H if DATA else 1
    # Of a channel, in the gradient of the data, whose filters' gradients of y are side by side.
    FILTERS_IN: tl.constexpr = FILTERS if DATA else 1
    READ: tl.constexpr = 1 if DATA else STEP_H
    LIVE: tl.constexpr = (AHEAD + 1) * MADE
    BESIDE: tl.constexpr = (TAPS_W + STEP_W - 1) // STEP_W - 1
    PIXELS: tl.constexpr = (
        BESIDE + (STRIP + STEP_W - 1) // STEP_W if DATA else (STRIP - 1) * STEP_W + TAPS_W
    )
    _, full_h, full_w = _turned(full, NDIM)
    pad_d, pad_h, pad_w = _turned(before, NDIM)
    made_d, made_h, made_w = _strides(made_strides, NDIM)
    tap_d, tap_h, tap_w = _strides(weight_strides, NDIM)

    tiles_n = tl.cdiv(channels_out, TILE_N)
    number = tl.program_id(0) // tiles_n * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(0) % tiles_n * TILE_N + tl.arange(0, TILE_N)
    cols_there = cols < channels_out
    image, d, segment, strip = _line(number, lines)
    there = number < images * lines[0] * lines[1] * lines[2]
    seen = seen_by(cols, FILTERS, DATA)
    base = (image * source_strides[0])[:, None] + channel(seen, source_strides[1], UNIT)[None, :]
    between = channel(1, source_strides[1], UNIT)
    to = (image * made_strides[0] + d * made_d)[:, None]
    to = to + channel(cols, made_strides[1], UNIT_OUT)[None, :]
    # The first step's row of the source (of y, in the gradient of the data) in units of STEP_H, and
    # the first pixel of the strip, counted from the padding in the gradient of the data.
    first = origin[0] + segment * steps
    w = origin[1] + strip * STRIP
    if DATA:
        first -= AHEAD
        from_w = w // STEP_W - BESIDE
        w -= pad_w
    else:
        from_w = w * STEP_W - pad_w

    like = tl.zeros((TILE_M, TILE_N), tl.int32 if INT_ACC else tl.float32)
    factors = zeros(0, like)
    first_filter = seen if DATA else cols
    for j_d in tl.static_range(FILTERS_IN * TAPS_D):
        for j_h in tl.static_range(TAPS_H):
            for j_w in tl.static_range(TAPS_W):
                of = (first_filter + j_d // TAPS_D) * weight_strides[0]
                of = of + (j_d % TAPS_D * tap_d + j_h * tap_h + j_w * tap_w)
                factor = tl.load(weights + of, mask=cols_there, other=0.0)
                factors = factors + (factor.to(like.dtype)[None, :],)

    sums = zeros(LIVE * STRIP, like)
    along = _strides(source_strides, NDIM)
    source_sizes = _turned(sizes, NDIM)
    from_h = first * READ if DATA else first * READ - pad_h
    later = ()
    if EARLY:
        later = _rows_of_step(
            source, base, d, from_h, from_w, there, cols_there, along, source_sizes, pad_d,
            stride[0], dilation[0], between, FILTERS_IN, DATA, TAPS_D, READ, PIXELS,
        )  # fmt: skip
    for step in range(steps + AHEAD):
        now = later
        if EARLY:
            later = _rows_of_step(
                source, base, d, from_h + (step + 1) * READ, from_w,
                there & (step + 1 < steps + AHEAD), cols_there, along, source_sizes, pad_d,
                stride[0], dilation[0], between, FILTERS_IN, DATA, TAPS_D, READ, PIXELS,
            )  # fmt: skip
        for j_d in tl.static_range(FILTERS_IN * TAPS_D):
            for j in tl.static_range(READ):
                if EARLY:
                    pixels = widened(now, like, (j_d * READ + j) * PIXELS, PIXELS)
                else:
                    pixels = _row(
                        source + j_d // TAPS_D * between, base, d, from_h + step * READ + j, from_w,
                        there, cols_there, along, source_sizes, pad_d, stride[0], dilation[0], like,
                        j_d % TAPS_D, DATA, PIXELS,
                    )  # fmt: skip
                more = zeros(0, like)
                for i in tl.static_range(LIVE):
                    for t in tl.static_range(STRIP):
                        total = sums[i * STRIP + t]
                        if DATA:
                            if i < TAPS_H:
                                total = joined(
                                    total, pixels, factors, t, (j_d * TAPS_H + i) * TAPS_W, TAPS_W,
                                    STEP_W, DATA,
                                )  # fmt: skip
                        elif j + (AHEAD - i) * STEP_H < TAPS_H:
                            total = joined(
                                total, pixels, factors, t,
                                (j_d * TAPS_H + j + (AHEAD - i) * STEP_H) * TAPS_W, TAPS_W,
                                STEP_W, DATA,
                            )  # fmt: skip
                        more = more + (total,)
                sums = more
        # The oldest rows are complete, unless they are before the segment's first.
        for i in tl.static_range(MADE):
            h = first + step - AHEAD
            if DATA:
                h = (first + step) * STEP_H + i - pad_h
            row = there & (step >= AHEAD) & (h >= 0) & (h < full_h)
            for t in tl.static_range(STRIP):
                mask = row & (w + t >= 0) & (w + t < full_w)
                finish(
                    sums[i * STRIP + t], made, extra,
                    to + (h * made_h + (w + t) * made_w)[:, None], cols,
                    mask[:, None] & cols_there[None, :], cols_there, CHAIN, TAKES, LARGEST,
                )  # fmt: skip
        kept = zeros(0, like)
        for i in tl.static_range(MADE * STRIP, LIVE * STRIP):
            kept = kept + (sums[i],)
        sums = kept + zeros(MADE * STRIP, like)


@triton.jit
def conv_held_weights(
    x, y, made, x_strides, y_strides, made_strides, images, channels_out, sizes, outs, stride,
    dilation, before, lines, steps, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, NDIM: tl.constexpr,
    TAPS_D: tl.constexpr, TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, STEP_H: tl.constexpr,
    STEP_W: tl.constexpr, STRIP: tl.constexpr, EARLY: tl.constexpr, FILTERS: tl.constexpr,
    UNIT: tl.constexpr, TWO_STAGE: tl.constexpr,
):  # fmt: skip
    """All taps of TILE_N channels, from a part of the lines, TILE_M at a time."""
    AHEAD: tl.constexpr = (TAPS_H + STEP_H - 1) // STEP_H - 1
    PIXELS: tl.constexpr = (STRIP - 1) * STEP_W + TAPS_W
    _, out_h, out_w = _turned(outs, NDIM)
    pad_d, pad_h, pad_w = _turned(before, NDIM)
    y_d, y_h, y_w = _strides(y_strides, NDIM)
    along = _strides(x_strides, NDIM)
    x_sizes = _turned(sizes, NDIM)

    tiles_n = tl.cdiv(channels_out, TILE_N)
    part = tl.program_id(0) // tiles_n
    cols = tl.program_id(0) % tiles_n * TILE_N + tl.arange(0, TILE_N)
    cols_there = cols < channels_out
    all_lines = images * lines[0] * lines[1] * lines[2]
    share = tl.cdiv(tl.cdiv(all_lines, TILE_M), splits) * TILE_M
    like = tl.zeros((TILE_M, TILE_N), tl.float32)
    sums = zeros(TAPS_D * TAPS_H * TAPS_W, like)
    for line in range(part * share, min((part + 1) * share, all_lines), TILE_M):
        number = line + tl.arange(0, TILE_M)
        there = number < all_lines
        image, d, segment, strip = _line(number, lines)
        first = segment * steps
        w = strip * STRIP
        from_y = (image * y_strides[0] + d * y_d)[:, None]
        from_y = from_y + channel(cols, y_strides[1], UNIT)[None, :]
        seen = channel(seen_by(cols, FILTERS, False), x_strides[1], UNIT)
        from_x = (image * x_strides[0])[:, None] + seen[None, :]
        # Rows of dY that taps join with the current rows of x, the newest last.
        seen_y = zeros(AHEAD * STRIP, like)
        from_w = w * STEP_W - pad_w
        from_h = first * STEP_H - pad_h
        raw = tl.zeros((TILE_M, TILE_N), y.dtype.element_ty)
        later = ()
        later_y = ()
        if EARLY:
            later_y = pixels_of_row(
                y, from_y + (first * y_h)[:, None], w, there & (first < out_h), cols_there, out_w,
                y_w, raw, STRIP,
            )  # fmt: skip
            later = _rows_of_step(
                x, from_x, d, from_h, from_w, there, cols_there, along, x_sizes, pad_d, stride[0],
                dilation[0], 0, 1, False, TAPS_D, STEP_H, PIXELS,
            )  # fmt: skip
        for step in range(steps + AHEAD):
            now = later
            now_y = later_y
            ahead = step + EARLY
            rows_y = pixels_of_row(
                y, from_y + ((first + ahead) * y_h)[:, None], w,
                there & (first + ahead < out_h) & (ahead < steps), cols_there, out_w, y_w, raw,
                STRIP,
            )  # fmt: skip
            if EARLY:
                later_y = rows_y
                later = _rows_of_step(
                    x, from_x, d, from_h + ahead * STEP_H, from_w,
                    there & (ahead < steps + AHEAD), cols_there, along, x_sizes, pad_d, stride[0],
                    dilation[0], 0, 1, False, TAPS_D, STEP_H, PIXELS,
                )  # fmt: skip
            else:
                now_y = rows_y
            seen_y = seen_y + widened(now_y, like, 0, STRIP)
            for j_d in tl.static_range(TAPS_D):
                for j in tl.static_range(STEP_H):
                    if EARLY:
                        pixels = widened(now, like, (j_d * STEP_H + j) * PIXELS, PIXELS)
                    else:
                        pixels = _row(
                            x, from_x, d, from_h + step * STEP_H + j, from_w, there, cols_there,
                            along, x_sizes, pad_d, stride[0], dilation[0], like, j_d, False, PIXELS,
                        )  # fmt: skip
                    more = zeros(0, like)
                    for i in tl.static_range(TAPS_D * TAPS_H * TAPS_W):
                        total = sums[i]
                        if i // (TAPS_W * TAPS_H) == j_d and i // TAPS_W % TAPS_H % STEP_H == j:
                            for t in tl.static_range(STRIP):
                                pixel = pixels[t * STEP_W + i % TAPS_W]
                                # The row of dY that this tap joins with the row of x.
                                total += (
                                    pixel
                                    * seen_y[(AHEAD - i // TAPS_W % TAPS_H // STEP_H) * STRIP + t]
                                )
                        more = more + (total,)
                    sums = more
            kept = zeros(0, like)
            for i in tl.static_range(STRIP, (AHEAD + 1) * STRIP):
                kept = kept + (seen_y[i],)
            seen_y = kept
    all_taps = TAPS_D * TAPS_H * TAPS_W
    m_d, m_h, m_w = _strides(made_strides, NDIM)
    for i in tl.static_range(TAPS_D * TAPS_H * TAPS_W):
        total = tl.sum(sums[i], 0)
        if TWO_STAGE:
            place = part * (channels_out.to(tl.int64) * all_taps) + cols * all_taps + i
        else:
            place = cols * made_strides[0] + (
                i // (TAPS_W * TAPS_H) * m_d + i // TAPS_W % TAPS_H * m_h + i % TAPS_W * m_w
            )
        tl.store(made + place, total.to(made.dtype.element_ty), mask=cols_there)
