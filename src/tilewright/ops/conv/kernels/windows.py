"""A layout step: the windows of an image that overlap, or lie in padding, are cut into rows.

Idea. A row has one tap and channel, and in it each pixel of y has what it sees there: the pixels of
x, shifted by the tap. All images' rows lie behind one another. So a product reads a matrix whose
columns lie side by side, and nothing is exchanged between threads: a row is a copy of pixels as
channels-first images have them, with zeros where the window lies in padding.

Data movement. A workgroup has some rows and neighbouring pixels of y. Neighbouring threads read and
write neighbouring pixels, a step of the windows apart in x. Rows of one channel see the same lines
of x, which the first cache has.

What limits it: memory. It reads the image once and writes each row once. Elements move one by
one, since a tap may shift a line by any number of them; each takes some 15 instructions.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.patches import within
from tilewright.ops.conv.kernels.places import inside, offset
from tilewright.ops.device.division import apart_by


@triton.jit
def windows(
    source, made, columns, rows, plane, levels, first, count, outs, outs_by, sizes, steps, apart,
    before, strides, ROWS: tl.constexpr, PIXELS: tl.constexpr, NDIM: tl.constexpr,
):  # fmt: skip
    """Make the rows `made`, [rows, pixels of y], of the image `source`.

    columns: taps and channels of a window; rows: those with rows of zeros behind. plane: elements
        from a row to the next. levels, first: how a window's elements lie (see `within`).
    count: pixels of y, of all images. outs, sizes: pixels of y and of x, by dimension; outs_by:
        what divides by the former. steps: pixels from a window to the next; apart: from a tap to
        the next; before: of padding before the image.
    strides: of (image, channel, depth, height, width) of x, the first in 64 bits.
    """
    across = tl.cdiv(count, PIXELS)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    pixel = tl.program_id(0) % across * PIXELS + tl.arange(0, PIXELS)
    channel, tap_d, tap_h, tap_w = within(row, levels, first)
    from_d = tap_d * apart[0] - before[0]
    from_h = tap_h * apart[1] - before[1]
    from_w = tap_w * apart[2] - before[2]
    image, d, h, w = apart_by(pixel, outs, outs_by, NDIM)
    d, h, w = d * steps[0], h * steps[1], w * steps[2]
    seen = inside(
        d[None, :] + from_d[:, None], h[None, :] + from_h[:, None], w[None, :] + from_w[:, None],
        sizes, NDIM,
    )  # fmt: skip
    to = channel * strides[1] + offset(from_d, from_h, from_w, strides, NDIM)
    at = image.to(tl.int64) * strides[0] + offset(d, h, w, strides, NDIM)
    there = (pixel < count)[None, :]
    value = tl.load(
        source + (at[None, :] + to[:, None]), mask=seen & there & (row < columns)[:, None], other=0
    )
    place = row.to(tl.int64)[:, None] * plane + pixel[None, :]
    tl.store(made + place, value, mask=there & (row < rows)[:, None])
