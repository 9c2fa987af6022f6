"""Gradients of gated activations.

Idea. With z = alpha · a, for a ≤ limit and |b| ≤ limit (0 elsewhere):

    da = dy · act'(z) · (b + shift);  db = dy · act(z) / alpha

The forward pass keeps nothing: activations are made again from what it read. Tiles are those of the
forward pass, and both gradients lie as the halves do.

What limits it: memory: x and dy are read once, dx is written once. Times: docs/operations.md.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels.gated_activation import halves
from tilewright.ops.device.division import quotient
from tilewright.ops.device.epilogue import clamp


@triton.jit
def activated(z, gate: tl.constexpr):
    """The activation and its slope."""
    if gate == "relu":
        value = tl.where(z > 0.0, z, 0.0)
        slope = tl.where(z > 0.0, 1.0, 0.0)
    elif gate == "gelu":
        share = 0.5 + 0.5 * tl.erf(z * 0.7071067811865476)
        value = z * share
        slope = share + z * tl.exp(-0.5 * (z * z)) * 0.3989422804014327
    elif gate == "gelu_tanh":
        # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)), and 2u is √(8/π) · (z + 0.044715 · z³).
        square = z * z
        share = 1.0 / (1.0 + tl.exp(-z * (1.5957691216057308 + 0.07135481627260025 * square)))
        value = z * share
        steep = 1.5957691216057308 + 0.21406444881780075 * square
        slope = share + value * (1.0 - share) * steep
    else:
        share = 1.0 / (1.0 + tl.exp(-z))
        if gate == "silu":
            value = z * share
            slope = share * (1.0 + z * (1.0 - share))
        else:
            value = share
            slope = share * (1.0 - share)
    return value, slope


@triton.jit
def gated_activation_backward(
    x, dy, up, dx, dup, rows, columns, x_stride, up_stride, limit, alpha, shift,
    by_pieces, shift_pieces, BLOCK: tl.constexpr, ROWS: tl.constexpr, has_up: tl.constexpr,
    gate: tl.constexpr, interleaved: tl.constexpr,
):  # fmt: skip
    """BLOCK columns of ROWS rows."""
    above = quotient(tl.program_id(0), by_pieces, shift_pieces)
    start = (tl.program_id(0) - above * tl.cdiv(columns, BLOCK)) * BLOCK
    row = above.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    column = start + tl.arange(0, BLOCK)
    inside = there & (column < columns)[None, :]
    at = row[:, None] * columns + column[None, :]
    arrived = tl.load(dy + at, inside, 0.0).to(tl.float32)
    a, b = halves(
        x, up, row, there, start, columns, x_stride, up_stride, ROWS, BLOCK, has_up, interleaved
    )
    value, slope = activated(alpha * tl.where(a > limit, limit, a), gate)
    da = arrived * slope * (clamp(b, -limit, limit) + shift)
    db = arrived * value * (1.0 / alpha)
    da = tl.where(a > limit, 0.0, da).to(dx.dtype.element_ty)
    db = tl.where(tl.abs(b) > limit, 0.0, db).to(dx.dtype.element_ty)
    if interleaved:
        both = tl.join(da, db).reshape(ROWS, 2 * BLOCK)
        at = 2 * start + tl.arange(0, 2 * BLOCK)
        inside = there & (at < 2 * columns)[None, :]
        tl.store(dx + row[:, None] * (2 * columns) + at[None, :], both, inside)
    elif has_up:
        tl.store(dx + at, da, inside)
        tl.store(dup + at, db, inside)
    else:
        to = dx + at + row[:, None] * columns
        tl.store(to, da, inside)
        tl.store(to + columns, db, inside)
