"""Elements of an array with any strides, copied or cast into a contiguous array.

Idea. Where x has neighbours along y's last dimension, a workgroup copies a tile of rows. Where x
has its neighbours along another dimension (ACROSS), it turns a tile of these two: the tile is read
along the one and written along the other, as vectors on both sides, and the compiler exchanges
elements between threads through shared memory. Other dimensions are taken apart once for each row,
or once for each tile, and only as many as there are (DIMS).

Data. Every element is read once and written once. Values that change their type pass through fp32;
8 bits saturate. WIDE is what the compiler was promised in 16s: sizes and strides of what is read,
of what is written, or both.

What limits it: memory. Not timed.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels._quantise import narrow


@triton.jit
def places(index, sizes, strides, ACROSS: tl.constexpr, DIMS: tl.constexpr):
    """Where elements begin in x and in y: of `index`, which counts over the last DIMS dimensions
    without the last and without ACROSS."""
    from_x = index.to(tl.int64) * 0
    from_y = from_x
    pitch = sizes[5].to(tl.int64)
    for back in tl.static_range(1, DIMS):
        if 5 - back != ACROSS:
            place = index
            if back != DIMS - 1:
                place = index % sizes[5 - back]
                index = index // sizes[5 - back]
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
def strided_copy(
    x, scale, y, n0, n1, n2, n3, n4, n5, s0, s1, s2, s3, s4, s5, rows,
    ACROSS: tl.constexpr, DIMS: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, has_scale: tl.constexpr,
):  # fmt: skip
    """A tile of ROWS × COLUMNS. COLUMNS are of y's last dimension; ROWS of all others, or of
    ACROSS.

    rows: of all dimensions but the last. UNIT: whether elements of x along ACROSS are neighbours.
    """
    sizes = (n0, n1, n2, n3, n4, n5)
    strides = (s0, s1, s2, s3, s4, s5)
    across = tl.cdiv(n5, COLUMNS)
    tile = tl.program_id(0)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    if ACROSS == 5:
        row = tile // across * ROWS + tl.arange(0, ROWS)
        from_x, _ = places(row, sizes, strides, ACROSS, DIMS)
        inside = (row < rows)[:, None] & (j < n5)[None, :]
        step = j if UNIT else j * s5
        values = tl.load(x + from_x[:, None] + step[None, :], inside)
        to = y + row.to(tl.int64)[:, None] * n5 + j[None, :]
    else:
        down = tl.cdiv(sizes[ACROSS], ROWS)
        i = tile // across % down * ROWS + tl.arange(0, ROWS)
        from_x, from_y = places(tile // across // down, sizes, strides, ACROSS, DIMS)
        inside = (i < sizes[ACROSS])[:, None] & (j < n5)[None, :]
        step = i if UNIT else i * strides[ACROSS]
        values = tl.load(x + from_x + step[:, None] + (j * s5)[None, :], inside)
        pitch = pitch_of(sizes, ACROSS)
        to = y + from_y + i.to(tl.int64)[:, None] * pitch + j[None, :]
    put(to, values, scale, inside, has_scale)
