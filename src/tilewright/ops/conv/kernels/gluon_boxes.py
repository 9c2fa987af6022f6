"""Boxes of pixels that the copy engine brings: where one begins, and shared memory that the copy
engine sees as boxes and wgmma as matrices.

A box in shared memory lies as a matrix of as many rows as the box has pixels: the layouts of both
are the same, row after row, each row's span swizzled.
"""

from tilewright.ops.conv.kernels.places import apart
from tilewright.ops.device.gluon_api import gl, jit, reinterpreted
from tilewright.ops.gemm.kernels.gluon_store import halves


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
def pixels_of(
    box, boxes, NDIM: gl.constexpr, BOX_N: gl.constexpr, BOX_D: gl.constexpr, BOX_H: gl.constexpr,
    BOX_W: gl.constexpr,
):  # fmt: skip
    """The first image and the first pixel of a box of the result."""
    image, d, h, w = apart(box, boxes, NDIM)
    return image * BOX_N, d * BOX_D, h * BOX_H, w * BOX_W


@jit
def pieces_of(acc, COUNT: gl.constexpr):
    """COUNT parts of a tile's columns, from left to right; 2, 4 or 8."""
    pieces = halves(acc)
    if COUNT >= 4:
        p0, p1 = halves(pieces[0])
        p2, p3 = halves(pieces[1])
        pieces = (p0, p1, p2, p3)
    if COUNT == 8:
        q0, q1 = halves(p0)
        q2, q3 = halves(p1)
        q4, q5 = halves(p2)
        q6, q7 = halves(p3)
        pieces = (q0, q1, q2, q3, q4, q5, q6, q7)
    return pieces


@jit
def room(view, COUNT: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Shared memory for COUNT boxes of a view, as the copy engine moves them and as matrices."""
    SHAPE: gl.constexpr = [COUNT] + view.block_type.shape  # noqa: RUF005 - the compiler's lists
    boxes = gl.allocate_shared_memory(view.dtype, SHAPE, view.layout)
    FLAT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLS], view.dtype)
    return boxes, reinterpreted(boxes, view.dtype, [COUNT, ROWS, COLS], FLAT)
