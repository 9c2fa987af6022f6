"""Elements of an array with any strides, copied or cast into a contiguous array.

Idea. Where x has neighbours along y's last dimension, a workgroup copies a tile of rows. Where x
has its neighbours along another dimension (ACROSS), it turns a tile of these two: the tile is read
along the one and written along the other, as vectors on both sides, and the compiler exchanges
elements between threads through shared memory. Other dimensions are taken apart once for each row,
or once for each tile, and only as many as there are (DIMS).

Where one of the two has few elements, vectors along it would be mostly empty (three channels). Then
elements that lie side by side over both are moved as one row on that side (PACKED: x or y), and
exchanged by their number (`tl.gather`). Rows in which no two elements lie together are copied by
another kernel, over their ends (`strided_runs`).

Data. Every element is read once and written once. Values that change their type pass through fp32;
8 bits saturate. READS and WRITES are what sizes and strides of either side are multiples of, which
the compiler sees by a division that changes nothing: so a lane moves as many elements at once, up
to 16 bytes.

What limits it: memory. In graphs, an H200 (2026-11-30) took 39.0 µs to transpose 128 matrices of
96 × 3136 in bf16, where compiled torch took 39.3, and 102.0 for 4,515 of 700 × 27 in fp16, where it
took 98.9.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._quantise import narrow
from tilewright.ops.device.division import quotient


@triton.jit
def in_steps(number, STEP: tl.constexpr):
    """A number that is a multiple of STEP, so that the compiler sees it."""
    if STEP > 1:
        number = number // STEP * STEP
    return number


@triton.jit
def places(index, sizes, strides, by, shift, ACROSS: tl.constexpr, DIMS: tl.constexpr):
    """Where elements begin in x and in y: of `index`, which counts over the last DIMS dimensions
    without the last and without ACROSS. by, shift: what divides by sizes."""
    from_x = index.to(tl.int64) * 0
    from_y = from_x
    pitch = sizes[5].to(tl.int64)
    for back in tl.static_range(1, DIMS):
        if 5 - back != ACROSS:
            place = index
            if back != DIMS - 1:
                above = quotient(index, by[5 - back], shift[5 - back])
                place = index - above * sizes[5 - back]
                index = above
            from_x += place * strides[5 - back]
            from_y += place * pitch
        pitch *= sizes[5 - back]
    return from_x, from_y


@triton.jit
def pitch_of(sizes, ACROSS: tl.constexpr):
    """Elements of y from one along ACROSS to the next."""
    pitch = sizes[5].to(tl.int64)
    for back in tl.static_range(1, 5 - ACROSS):
        pitch *= sizes[5 - back]
    return pitch


@triton.jit
def put(y, values, scale, inside, has_scale: tl.constexpr):
    """Store values in y's type."""
    if has_scale:
        values = narrow(values.to(tl.float32) / tl.load(scale), y.dtype.element_ty)
    elif values.dtype != y.dtype.element_ty:
        values = narrow(values.to(tl.float32), y.dtype.element_ty)
    tl.store(y, values, inside)


@triton.jit
def pack(values, few, by_few, shift_few):
    """A tile of few rows as one row in the order of columns: what is in front is the tile's."""
    ROWS: tl.constexpr = values.shape[0]
    COLUMNS: tl.constexpr = values.shape[1]
    at = tl.arange(0, ROWS * COLUMNS)
    column = quotient(at, by_few, shift_few)
    source = tl.where(column < COLUMNS, (at - column * few) * COLUMNS + column, 0)
    return tl.gather(values.reshape(ROWS * COLUMNS), source, 0)


