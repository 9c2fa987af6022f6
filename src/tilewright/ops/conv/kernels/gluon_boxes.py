"""Boxes of pixels that the copy engine brings: where one begins, and shared memory that the copy
engine sees as boxes and wgmma as matrices.

A box in shared memory lies as a matrix of as many rows as the box has pixels: the layouts of both
are the same, row after row, each row's span swizzled.

`w` in functions here is a kernel's bundle, with the numbers of boxes along each dimension (`boxes`)
and the pixels of a box (BOX_N to BOX_W).
"""

from tilewright.ops.conv.kernels.places import apart
from tilewright.ops.device.gluon_api import constexpr_function, gl, jit, reinterpreted
from tilewright.ops.device.gluon_ring import before, parts_of, width
from tilewright.ops.device.gluon_store import halves


@jit
def spot(outer, d, h, w, channel, NDIM: gl.constexpr):
    """Coordinates of an image's pixel, or a filter's tap, in an array with channels innermost."""
    if NDIM == 1:
        at = (outer, w, channel)
    elif NDIM == 2:
        at = (outer, h, w, channel)  # type: ignore[assignment]
    else:
        at = (outer, d, h, w, channel)  # type: ignore[assignment]
    return at


@jit
def pixels_of(w, box):
    """The first image and the first pixel of a box of the result."""
    image, at_d, at_h, at_w = apart(box, w.boxes, w.NDIM)
    return image * w.BOX_N, at_d * w.BOX_D, at_h * w.BOX_H, at_w * w.BOX_W


@jit
def following(w, image, at_d, at_h, at_w):
    """The first image and the first pixel of the box behind the one that begins there. A loop over
    boxes that divided each one's number would wait for these divisions at every step."""
    at_w += w.BOX_W
    past = at_w == w.boxes[2] * w.BOX_W
    at_w = gl.where(past, 0, at_w)
    if w.NDIM > 1:
        at_h += gl.where(past, w.BOX_H, 0)
        past = at_h == w.boxes[1] * w.BOX_H
        at_h = gl.where(past, 0, at_h)
    if w.NDIM > 2:
        at_d += gl.where(past, w.BOX_D, 0)
        past = at_d == w.boxes[0] * w.BOX_D
        at_d = gl.where(past, 0, at_d)
    image += gl.where(past, w.BOX_N, 0)
    return image, at_d, at_h, at_w


@jit
def pieces_of(acc, COUNT: gl.constexpr):
    """COUNT parts of a tile's columns, from left to right; 1, 2, 4 or 8."""
    pieces = (acc,)
    if COUNT >= 2:
        pieces = halves(acc)
    if COUNT >= 4:
        p0, p1 = halves(pieces[0])
        p2, p3 = halves(pieces[1])  # type: ignore[misc]
        pieces = (p0, p1, p2, p3)  # type: ignore[assignment]
    if COUNT == 8:
        q0, q1 = halves(p0)
        q2, q3 = halves(p1)
        q4, q5 = halves(p2)
        q6, q7 = halves(p3)
        pieces = (q0, q1, q2, q3, q4, q5, q6, q7)  # type: ignore[assignment]
    return pieces


@jit
def all_pieces(acc, rest, TILE_N: gl.constexpr, PIECE: gl.constexpr):
    """A tile's sums in pieces of PIECE columns, from left to right: those of the first accumulator
    and those of the others."""
    pieces = pieces_of(acc, width(TILE_N, 0) // PIECE)
    for i in gl.static_range(parts_of(TILE_N) - 1):
        pieces += pieces_of(rest[i], width(TILE_N, i + 1) // PIECE)
    return pieces


@constexpr_function
def pending(pieces, number):
    """How many stores of a group may be running when piece `number` of a tile's `pieces` is staged.
    Its two buffers alternate; but if the pieces are odd in number, the last used the buffer with
    which the next tile begins."""
    return 0 if pieces % 2 and number == 0 else 1


@constexpr_function
def boxes_of(tile_n, part, spread):
    """How many boxes bring the columns of an accumulator: one, or one for each `spread` of them."""
    return width(tile_n, part) // spread if spread else 1


@constexpr_function
def boxes_before(tile_n, part, spread):
    """How many bring the columns on the left of an accumulator's."""
    return before(tile_n, part) // spread if spread else part


@jit
def room(
    view, COUNT: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, BOXES: gl.constexpr = 1
):  # fmt: skip
    """Shared memory for COUNT matrices, each of BOXES boxes of a view side by side, as the copy
    engine moves them and as matrices. A matrix of several boxes lies as one that a single box
    brings: in slabs of columns, each as wide as a swizzle's span, one behind the other."""
    SHAPE: gl.constexpr = [COUNT * BOXES] + view.block_type.shape
    boxes = gl.allocate_shared_memory(view.dtype, SHAPE, view.layout)
    FLAT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLS], view.dtype)
    return boxes, reinterpreted(boxes, view.dtype, [COUNT, ROWS, COLS], FLAT)


@jit
def rooms(
    views, COUNT: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, K_ROWS: gl.constexpr,
    SPREAD: gl.constexpr = 0,
):  # fmt: skip
    """`room` for the columns of each accumulator behind the first, by TILE_K; with K_ROWS, for
    TILE_K rows of them, in boxes of SPREAD columns if that is not 0."""
    boxes = ()
    tiles = ()
    for i in gl.static_range(len(views)):
        if K_ROWS:
            box, tile = room(
                views[i], COUNT, TILE_K, width(TILE_N, i + 1), boxes_of(TILE_N, i + 1, SPREAD)
            )
        else:
            box, tile = room(views[i], COUNT, width(TILE_N, i + 1), TILE_K)
        boxes += (box,)  # type: ignore[assignment]
        tiles += (tile,)  # type: ignore[assignment]
    return boxes, tiles
