"""A layout step: matrices in memory by rows are written by columns.

Idea. Channels-first images are matrices [channels, pixels], one for each image, and kernels that
read channels as neighbours want [pixels, channels]. A workgroup turns one tile of one matrix: it
reads along the columns and writes along the rows, both as neighbours, and the compiler exchanges
elements between threads through shared memory. On the side of the temporary, where channels are
whole vectors, a thread moves vectors.

Of few channels a tile would be mostly empty. There a workgroup takes as many pixels with all their
channels (`few`), one element after the other as they lie on the side of the pixels; on the other
side, these are as many streams as there are channels.

What limits it: memory, which each array passes twice.
"""

import triton
import triton.language as tl

from tilewright.ops.device.division import quotient

AT_ONCE = tl.constexpr(1024)
"""Elements of few channels that are under way at once."""


@triton.jit
def _pixels(
    source, made, rows, columns, source_plane, source_row, made_plane, made_row, channels_by,
    AREA: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """AREA elements of pixels with all their channels, which are rows, and with BACK columns."""
    channels = columns if BACK else rows
    pixels = rows if BACK else columns
    each = tl.cdiv(pixels * channels, AREA)
    z = (tl.program_id(0) // each).to(tl.int64)
    begin = tl.program_id(0) % each * AREA
    for first in range(begin, begin + AREA, AT_ONCE):
        at = first + tl.arange(0, AT_ONCE)
        pixel = quotient(at, channels_by[0], channels_by[1])
        channel = at - pixel * channels
        i = pixel if BACK else channel
        j = channel if BACK else pixel
        value = tl.load(source + z * source_plane + i * source_row + j, mask=pixel < pixels)
        tl.store(made + z * made_plane + j * made_row + i, value, mask=pixel < pixels)


@triton.jit
def _tile(
    source, made, rows, columns, source_plane, source_row, made_plane, made_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(columns, COLUMNS)
    each = tl.cdiv(rows, ROWS) * across
    tile = tl.program_id(0)
    z = (tile // each).to(tl.int64)
    within = tile % each
    i = (within // across) * ROWS + tl.arange(0, ROWS)
    j = (within % across) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    read = source + z * source_plane + i.to(tl.int64)[:, None] * source_row + j[None, :]
    value = tl.load(read, mask=inside)
    write = made + z * made_plane + j.to(tl.int64)[None, :] * made_row + i[:, None]
    tl.store(write, value, mask=inside)


@triton.jit
def turn(
    source, made, rows, columns, source_plane, source_row, made_plane, made_row, few, channels_by,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """made[z, j, i] = source[z, i, j] of a tile; i of `rows`, j of `columns`.

    source_plane, made_plane: elements from a matrix to the next. source_row: from a row to the
    next; made_row: from what was a column to the next. Elements along the other are neighbours.
    few: whether there are few channels, which are rows, and with BACK columns. channels_by: what
        divides by how many there are.
    """
    if few > 0:
        _pixels(
            source, made, rows, columns, source_plane, source_row, made_plane, made_row,
            channels_by, ROWS * COLUMNS, BACK,
        )  # fmt: skip
    else:
        _tile(
            source, made, rows, columns, source_plane, source_row, made_plane, made_row,
            ROWS, COLUMNS,
        )  # fmt: skip
