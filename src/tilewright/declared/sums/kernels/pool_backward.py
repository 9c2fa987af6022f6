"""The gradient of pooling, gathered.

Idea. A workgroup has a tile of FAST by ROWS groups of pixels. A group has DOWN by ACROSS
neighbouring pixels: of one channel, or, where channels come first, of one image. Where both are
multiples of the windows' strides, groups begin where windows do, so which of its pixels a window
has is known when the kernel is compiled: what arrives for a window, with its place, is read once
for all of them. Else a group is one pixel, which asks of each window that may have it whether it
does. Along a dimension, such windows begin at most one window's size before it. Where there are too
many to be unrolled, or fewer in the image than a window's size allows (LOOPED), it goes through
those that there are in a loop: the gradient of a mean of the whole image asks of one window.

Data. Sums are in fp32. Channels are read and written in vectors of VECTOR; where channels come
first, a group is such a vector of pixels, whose windows lie LEFT elements of padding further. What
arrives for a window, and its place, is read again by other groups, from L1 or L2.

What limits it: memory. For a mean over whole images (64 × 7×7 × 2048 bf16, windows of 7×7) every
four pixels asked of 64 windows: an H200 took 47.1 µs, where cuDNN took 18.5 (2026-11-30, in
graphs). With a loop over the windows that there are, in a later run that day, it took 9.5.
"""

import triton
import triton.language as tl

from tilewright.declared.sums.kernels.pool import (
    across,
    begins,
    counted,
    holds,
    none,
    stored,
    tile_of,
)


