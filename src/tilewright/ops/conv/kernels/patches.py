"""A layout step: an image is cut into patches, or put together from them.

Idea. Where windows lie side by side, each pixel of y sees a patch of x that no other sees, and a
patch is a row of a matrix. A workgroup moves some neighbouring patches, and some of their columns.
Where an element lies in the image is the sum of where its patch begins and where its column is
within a patch, so a tile needs few divisions.

What limits it: memory, which the image and the patches pass once each. Elements move one by one,
since a patch's rows are as short as a filter's.
"""

import triton
import triton.language as tl


@triton.jit
def _within(column, levels, first):
    """Channel, and three coordinates of the tap, of a patch's columns by number; `levels` are the
    sizes of all but the outermost of (depth, height, width, channel), or of (channel, depth,
    height, width) if `first`."""
    second, third, fourth = levels
    d = column % fourth
    column = column // fourth
    c = column % third
    column = column // third
    b = column % second
    a = column // second
    outermost = first > 0
    channel = tl.where(outermost, a, d)
    return channel, tl.where(outermost, b, a), tl.where(outermost, c, b), tl.where(outermost, d, c)


@triton.jit
def patches(
    source, made, columns, row, levels, first, walked, outs, sizes, taps, strides,
    BACK: tl.constexpr, PATCHES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Cut the image `source` into the patches `made`; with BACK, make the image of patches.

    columns: elements of a patch; row: elements from a patch to the next, 0 behind `columns`.
    levels, first: how a patch's elements lie (see `_within`). taps: of a patch, by dimension.
    walked: patches of an image, by dimension. Some may lie beyond the `outs` that there are, and
        their pixels are 0 in the image.
    sizes, strides: of the image; strides of (image, channel, depth, height, width).
    """
    depth, height, width = walked
    across = tl.cdiv(row, COLUMNS).to(tl.int32)
    along = tl.cdiv(width, PATCHES)
    rest = tl.program_id(0)
    j = rest % across * COLUMNS + tl.arange(0, COLUMNS)
    rest = rest // across
    out_w = rest % along * PATCHES + tl.arange(0, PATCHES)
    rest = rest // along
    out_h = rest % height
    rest = rest // height
    out_d = rest % depth
    n = (rest // depth).to(tl.int64)

    channel, tap_d, tap_h, tap_w = _within(j, levels, first)
    of_n, of_channel, of_d, of_h, of_w = strides
    begin = n * of_n + out_d * taps[0] * of_d + out_h * taps[1] * of_h
    inner = channel * of_channel + tap_d * of_d + tap_h * of_h + tap_w * of_w
    image = begin + (out_w * taps[2] * of_w)[:, None] + inner[None, :]
    line = ((n * outs[0] + out_d) * outs[1] + out_h) * outs[2]
    place = (line + out_w)[:, None] * row + j[None, :]
    filled = (out_w < width)[:, None] & (j < columns)[None, :]
    if BACK:
        there = (out_d < outs[0]) & (out_h < outs[1]) & (out_w < outs[2])
        value = tl.load(source + place, mask=filled & there[:, None], other=0)
        inside = (out_w * taps[2])[:, None] + tap_w[None, :] < sizes[2]
        inside &= (out_d * taps[0] + tap_d < sizes[0])[None, :]
        inside &= (out_h * taps[1] + tap_h < sizes[1])[None, :]
        tl.store(made + image, value, mask=filled & inside)
    else:
        value = tl.load(source + image, mask=filled, other=0)
        tl.store(made + place, value, mask=(out_w < width)[:, None] & (j < row)[None, :])