@triton.jit
def unpack(row, few, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """What `pack` undoes."""
    i = tl.arange(0, ROWS)[:, None]
    source = tl.where(i < few, tl.arange(0, COLUMNS)[None, :] * few + i, 0)
    return tl.gather(row, source.reshape(ROWS * COLUMNS), 0).reshape(ROWS, COLUMNS)


@triton.jit
def strided_copy(
    x, scale, y, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, s5, rows,
    by_n1, shift_n1, by_n2, shift_n2, by_n3, shift_n3, by_n4, shift_n4, by_few, shift_few,
    by_across, shift_across, by_down, shift_down,
    ACROSS: tl.constexpr, DIMS: tl.constexpr, UNIT: tl.constexpr, READS: tl.constexpr,
    WRITES: tl.constexpr, PACKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    has_scale: tl.constexpr,
):  # fmt: skip
    """A tile of ROWS × COLUMNS. COLUMNS are of y's last dimension; ROWS of all others, or of
    ACROSS. by_…, shift_…: what divides by a size (few: n5), and by the tiles of a line across y and
    down it: a workgroup begins with that, and loads nothing before.

    rows: of all dimensions but the last. UNIT: whether elements of x along ACROSS are neighbours.
    """
    n0 = in_steps(n0, READS if ACROSS == 0 else 1)
    n1 = in_steps(n1, READS if ACROSS == 1 else 1)
    n2 = in_steps(n2, READS if ACROSS == 2 else 1)
    n3 = in_steps(n3, READS if ACROSS == 3 else 1)
    n4 = in_steps(n4, READS if ACROSS == 4 else 1)
    n5 = in_steps(n5, WRITES)
    # The stride along ACROSS, which is 1, is not used. Rows that are packed in x begin as y's do.
    APART: tl.constexpr = WRITES if PACKED == "x" else READS
    sizes = (n0, n1, n2, n3, n4, n5)
    strides = (
        in_steps(s0, APART), in_steps(s1, APART), in_steps(s2, APART),
        in_steps(s3, APART), in_steps(s4, APART), in_steps(s5, APART),
    )  # fmt: skip
    by = (by_n1, by_n1, by_n2, by_n3, by_n4, by_few)
    shift = (shift_n1, shift_n1, shift_n2, shift_n3, shift_n4, shift_few)
    tile = tl.program_id(0)
    line = quotient(tile, by_across, shift_across)
    left = (tile - line * tl.cdiv(n5, COLUMNS)) * COLUMNS
    j = left + tl.arange(0, COLUMNS)
    if ACROSS == 5:
        row = line * ROWS + tl.arange(0, ROWS)
        from_x, _ = places(row, sizes, strides, by, shift, ACROSS, DIMS)
        inside = (row < rows)[:, None] & (j < n5)[None, :]
        step = j if UNIT else j * s5
        values = tl.load(x + from_x[:, None] + step[None, :], inside)
        to = y + row.to(tl.int64)[:, None] * n5 + j[None, :]
    elif PACKED == "y":
        matrix = quotient(tile, by_down, shift_down)
        first = (tile - matrix * tl.cdiv(n4, ROWS)) * ROWS
        i = first + tl.arange(0, ROWS)
        few = tl.arange(0, COLUMNS)
        from_x, from_y = places(matrix, sizes, strides, by, shift, ACROSS, DIMS)
        there = (few < n5)[:, None] & (i < n4)[None, :]
        values = tl.load(x + from_x + (few * strides[5])[:, None] + i[None, :], there)
        values = pack(values, n5, by_few, shift_few)
        at = tl.arange(0, ROWS * COLUMNS)
        inside = (at < ROWS * n5) & (at < (n4 - first) * n5)
        to = y + from_y + first.to(tl.int64) * n5 + at
    elif PACKED == "x":
        from_x, from_y = places(line, sizes, strides, by, shift, ACROSS, DIMS)
        at = tl.arange(0, ROWS * COLUMNS)
        there = (at < COLUMNS * n4) & (at < (n5 - left) * n4)
        row = tl.load(x + from_x + left.to(tl.int64) * n4 + at, there)
        values = unpack(row, n4, ROWS, COLUMNS)
        i = tl.arange(0, ROWS)
        inside = (i < n4)[:, None] & (j < n5)[None, :]
        to = y + from_y + i.to(tl.int64)[:, None] * n5 + j[None, :]
    else:
        matrix = quotient(line, by_down, shift_down)
        i = (line - matrix * tl.cdiv(sizes[ACROSS], ROWS)) * ROWS + tl.arange(0, ROWS)
        from_x, from_y = places(matrix, sizes, strides, by, shift, ACROSS, DIMS)
        inside = (i < sizes[ACROSS])[:, None] & (j < n5)[None, :]
        step = i if UNIT else i * strides[ACROSS]
        values = tl.load(x + from_x + step[:, None] + (j * strides[5])[None, :], inside)
        pitch = pitch_of(sizes, ACROSS)
        to = y + from_y + i.to(tl.int64)[:, None] * pitch + j[None, :]
    put(to, values, scale, inside, has_scale)
