"""The epilogue (see `epilogue`) of a tile whose layout is written out: in Gluon, for CDNA.

The same chain of functions, applied to the accumulator in the matrix instruction's own layout;
operands are loaded in it too, with buffer loads, masked in both dimensions.
"""

from tilewright.ops.gemm.kernels.epilogue import _count, _first, _kind
from tilewright.ops.gemm.kernels.gluon_amd_api import buffer_load, gl, jit


@jit
def _load(
    extra, J: gl.constexpr, row, col, m_left, n_left,
    SHAPE: gl.constexpr, LAYOUT: gl.constexpr, TAKES: gl.constexpr, ROW: gl.constexpr,
):  # fmt: skip
    KIND: gl.constexpr = _kind(TAKES, J)
    rows = gl.arange(0, SHAPE[0], layout=gl.SliceLayout(1, LAYOUT))
    cols = gl.arange(0, SHAPE[1], layout=gl.SliceLayout(0, LAYOUT))
    if KIND == "n":
        x = buffer_load(extra[J], col + cols, mask=cols < n_left).to(gl.float32)[None, :]
    elif KIND == "m":
        x = buffer_load(extra[J], row + rows, mask=rows < m_left).to(gl.float32)[:, None]
    elif KIND == "d":
        ld = extra[len(extra) - 1]
        if ROW:
            offsets = (row + rows)[:, None] * ld + (col + cols)[None, :]
        else:
            offsets = (row + rows)[:, None] + (col + cols)[None, :] * ld
        mask = (rows < m_left)[:, None] & (cols < n_left)[None, :]
        x = buffer_load(extra[J], offsets, mask=mask).to(gl.float32)
    else:
        x = gl.load(extra[J]).to(gl.float32)
    return x


@jit
def _step(
    acc, extra, here, STEP: gl.constexpr, WIDTH: gl.constexpr,
    CHAIN: gl.constexpr, TAKES: gl.constexpr, ROW: gl.constexpr,
):  # fmt: skip
    row, col, m_left, n_left = here
    SHAPE: gl.constexpr = acc.shape
    LAYOUT: gl.constexpr = acc.type.layout
    FOLD: gl.constexpr = WIDTH // SHAPE[1]
    J: gl.constexpr = _first(TAKES, STEP)
    col = col // FOLD
    n_left = n_left // FOLD
    if _count(TAKES, STEP) == 0:
        out = CHAIN[STEP](acc)
    elif _count(TAKES, STEP) == 1:
        x = _load(extra, J, row, col, m_left, n_left, SHAPE, LAYOUT, TAKES, ROW)
        out = CHAIN[STEP](acc, x)
    else:
        x = _load(extra, J, row, col, m_left, n_left, SHAPE, LAYOUT, TAKES, ROW)
        y = _load(extra, J + 1, row, col, m_left, n_left, SHAPE, LAYOUT, TAKES, ROW)
        out = CHAIN[STEP](acc, x, y)
    return out


@jit
def apply(
    acc, extra, here, CHAIN: gl.constexpr, TAKES: gl.constexpr, ROW: gl.constexpr
):  # fmt: skip
    """`acc`, the tile at `here` (row, column, rows and columns left), after the operations of
    CHAIN."""
    out = acc
    if len(CHAIN) > 0:
        WIDTH: gl.constexpr = acc.shape[1]
        out = acc.to(gl.float32)
        for i in gl.static_range(len(CHAIN)):
            out = _step(out, extra, here, i, WIDTH, CHAIN, TAKES, ROW)
    return out
