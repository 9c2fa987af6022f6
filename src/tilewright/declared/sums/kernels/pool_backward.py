"""The gradient of pooling, gathered.

Idea. A workgroup has a tile of the images: ROWS pixels by FAST channels, or, where channels come
first, ROWS lines by FAST pixels. For each pixel it walks over the windows that contain it and
adds their gradients up. Along a dimension, such windows begin at most one window's size before it.

Data. Sums are in fp32. What arrives for a window is read by each of its pixels, from L1 or L2; so
is its place.

What limits it: memory. Not timed.
"""

import triton
import triton.language as tl

from tilewright.declared.sums.kernels.pool import UNROLLED, across, begins, counted


@triton.constexpr_function
def windows(kernel, stride, dilation):
    """How many windows are looked at for each pixel, along one dimension."""
    return kernel if dilation > 1 else -(-kernel // stride)


@triton.jit
def window(at, one, pad, out, KERNEL: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr):
    """The window number `one` that a pixel may be in, and whether it is."""
    place = at + pad
    if DILATION == 1:
        found = place // STRIDE - one
        inside = (found >= 0) & (place % STRIDE + one * STRIDE < KERNEL)
    else:
        start = place - one * DILATION
        found = start // STRIDE
        inside = (start >= 0) & (start % STRIDE == 0)
    return found, inside & (found < out)


@triton.jit
def pool_backward(
    dy, index, dx, images, depth, height, width, channels, out_depth, out_height, out_width, pad_d,
    pad_h, pad_w, divisor, mode: tl.constexpr, include_pad: tl.constexpr, kernel_d: tl.constexpr,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, stride_d: tl.constexpr,
    stride_h: tl.constexpr, stride_w: tl.constexpr, dilation_d: tl.constexpr,
    dilation_h: tl.constexpr, dilation_w: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """ROWS by FAST elements."""
    ALL_D: tl.constexpr = windows(kernel_d, stride_d, dilation_d)
    ALL_H: tl.constexpr = windows(kernel_h, stride_h, dilation_h)
    ALL_W: tl.constexpr = windows(kernel_w, stride_w, dilation_w)
    ALL: tl.constexpr = ALL_D * ALL_H * ALL_W
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    fast = tl.program_id(1) * FAST + tl.arange(0, FAST)
    image, d, h, w, step, there = across(row, fast, depth, height, width, channels, FIRST)
    there = there & (image < images)
    total = tl.zeros((FAST, ROWS), tl.float32)
    wide = 1 if FIRST else channels
    if ALL <= UNROLLED:
        for one in tl.static_range(ALL):
            total += arrived(
                dy, index, image, d, h, w, step, there, depth, height, width, wide, out_depth,
                out_height, out_width, pad_d, pad_h, pad_w, divisor, one // (ALL_H * ALL_W),
                one // ALL_W % ALL_H, one % ALL_W, mode, include_pad, kernel_d, kernel_h, kernel_w,
                stride_d, stride_h, stride_w, dilation_d, dilation_h, dilation_w,
            )  # fmt: skip
    else:
        for one in range(ALL):
            total += arrived(
                dy, index, image, d, h, w, step, there, depth, height, width, wide, out_depth,
                out_height, out_width, pad_d, pad_h, pad_w, divisor, one // (ALL_H * ALL_W),
                one // ALL_W % ALL_H, one % ALL_W, mode, include_pad, kernel_d, kernel_h, kernel_w,
                stride_d, stride_h, stride_w, dilation_d, dilation_h, dilation_w,
            )  # fmt: skip
    to = row.to(tl.int64)[None, :] * (width if FIRST else channels) + fast[:, None]
    tl.store(dx + to, total.to(dx.dtype.element_ty), there)


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
        count = counted(
            begins(out_d, pad_d, stride_d), depth, pad_d, kernel_d, dilation_d, include_pad
        )
        count *= counted(
            begins(out_h, pad_h, stride_h), height, pad_h, kernel_h, dilation_h, include_pad
        )
        count = count * counted(
            begins(out_w, pad_w, stride_w), width, pad_w, kernel_w, dilation_w, include_pad
        )
        # Windows that there are not may count nothing; what is read for them is 0.
        made = made / tl.where(divisor > 0, divisor, tl.maximum(count, 1)).to(tl.float32)
    else:
        place = (d * height + h) * width + w
        made = tl.where(tl.load(index + at, inside, -1) == place, made, 0.0)
    return made
