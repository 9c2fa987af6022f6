"""Pooling: the largest, the smallest or the mean of windows.

Idea. A workgroup has a tile of the output: ROWS pixels by FAST channels, or, where channels come
first, ROWS lines by FAST pixels. It reads one element of each window after another and keeps the
result so far in registers. Reads of a small window, or of eight elements of a large one, are in
flight together.

Data. Pixels that several windows share are read again, from L1 or L2. Results are made in fp32, of
whole numbers in int32.

What limits it: memory where channels come last; where they come first, the instructions for each
element of a window, since neighbours are read one by one. Not timed.
"""

import triton
import triton.language as tl

UNROLLED: tl.constexpr = tl.constexpr(32)
"""Elements of a window, at most, that are read without a loop."""
AT_ONCE: tl.constexpr = tl.constexpr(8)
"""Elements of a larger window that a loop reads each time."""


@triton.jit
def begins(out, pad, STRIDE: tl.constexpr):
    """Where windows begin: before 0 in the padding."""
    return out * STRIDE - pad


@triton.jit
def counted(start, size, pad, KERNEL: tl.constexpr, DILATION: tl.constexpr, PADDED: tl.constexpr):
    """Elements of windows along one dimension: with the padding, or only those of the image."""
    if PADDED:
        return tl.minimum(KERNEL, tl.cdiv(size + pad - start, DILATION))
    before = tl.cdiv(tl.maximum(-start, 0), DILATION)
    return tl.minimum(KERNEL, tl.cdiv(size - start, DILATION)) - before


@triton.jit
def across(row, fast, depth, height, width, channels, FIRST: tl.constexpr):
    """Of a tile: image, depth, height and width [ROWS, 1], the neighbours' steps [1, FAST], and
    which neighbours there are. Width is [1, FAST] where channels come first."""
    if FIRST:
        w = fast[None, :]
        step = tl.zeros((1, 1), tl.int32)
        there = (fast < width)[None, :]
        line = row
    else:
        w = (row % width)[:, None]
        step = fast[None, :]
        there = (fast < channels)[None, :]
        line = row // width
    h = (line % height)[:, None]
    line = line // height
    return (line // depth)[:, None], (line % depth)[:, None], h, w, step, there


@triton.jit
def pool(
    x, y, places, images, depth, height, width, channels, out_depth, out_height, out_width, pad_d,
    pad_h, pad_w, divisor, mode: tl.constexpr, include_pad: tl.constexpr, index: tl.constexpr,
    kernel_d: tl.constexpr, kernel_h: tl.constexpr, kernel_w: tl.constexpr,
    stride_d: tl.constexpr, stride_h: tl.constexpr, stride_w: tl.constexpr,
    dilation_d: tl.constexpr, dilation_h: tl.constexpr, dilation_w: tl.constexpr,
    FIRST: tl.constexpr, ROWS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """ROWS by FAST results."""
    AVERAGE: tl.constexpr = mode == "average"
    LEAST: tl.constexpr = mode == "min"
    WHOLE: tl.constexpr = not x.dtype.element_ty.is_floating()
    MADE: tl.constexpr = tl.int32 if WHOLE else tl.float32
    LIMIT: tl.constexpr = 2147483647 if WHOLE else float("inf")
    WORST: tl.constexpr = 0 if AVERAGE else (LIMIT if LEAST else -LIMIT)
    TAPS: tl.constexpr = kernel_d * kernel_h * kernel_w
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    fast = tl.program_id(1) * FAST + tl.arange(0, FAST)
    image, out_d, out_h, out_w, step, there = across(
        row, fast, out_depth, out_height, out_width, channels, FIRST
    )
    there = there & (image < images)
    from_d = begins(out_d, pad_d, stride_d)
    from_h = begins(out_h, pad_h, stride_h)
    from_w = begins(out_w, pad_w, stride_w)
    wide = 1 if FIRST else channels
    # Each window's elements lie at the same distances from its first one, which may be in padding.
    first = (from_d * height + from_h) * width + from_w
    start = x + image.to(tl.int64) * depth * height * width * wide + first.to(tl.int64) * wide
    start = start + step
    best = tl.full((ROWS, FAST), WORST, MADE)
    best_at = tl.full((ROWS, FAST), -1, tl.int32)
    if TAPS <= UNROLLED:
        for tap in tl.static_range(TAPS):
            best, best_at = taken(
                best, best_at, start, first, from_d, from_h, from_w, there, depth, height, width,
                wide, tap // (kernel_h * kernel_w) * dilation_d,
                tap // kernel_w % kernel_h * dilation_h, tap % kernel_w * dilation_w, AVERAGE,
                LEAST, index, WORST,
            )  # fmt: skip
    else:
        for some in range(0, TAPS, AT_ONCE):
            for one in tl.static_range(AT_ONCE):
                tap = some + one
                best, best_at = taken(
                    best, best_at, start, first, from_d, from_h, from_w, there & (tap < TAPS),
                    depth, height, width, wide, tap // (kernel_h * kernel_w) * dilation_d,
                    tap // kernel_w % kernel_h * dilation_h, tap % kernel_w * dilation_w, AVERAGE,
                    LEAST, index, WORST,
                )  # fmt: skip
    if AVERAGE:
        count = counted(from_d, depth, pad_d, kernel_d, dilation_d, include_pad)
        count *= counted(from_h, height, pad_h, kernel_h, dilation_h, include_pad)
        count = count * counted(from_w, width, pad_w, kernel_w, dilation_w, include_pad)
        best = best / tl.where(divisor > 0, divisor, count).to(tl.float32)
    to = row.to(tl.int64)[:, None] * (out_width if FIRST else channels) + fast[None, :]
    tl.store(y + to, best.to(y.dtype.element_ty), there)
    if index:
        tl.store(places + to, best_at.to(tl.int64), there)


@triton.jit
def taken(
    best, best_at, start, first, from_d, from_h, from_w, there, depth, height, width, wide, tap_d,
    tap_h, tap_w, AVERAGE: tl.constexpr, LEAST: tl.constexpr, INDEX: tl.constexpr,
    WORST: tl.constexpr,
):  # fmt: skip
    """The results so far after one more element of each window."""
    d = from_d + tap_d
    h = from_h + tap_h
    w = from_w + tap_w
    inside = (d >= 0) & (d < depth) & (h >= 0) & (h < height) & there
    inside = inside & (w >= 0) & (w < width)
    apart = (tap_d * height + tap_h) * width + tap_w
    at = start + apart.to(tl.int64) * wide
    if best.dtype.is_floating():
        values = tl.load(at, inside, WORST).to(best.dtype)
    else:
        values = tl.where(inside, tl.load(at, inside, 0).to(best.dtype), WORST)
    if AVERAGE:
        best += values
    elif INDEX:
        better = values < best if LEAST else values > best
        takes = inside & (better | (values != values) | (best_at < 0))
        best = tl.where(takes, values, best)
        best_at = tl.where(takes, first + apart, best_at)
    elif LEAST:
        best = tl.minimum(best, values, propagate_nan=tl.PropagateNan.ALL)
    else:
        best = tl.maximum(best, values, propagate_nan=tl.PropagateNan.ALL)
    return best, best_at
