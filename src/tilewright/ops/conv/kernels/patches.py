"""A layout step: an image is cut into patches, or put together from them.

Idea. Where windows lie side by side, each pixel of y sees a patch of x that no other sees, and a
patch is a row of a matrix. A workgroup has some columns of a patch, and walks blocks of
neighbouring patches. Where a column lies within a patch takes divisions, and is worked out once; a
block adds where its patches begin.

Data movement. Neighbouring threads move neighbouring columns, in the patches and in the image. With
channels outside of pixels, neighbours of a short row are not near in the image: there neighbouring
threads read neighbouring patches instead (`across`), and the tile is exchanged in shared memory.
Written so, images took longer on an H200.

What limits it: memory, which the image and the patches pass once each. Elements of the image move
one by one, since a patch's rows are as short as a filter's.
"""

import triton
import triton.language as tl


@triton.jit
def within(column, levels, first):
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
    source, made, columns, row, levels, first, across, blocks, each, walked, outs, sizes, steps,
    of_image, strides, BACK: tl.constexpr, PATCHES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Cut the image `source` into the patches `made`; with BACK, make the image of patches.

    columns: elements of a patch; row: elements from a patch to the next, 0 behind `columns`.
    levels, first: how a patch's elements lie (see `within`). steps: pixels from a patch to the
        next, by dimension.
    across: whether neighbouring threads read neighbouring patches of the image.
    blocks: of PATCHES neighbouring patches, in all images; each: those of a workgroup.
    walked: patches of an image, by dimension. Some may lie beyond the `outs` that there are, and
        their pixels are 0 in the image.
    sizes: of the image. of_image: elements from an image to the next; strides: of (channel, depth,
        height, width).
    """
    depth, height, width = walked
    parts = tl.cdiv(row, COLUMNS)
    along = tl.cdiv(width, PATCHES)
    begin = tl.program_id(0) // parts * each
    j = tl.program_id(0) % parts * COLUMNS + tl.arange(0, COLUMNS)
    channel, tap_d, tap_h, tap_w = within(j, levels, first)
    of_channel, of_d, of_h, of_w = strides
    inner = channel * of_channel + tap_d * of_d + tap_h * of_h + tap_w * of_w
    part = begin % along
    rest = begin // along
    out_h = rest % height
    rest = rest // height
    out_d = rest % depth
    n = rest // depth
    for _ in range(begin, min(begin + each, blocks)):
        out_w = part * PATCHES + tl.arange(0, PATCHES)
        first_d, first_h, first_w = out_d * steps[0], out_h * steps[1], out_w * steps[2]
        at = n.to(tl.int64) * of_image + (first_d * of_d + first_h * of_h)
        image = (first_w * of_w)[:, None] + inner[None, :]
        line = ((n.to(tl.int64) * outs[0] + out_d) * outs[1] + out_h) * outs[2] * row
        place = (out_w * row)[:, None] + j[None, :]
        filled = (out_w < width)[:, None] & (j < columns)[None, :]
        if BACK:
            there = (out_w < outs[2]) & (out_d < outs[0]) & (out_h < outs[1])
            whole = there[:, None] & (j < row)[None, :]
            value = tl.load(source + line + place, mask=whole, other=0)
            filled &= first_w[:, None] + tap_w[None, :] < sizes[2]
            whole_lines = (first_d + tap_d < sizes[0]) & (first_h + tap_h < sizes[1])
            filled &= whole_lines[None, :]
            tl.store(made + at + image, value, mask=filled)
        else:
            if across > 0:
                turned = tl.load(source + at + tl.trans(image), mask=tl.trans(filled), other=0)
                value = tl.trans(turned)
            else:
                value = tl.load(source + at + image, mask=filled, other=0)
            whole = (out_w < width)[:, None] & (j < row)[None, :]
            tl.store(made + line + place, value, mask=whole)
        # The next block: of the same line, else of the next line, plane or image.
        part += 1
        out_h += tl.where(part == along, 1, 0)
        part = tl.where(part == along, 0, part)
        out_d += tl.where(out_h == height, 1, 0)
        out_h = tl.where(out_h == height, 0, out_h)
        n += tl.where(out_d == depth, 1, 0)
        out_d = tl.where(out_d == depth, 0, out_d)
