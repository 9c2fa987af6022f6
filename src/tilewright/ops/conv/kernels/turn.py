"""A layout step: matrices in memory by rows are written by columns.

Idea. Channels-first images are matrices [channels, pixels], one for each image, and kernels that
read channels as neighbours want [pixels, channels]. A workgroup turns one tile of one matrix: it
reads along the columns and writes along the rows, both as neighbours, and the compiler exchanges
elements between threads through shared memory.

What limits it: memory, which each array passes twice.
"""

import triton
import triton.language as tl


@triton.jit
def turn(
    source, made, rows, columns, source_plane, source_row, made_plane, made_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """made[z, j, i] = source[z, i, j] of a tile; i of `rows`, j of `columns`.

    source_plane, made_plane: elements from a matrix to the next. source_row: from a row to the
    next; made_row: from what was a column to the next. Elements along the other are neighbours.
    """
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