@triton.constexpr_function
def windows(kernel, stride, dilation):
    """How many windows are looked at for each pixel, along one dimension."""
    return kernel if dilation > 1 else -(-kernel // stride)


@triton.jit
def there_are(LOOKED_AT: tl.constexpr, out, DILATION: tl.constexpr):
    """How many of the windows that are looked at an image has, at most."""
    if DILATION > 1:
        return LOOKED_AT
    return tl.minimum(LOOKED_AT, out)


@triton.jit
def window(at, one, pad, out, KERNEL: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr):
    """The window number `one` that a pixel may be in, and whether it is."""
    place = at + pad
    if DILATION == 1:
        # Counted down from the last that may have it, so that there are no more than of the image.
        found = tl.minimum(place // STRIDE, out - 1) - one
        inside = (found >= 0) & (place - found * STRIDE < KERNEL)
    else:
        start = place - one * DILATION
        found = start // STRIDE
        inside = (start >= 0) & (start % STRIDE == 0)
    return found, inside & (found < out)


@triton.constexpr_function
def touches(window, pixels, kernel, stride, dilation, left):
    """Whether a window, counted from the group's first, has any of a group's pixels along one
    dimension, the first of which lies `left` elements behind the beginning of window 0."""
    return any(holds(at + left, window, kernel, stride, dilation) for at in range(pixels))


@triton.constexpr_function
def before(kernel, stride, dilation):
    """How many windows before a group's first may reach into the group."""
    return (kernel - 1) * dilation // stride


@triton.constexpr_function
def looked_at(pixels, kernel, stride, dilation, left):
    """How many windows may have pixels of a group."""
    return before(kernel, stride, dilation) + (pixels - 1 + left) // stride + 1


@triton.jit
def pool_backward(
    dy, index, dx, images, depth, height, width, channels, out_depth, out_height, out_width, pad_d,
    pad_h, pad_w, divisor, mode: tl.constexpr, include_pad: tl.constexpr, kernel_d: tl.constexpr,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, stride_d: tl.constexpr,
    stride_h: tl.constexpr, stride_w: tl.constexpr, dilation_d: tl.constexpr,
    dilation_h: tl.constexpr, dilation_w: tl.constexpr, FIRST: tl.constexpr,
    VECTOR: tl.constexpr, PIECE: tl.constexpr, LEFT: tl.constexpr, DOWN: tl.constexpr,
    ACROSS: tl.constexpr, LOOPED: tl.constexpr, ROWS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """FAST by ROWS groups of DOWN by ACROSS elements."""
    # Said so that vectors are moved: this divides the elements of a line, or of a pixel.
    MOVED: tl.constexpr = PIECE if FIRST else VECTOR
    if FIRST:
        wide = 1
        line_length = width // MOVED
    else:
        wide = channels // VECTOR * VECTOR
        line_length = width * (channels // VECTOR)
    ALL_D: tl.constexpr = windows(kernel_d, stride_d, dilation_d)
    ALL_H: tl.constexpr = windows(kernel_h, stride_h, dilation_h)
    ALL_W: tl.constexpr = windows(kernel_w, stride_w, dilation_w)
    ALL: tl.constexpr = ALL_D * ALL_H * ALL_W
    if not LOOPED and DOWN % stride_h + ACROSS % stride_w == 0:
        grouped(
            dy, index, dx, images, depth, height, width, wide, line_length, out_depth, out_height,
            out_width, pad_d, pad_h, pad_w, divisor, mode, include_pad, kernel_d, kernel_h,
            kernel_w, stride_d, stride_h, stride_w, dilation_d, dilation_h, dilation_w, FIRST,
            VECTOR, MOVED, LEFT, DOWN, ACROSS, ROWS, FAST,
        )  # fmt: skip
    else:
        row, fast = tile_of(width if FIRST else wide, ROWS, FAST)
        image, d, h, w, step, there = across(row, fast, depth, height, width, wide, FIRST)
        there = there & (image < images)
        total = tl.zeros((FAST, ROWS), tl.float32)
        if not LOOPED:
            for one in tl.static_range(ALL):
                total += arrived(
                    dy, index, image, d, h, w, step, there, depth, height, width, wide, out_depth,
                    out_height, out_width, pad_d, pad_h, pad_w, divisor, one // (ALL_H * ALL_W),
                    one // ALL_W % ALL_H, one % ALL_W, mode, include_pad, kernel_d, kernel_h,
                    kernel_w, stride_d, stride_h, stride_w, dilation_d, dilation_h, dilation_w,
                )  # fmt: skip
        else:
            for one_d in range(there_are(ALL_D, out_depth, dilation_d)):
                for one_h in range(there_are(ALL_H, out_height, dilation_h)):
                    for one_w in range(there_are(ALL_W, out_width, dilation_w)):
                        total += arrived(
                            dy, index, image, d, h, w, step, there, depth, height, width, wide,
                            out_depth, out_height, out_width, pad_d, pad_h, pad_w, divisor, one_d,
                            one_h, one_w, mode, include_pad, kernel_d, kernel_h, kernel_w,
                            stride_d, stride_h, stride_w, dilation_d, dilation_h, dilation_w,
                        )  # fmt: skip
        line = ((image * depth + d) * height + h).to(tl.int64) * line_length * MOVED
        tl.store(dx + line + (w * wide + step), total.to(dx.dtype.element_ty), there)


@triton.jit
def grouped(
    dy, index, dx, images, depth, height, width, wide, line_length, out_depth, out_height,
    out_width, pad_d, pad_h, pad_w, divisor, mode: tl.constexpr,
    include_pad: tl.constexpr, kernel_d: tl.constexpr, kernel_h: tl.constexpr,
    kernel_w: tl.constexpr, stride_d: tl.constexpr, stride_h: tl.constexpr,
    stride_w: tl.constexpr, dilation_d: tl.constexpr, dilation_h: tl.constexpr,
    dilation_w: tl.constexpr, FIRST: tl.constexpr, VECTOR: tl.constexpr, PIECE: tl.constexpr,
    LEFT: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, ROWS: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Of a tile of groups that begin where windows do."""
    PIXELS: tl.constexpr = FIRST and VECTOR > 1
    BACK_H: tl.constexpr = before(kernel_h, stride_h, dilation_h)
    BACK_W: tl.constexpr = before(kernel_w, stride_w, dilation_w)
    # The first group has the last pixels of padding, if windows do not begin at its end.
    shift_h = pad_h % stride_h
    groups_h = tl.cdiv(height + shift_h, DOWN)
    if PIXELS:
        shift_w = 0
        first_w = 0
    else:
        shift_w = pad_w % stride_w
        first_w = pad_w // stride_w
    groups_w = tl.cdiv(width + shift_w, ACROSS)
    row, fast = tile_of(groups_w if FIRST else wide, ROWS, FAST)
    image, d, group_h, group_w, step, there = across(
        row, fast, depth, groups_h, groups_w, wide, FIRST
    )
    from_h = group_h * DOWN - shift_h
    from_w = group_w * ACROSS - shift_w
    first_h = group_h * (DOWN // stride_h) + pad_h // stride_h
    first_w = group_w * (ACROSS // stride_w) + first_w
    first = (d * height + from_h) * width + from_w
    totals = none()
    for _ in tl.static_range(DOWN * ACROSS):
        totals = totals + (tl.zeros((FAST, ROWS), tl.float32),)
    for one_d in tl.static_range(windows(kernel_d, stride_d, dilation_d)):
        out_d, in_d = window(d, one_d, pad_d, out_depth, kernel_d, stride_d, dilation_d)
        for one_h in tl.static_range(looked_at(DOWN, kernel_h, stride_h, dilation_h, 0)):
            out_h = first_h + (one_h - BACK_H)
            seen = in_d & (out_h >= 0) & (out_h < out_height) & (image < images)
            line = (image * out_depth + out_d) * out_height + out_h
            line = line.to(tl.int64) * (out_width * (wide // VECTOR if not FIRST else 1))
            line = line * (VECTOR if not FIRST else 1)
            for one_w in tl.static_range(looked_at(ACROSS, kernel_w, stride_w, dilation_w, LEFT)):
                if touches(one_h - BACK_H, DOWN, kernel_h, stride_h, dilation_h, 0) and touches(
                    one_w - BACK_W, ACROSS, kernel_w, stride_w, dilation_w, LEFT
                ):
                    out_w = first_w + (one_w - BACK_W)
                    inside = seen & there & (out_w >= 0) & (out_w < out_width)
                    at = line + (out_w * wide + step)
                    made = tl.load(dy + at, inside, 0.0).to(tl.float32)
                    place = tl.zeros((1, 1), tl.int64)
                    if mode == "average":
                        made = shared(
                            made, out_d, out_h, out_w, depth, height, width, pad_d, pad_h, pad_w,
                            divisor, include_pad, kernel_d, kernel_h, kernel_w, stride_d, stride_h,
                            stride_w, dilation_d, dilation_h, dilation_w,
                        )  # fmt: skip
                    else:
                        place = tl.load(index + at, inside, -1)
                    more = none()
                    for pixel in tl.static_range(DOWN * ACROSS):
                        total = totals[pixel]
                        if holds(
                            pixel // ACROSS, one_h - BACK_H, kernel_h, stride_h, dilation_h
                        ) and holds(
                            pixel % ACROSS + LEFT, one_w - BACK_W, kernel_w, stride_w, dilation_w
                        ):
                            if mode == "average":
                                total += made
                            else:
                                here = first + (pixel // ACROSS * width + pixel % ACROSS)
                                total += tl.where(place == here, made, 0.0)
                        more = more + (total,)
                    totals = more
    for down in tl.static_range(DOWN):
        h = from_h + down
        seen = (h >= 0) & (h < height) & (image < images)
        to = dx + ((image * depth + d) * height + h).to(tl.int64) * line_length * PIECE
        results = none()
        for one in tl.static_range(ACROSS):
            results = results + (totals[down * ACROSS + one].to(dx.dtype.element_ty),)
        if PIXELS:
            stored(to, results, group_w, step, wide, width, seen, there, FIRST, PIECE, ACROSS)
        else:
            for one in tl.static_range(ACROSS):
                w = from_w + one
                mask = seen & there & (w >= 0) & (w < width)
                tl.store(to + (w * wide + step), results[one], mask)


@triton.jit
def shared(
    made, out_d, out_h, out_w, depth, height, width, pad_d, pad_h, pad_w, divisor,
    include_pad: tl.constexpr, kernel_d: tl.constexpr, kernel_h: tl.constexpr,
    kernel_w: tl.constexpr, stride_d: tl.constexpr, stride_h: tl.constexpr,
    stride_w: tl.constexpr, dilation_d: tl.constexpr, dilation_h: tl.constexpr,
    dilation_w: tl.constexpr,
):  # fmt: skip
    """What arrives for the mean of a window, for each of its elements."""
    count = counted(begins(out_d, pad_d, stride_d), depth, pad_d, kernel_d, dilation_d, include_pad)
    count *= counted(
        begins(out_h, pad_h, stride_h), height, pad_h, kernel_h, dilation_h, include_pad
    )
    count = count * counted(
        begins(out_w, pad_w, stride_w), width, pad_w, kernel_w, dilation_w, include_pad
    )
    # Windows that there are not may count nothing; what is read for them is 0.
    # A pixel's channels share a count, so one division serves them all.
    return made * (1.0 / tl.where(divisor > 0, divisor, tl.maximum(count, 1)).to(tl.float32))


@triton.jit
def arrived(
    dy, index, image, d, h, w, step, there, depth, height, width, wide, out_depth, out_height,
    out_width, pad_d, pad_h, pad_w, divisor, one_d, one_h, one_w, mode: tl.constexpr,
    include_pad: tl.constexpr, kernel_d: tl.constexpr, kernel_h: tl.constexpr,
    kernel_w: tl.constexpr, stride_d: tl.constexpr, stride_h: tl.constexpr,
    stride_w: tl.constexpr, dilation_d: tl.constexpr, dilation_h: tl.constexpr,
    dilation_w: tl.constexpr,
):  # fmt: skip
    """What arrives for one of the windows that each pixel may be in."""
    out_d, in_d = window(d, one_d, pad_d, out_depth, kernel_d, stride_d, dilation_d)
    out_h, in_h = window(h, one_h, pad_h, out_height, kernel_h, stride_h, dilation_h)
    out_w, in_w = window(w, one_w, pad_w, out_width, kernel_w, stride_w, dilation_w)
    inside = in_d & in_h & there & in_w
    line = (image * out_depth + out_d) * out_height + out_h
    at = line.to(tl.int64) * out_width * wide + (out_w * wide + step)
    made = tl.load(dy + at, inside, 0.0).to(tl.float32)
    if mode == "average":
        made = shared(
            made, out_d, out_h, out_w, depth, height, width, pad_d, pad_h, pad_w, divisor,
            include_pad, kernel_d, kernel_h, kernel_w, stride_d, stride_h, stride_w, dilation_d,
            dilation_h, dilation_w,
        )  # fmt: skip
    else:
        place = (d * height + h) * width + w
        made = tl.where(tl.load(index + at, inside, -1) == place, made, 0.0)
    return made
