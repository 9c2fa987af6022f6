"""A layout step: the gradient of an image is the sum of rows of windows that overlap.

Idea. A product has left, for each pixel of y, a row with what it gives to the pixels of its window:
a filter's taps and channels. A pixel of x is in as many windows as taps meet it. With the tap that
is nearest to the window's begin goes the last window; each window before it, a step away, has the
pixel a step further. So along a dimension as many are added up as steps fit into the filter.

Data movement. A workgroup has some channels and neighbouring pixels of one image, and reads the
rows' elements for them, each once. Channels and taps are side by side in a row, so what the
workgroup's threads read at once is near together, and what they read next is in the same lines.

What limits it: memory. The rows are read once, in fp32, and the image is written once.
"""

import triton
import triton.language as tl


@triton.jit
def overlaps(
    source, made, channels, row, of_channel, of_tap, outs, sizes, taps, steps, before, of_image,
    strides, CHANNELS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Make the image `made` of the rows `source`.

    row: elements from a row to the next; of_channel, of_tap: from a channel and a tap to the next.
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
    of_row = (c * of_channel)[:, None]
    of_channels = (c < channels)[:, None]
    # What padding of less than nothing leaves out is before all windows.
    d, h, w = d + before[0], h + before[1], w + before[2]
    seen = (pixel < pixels) & (d >= 0) & (h >= 0) & (w >= 0)
    total = tl.zeros((CHANNELS, PIXELS), tl.float32)
    for i in range(tl.cdiv(taps[0], steps[0])):
        tap_d, out_d = d % steps[0] + i * steps[0], d // steps[0] - i
        meets_d = seen & (tap_d < taps[0]) & (out_d >= 0) & (out_d < outs[0])
        for j in range(tl.cdiv(taps[1], steps[1])):
            tap_h, out_h = h % steps[1] + j * steps[1], h // steps[1] - j
            meets_h = meets_d & (tap_h < taps[1]) & (out_h >= 0) & (out_h < outs[1])
            for k in range(tl.cdiv(taps[2], steps[2])):
                tap_w, out_w = w % steps[2] + k * steps[2], w // steps[2] - k
                meets = meets_h & (tap_w < taps[2]) & (out_w >= 0) & (out_w < outs[2])
                tap = (tap_d * taps[1] + tap_h) * taps[2] + tap_w
                out = ((n * outs[0] + out_d) * outs[1] + out_h) * outs[2] + out_w
                place = (out * row + tap * of_tap)[None, :] + of_row
                total += tl.load(source + place, mask=meets[None, :] & of_channels, other=0)
    d, h, w = d - before[0], h - before[1], w - before[2]
    at = n * of_image + (d * strides[1] + h * strides[2] + w * strides[3])[None, :]
    value = total.to(made.dtype.element_ty)
    tl.store(made + at + (c * strides[0])[:, None], value, of_channels & (pixel < pixels)[None, :])
