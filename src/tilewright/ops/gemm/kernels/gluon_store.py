"""Stores the accumulators of a warp group to C, in Gluon for sm_90; shared by `gluon_ws` and
`gluon_pingpong`.

After the epilogue, a group's sums leave in pieces of half the first accumulator's columns (with
SPLIT, a quarter). They pass through two staging buffers of the group by asynchronous stores; a
store is waited for only when its buffer is needed again.
"""

from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    tma_store,
    tma_store_wait,
)
from tilewright.ops.gemm.kernels.gluon_ring import piece, place, wide


@jit
def indices(tile, AXIS: gl.constexpr):
    """0, 1, 2… along one axis of a tile, for the threads that hold it."""
    return gl.arange(0, tile.shape[AXIS], gl.SliceLayout(1 - AXIS, tile.type.layout))


@jit
def store_piece(
    c, z, row, col, piece, staging, extra, m, n, C_ROW: gl.constexpr, TAKES: gl.constexpr,
    FOLD: gl.constexpr, LARGEST: gl.constexpr, BATCHING: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """Apply the epilogue to one piece of the sums, at (row, col), and write it to memory through
    the staging buffer `staging`."""
    piece = apply(piece, extra, row, col, m, n, CHAIN, TAKES, C_ROW, True, True, indices)
    out = rounded(piece, c.dtype, LARGEST)
    tma_store_wait(1)  # the piece before the last has left this buffer
    if C_ROW:
        staging.store(out)
        fence_async_shared()
        tma_store(c, place(z, row, col // FOLD, BATCHING), staging)
    else:
        staging.permute((1, 0)).store(out)
        fence_async_shared()
        tma_store(c, place(z, col // FOLD, row, BATCHING), staging)


@jit
def halves(tile):
    """The left and the right half of a tile in registers."""
    M: gl.constexpr = tile.shape[0]
    N: gl.constexpr = tile.shape[1]
    return tile.reshape((M, 2, N // 2)).permute((0, 2, 1)).split()


@jit
def write(
    c, acc, even, odd, extra, m, n, z, row, col, C_ROW: gl.constexpr, SPLIT: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr, BATCHING: gl.constexpr,
    CHAIN: gl.constexpr,
):  # fmt: skip
    """Write a group's rows of a whole sum to C, in pieces, alternating between its two staging
    buffers."""
    pieces = halves(acc)
    if SPLIT:
        p0, p1 = halves(pieces[0])
        p2, p3 = halves(pieces[1])
        pieces = (p0, p1, p2, p3)
    for i in gl.static_range(len(pieces)):
        at = col + i * pieces[0].shape[1]
        staging = even if i % 2 == 0 else odd
        store_piece(
            c, z, row, at, pieces[i], staging, extra, m, n,
            C_ROW, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
        )  # fmt: skip


@jit
def write_tile(
    c, acc, rest, even, odd, extra, m, n, z, row, col, TILE_N: gl.constexpr, C_ROW: gl.constexpr,
    SPLIT: gl.constexpr, TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    BATCHING: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """Write a group's sums at (row, col) of matrix `z` to C: `acc` and, if the tile has two
    accumulators, `rest` after it."""
    WIDE: gl.constexpr = wide(TILE_N)
    write(
        c, acc, even, odd, extra, m, n, z, row, col,
        C_ROW, SPLIT, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
    )  # fmt: skip
    if TILE_N > WIDE:
        col += WIDE
        PIECE: gl.constexpr = piece(WIDE, SPLIT)
        if TILE_N - WIDE == 2 * PIECE:
            write(
                c, rest, even, odd, extra, m, n, z, row, col,
                C_ROW, False, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
            )  # fmt: skip
        else:
            store_piece(
                c, z, row, col, rest, even, extra, m, n,
                C_ROW, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
            )  # fmt: skip
            tma_store_wait(0)  # the next tile begins with the same buffer
