"""A layout step: the gradient of an image is the sum of what windows that overlap have.

Idea. A product has left, for each tap and channel of a filter, what each pixel of y gives to that
pixel of its window. A pixel of x is in as many windows as taps meet it. With the tap that
is nearest to the window's begin goes the last window; each window before it, a step away, has the
pixel a step further. So along a dimension as many are added up as steps fit into the filter; four
are on their way at once.

Data movement. A workgroup has some channels and neighbouring pixels of one image, and reads the
products for them, each once, all channels' of a tap under way together. Products of a tap and
channel lie side by side for all windows, so threads, which are along the pixels, read
neighbours.

What limits it: memory. The products are read once, in fp32, and the image is written once.
"""

import triton
import triton.language as tl


@triton.jit
def overlaps(
    source, made, channels, plane, of_channel, of_tap, outs, sizes, taps, steps, before, of_image,
    strides, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Make the image `made` of the products `source`, [products of a window, images, pixels of y].

    plane: elements from a product of all windows to the next; of_channel, of_tap: products from a
        channel's and a tap's to the next.
    outs, sizes, taps: pixels of y and of x, and taps, by dimension; steps: pixels from a window to
        the next; before: of padding before the image.
    of_image: elements from an image to the next; strides: of (channel, depth, height, width).
    """
    depth, height, width = sizes
    pixels = depth * height * width
    across = tl.cdiv(pixels, PIXELS)
    down = tl.cdiv(channels, CHANNELS)
    part = tl.program_id(0) % across
    rest = tl.program_id(0) // across
    n = (rest // down).to(tl.int64)
    c = rest % down * CHANNELS + tl.arange(0, CHANNELS)
    pixel = part * PIXELS + tl.arange(0, PIXELS)
    w = pixel % width
    h = pixel // width % height
    d = pixel // width // height
    of_c = (c * of_channel).to(tl.int64) * plane + n * (outs[0] * outs[1] * outs[2])
    of_channels = (c < channels)[:, None]
    # What padding of less than nothing leaves out is before all windows.
    d, h, w = d + before[0], h + before[1], w + before[2]
    seen = (pixel < pixels) & (d >= 0) & (h >= 0) & (w >= 0)
    many_h, many_w = tl.cdiv(taps[1], steps[1]), tl.cdiv(taps[2], steps[2])
    every = tl.cdiv(taps[0], steps[0]) * many_h * many_w
    total = tl.zeros((CHANNELS, PIXELS), tl.float32)
    for window in tl.range(0, every, loop_unroll_factor=4):
        i, j, k = window // many_w // many_h, window // many_w % many_h, window % many_w
        tap_d, out_d = d % steps[0] + i * steps[0], d // steps[0] - i
        tap_h, out_h = h % steps[1] + j * steps[1], h // steps[1] - j
        tap_w, out_w = w % steps[2] + k * steps[2], w // steps[2] - k
        meets = seen & (tap_d < taps[0]) & (out_d >= 0) & (out_d < outs[0])
        meets = meets & (tap_h < taps[1]) & (out_h >= 0) & (out_h < outs[1])
        meets = meets & (tap_w < taps[2]) & (out_w >= 0) & (out_w < outs[2])
        tap = (tap_d * taps[1] + tap_h) * taps[2] + tap_w
        out = (out_d * outs[1] + out_h) * outs[2] + out_w
        of_tap_and_pixel = tap.to(tl.int64) * (of_tap * plane) + out
        place = of_tap_and_pixel[None, :] + of_c[:, None]
        total += tl.load(source + place, mask=meets[None, :] & of_channels, other=0)
    d, h, w = d - before[0], h - before[1], w - before[2]
    at = n * of_image + (d * strides[1] + h * strides[2] + w * strides[3])[None, :]
    value = total.to(made.dtype.element_ty)
    tl.store(made + at + (c * strides[0])[:, None], value, of_channels & (pixel < pixels)[None, :])
