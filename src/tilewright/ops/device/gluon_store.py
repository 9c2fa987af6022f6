"""Stores the accumulators of a warp group to C, in Gluon for sm_90; shared by `gluon_ws` and
`gluon_pingpong`.

A group's sums leave in pieces of half the first accumulator's columns (with SPLIT, a quarter). The
epilogue acts on a whole part of the tile before, or on each piece where that would spill. Pieces
pass through two staging buffers of the group by asynchronous stores; a store is waited for only
when its buffer is needed again. A part of the tile that is narrower than a piece leaves whole,
through its own descriptor of C and the beginning of a buffer.

When a tile begins, `touch` asks L2 to fetch the epilogue's vectors, because no load passes the
fence of the piece before. docs/notes/gemm-gluon_store.md has what that saves.
"""

from tilewright.ops.device.epilogue import all_operands, apply, operand_kind, rounded
from tilewright.ops.device.gluon_api import (
    constexpr_function,
    fence_async_shared,
    gl,
    jit,
    reinterpreted,
    tma_store,
    tma_store_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import before, parts, piece, place, width

Output = bundle(
    "Output",
    "c c_rest c_tiles extra m n TILE_N C_ROW SPLIT TAKES FOLD LARGEST BATCHING CHAIN",
)
"""Where sums go: C's descriptors, two staging buffers for each group, the epilogue and its
operands."""


@jit
def indices(tile, AXIS: gl.constexpr):
    """0, 1, 2… along one axis of a tile, for the threads that hold it."""
    return gl.arange(0, tile.shape[AXIS], gl.SliceLayout(1 - AXIS, tile.type.layout))


@constexpr_function
def pieces(tile_n, split, part):
    """In how many pieces an accumulator leaves."""
    columns = parts(tile_n)
    return columns[part] // min(columns[part], piece(columns[0], split))


@constexpr_function
def pieces_before(tile_n, split, part):
    """How many pieces of a tile leave before an accumulator's."""
    columns = parts(tile_n)
    most = piece(columns[0], split)
    return sum(each // min(each, most) for each in columns[:part])


@constexpr_function
def pending(tile_n, split, number):
    """How many stores of the group may be running when piece `number` of a tile is staged. Buffers
    alternate, so the store before the last used the same buffer; but if a tile has an odd number of
    pieces, the last one used the buffer with which the next tile begins."""
    odd = pieces_before(tile_n, split, len(parts(tile_n))) % 2
    return 0 if odd and number == 0 else 1


@constexpr_function
def may_touch(takes, fold):
    """Whether `touch` has anything to do. Columns that are paired leave vectors of two lengths."""
    return fold == 1 and any(kind in "mn" for kind in all_operands(takes))


@constexpr_function
def lanes(count):
    """A power of two that covers so many elements, and the 128 threads of a warp group."""
    return max(128, 1 << (count - 1).bit_length())


@jit
def _touch_one(x, at, size, LENGTH: gl.constexpr):
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    inside = gl.minimum(at + gl.arange(0, lanes(LENGTH), LINE), size - 1)
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [(x + inside).to(gl.int64)],
        dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@jit
def touch(out, extra, row, col, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Bring an epilogue's vectors for the tile at (row, col) into L2, while its sums are not there
    yet."""
    if may_touch(out.TAKES, out.FOLD):
        for j in gl.static_range(len(all_operands(out.TAKES))):
            if operand_kind(out.TAKES, j) == "n":
                _touch_one(extra[j], col, out.n, COLUMNS)
            elif operand_kind(out.TAKES, j) == "m":
                _touch_one(extra[j], row, out.m, ROWS)


@constexpr_function
def by_pieces(takes, columns):
    """Whether each piece of a part with so many columns has an epilogue of its own. Matrices take
    too many registers else; so do two vectors over the columns, and one beside the widest part."""
    return "d" in takes or takes.count("n") > 1 or columns > 192


@jit
def store_piece(out, c, z, row, col, sums, staging, PENDING: gl.constexpr):
    """Write one piece of C, at (row, col) of the product, to memory through the staging buffer
    `staging`, after all stores but the last PENDING have left theirs."""
    piece = rounded(sums, c.dtype, out.LARGEST)
    tma_store_wait(PENDING)
    if out.C_ROW:
        staging.store(piece)
        fence_async_shared()
        tma_store(c, place(z, row, col // out.FOLD, out.BATCHING), staging)
    else:
        staging.permute((1, 0)).store(piece)
        fence_async_shared()
        tma_store(c, place(z, col // out.FOLD, row, out.BATCHING), staging)


@jit
def halves(tile):
    """The left and the right half of a tile in registers."""
    M: gl.constexpr = tile.shape[0]
    N: gl.constexpr = tile.shape[1]
    return tile.reshape((M, 2, N // 2)).permute((0, 2, 1)).split()


@jit
def cut(tile, COUNT: gl.constexpr):
    """A tile in registers as COUNT tiles side by side: one, two, four or eight."""
    found = (tile,)
    if COUNT > 1:
        found = halves(tile)
    if COUNT > 2:
        found = halves(found[0]) + halves(found[1])  # type: ignore[misc]
    if COUNT > 4:
        found = halves(found[0]) + halves(found[1]) + halves(found[2]) + halves(found[3])  # type: ignore[misc]
    return found


@jit
def boxed(c, staging):
    """The beginning of a staging buffer, as boxes of `c` lie in it."""
    ROWS: gl.constexpr = c.block_type.shape[-2]
    COLS: gl.constexpr = c.block_type.shape[-1]
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLS], c.dtype)
    return reinterpreted(staging, c.dtype, [ROWS, COLS], LAYOUT)


@jit
def _finished(out, sums, extra, row, col):
    """Sums at (row, col) after the epilogue."""
    return apply(
        sums, extra, row, col, out.m, out.n, out.CHAIN, out.TAKES, out.C_ROW, True, True, indices
    )


@jit
def write_part(
    out, c, acc, extra, z, row, col, PART: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Write one accumulator of a group, at column `col`, to C, in pieces, alternating between the
    group's two staging buffers."""
    COUNT: gl.constexpr = pieces(out.TILE_N, out.SPLIT, PART)
    FIRST: gl.constexpr = pieces_before(out.TILE_N, out.SPLIT, PART)
    PIECES: gl.constexpr = by_pieces(out.TAKES, width(out.TILE_N, PART))
    if not PIECES:
        acc = _finished(out, acc, extra, row, col)
    found = cut(acc, COUNT)
    for i in gl.static_range(COUNT):
        at = col + i * (width(out.TILE_N, PART) // COUNT)
        sums = found[i]
        if PIECES:
            sums = _finished(out, sums, extra, row, at)
        staging = out.c_tiles.index(2 * GROUP + (FIRST + i) % 2)
        if PART > 0:
            staging = boxed(c, staging)
        store_piece(out, c, z, row, at, sums, staging, pending(out.TILE_N, out.SPLIT, FIRST + i))


@jit
def write_tile(out, acc, rest, extra, z, row, col, GROUP: gl.constexpr):
    """Write a group's sums at (row, col) of matrix `z` to C: `acc`, and the other parts of the tile
    after it, each through its own of the descriptors `c_rest`."""
    write_part(out, out.c, acc, extra, z, row, col, 0, GROUP)
    for i in gl.static_range(len(out.c_rest)):
        there = col + before(out.TILE_N, i + 1)
        write_part(out, out.c_rest[i], rest[i], extra, z, row, there, i + 1, GROUP)
