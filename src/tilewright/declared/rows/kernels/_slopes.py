"""What the gradients of both norms read and write: rows with what arrives for them, held whole or
piece by piece, and a workgroup's partial sums of the gradients of a weight and a bias."""

import triton
import triton.language as tl


@triton.jit
def weighted(arrived, w, column, columns, offset, has_w: tl.constexpr):
    """What arrived, times the weight."""
    through = arrived
    if has_w:
        weight = tl.load(w + column, column < columns, 0.0).to(tl.float32) + offset
        through = arrived * weight[None, :]
    return through


@triton.jit
def slopes(dy, w, at, column, inside, columns, offset, has_w: tl.constexpr):
    """dy in fp32, and the same times the weight."""
    arrived = tl.load(dy + at, inside, 0.0).to(tl.float32)
    return arrived, weighted(arrived, w, column, columns, offset, has_w)


@triton.jit
def fetched(
    x, dy, residual, row, there, columns, x_stride, residual_stride, BLOCK: tl.constexpr,
    has_residual: tl.constexpr,
):  # fmt: skip
    """Rows of x, dy and the residual, in the types in which they lie; 0 outside."""
    column = tl.arange(0, BLOCK)[None, :]
    inside = there[:, None] & (column < columns)
    xs = tl.load(x + row[:, None] * x_stride + column, inside, 0.0)
    dys = tl.load(dy + row[:, None] * columns + column, inside, 0.0)
    rs = 0.0
    if has_residual:
        rs = tl.load(residual + row[:, None] * residual_stride + column, inside, 0.0)
    return xs, dys, rs


@triton.jit
def widened(xs, dys, rs, has_residual: tl.constexpr):
    """x with the residual added, and dy, in fp32."""
    values = xs.to(tl.float32)
    if has_residual:
        values += rs.to(tl.float32)
    return values, dys.to(tl.float32)


@triton.jit
def add_to(parts, column, columns, values, turn):
    """Add the sums over the rows of a tile to a workgroup's partial sums. Each thread reads what it
    wrote itself: tiles are laid out alike."""
    part = tl.sum(values, 0)
    if turn > 0:
        part += tl.load(parts + column, column < columns, 0.0)
    tl.store(parts + column, part, column < columns)
