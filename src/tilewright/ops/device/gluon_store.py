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
from tilewright.ops.device.gluon_ring import before, parts, parts_of, piece, place, width


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
def touch(
    extra, row, col, m, n, ROWS: gl.constexpr, COLUMNS: gl.constexpr, TAKES: gl.constexpr,
    FOLD: gl.constexpr,
):  # fmt: skip
    """Bring an epilogue's vectors for the tile at (row, col) into L2, while its sums are not there
    yet."""
    if may_touch(TAKES, FOLD):
        for j in gl.static_range(len(all_operands(TAKES))):
            if operand_kind(TAKES, j) == "n":
                _touch_one(extra[j], col, n, COLUMNS)
            elif operand_kind(TAKES, j) == "m":
                _touch_one(extra[j], row, m, ROWS)


@constexpr_function
def by_pieces(takes, columns):
    """Whether each piece of a part with so many columns has an epilogue of its own. Matrices take
    too many registers else; so do two vectors over the columns, and one beside the widest part."""
    return "d" in takes or takes.count("n") > 1 or columns > 192


@jit
def store_piece(
    c, z, row, col, sums, staging, C_ROW: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    BATCHING: gl.constexpr, PENDING: gl.constexpr,
):  # fmt: skip
    """Write one piece of C, at (row, col) of the product, to memory through the staging buffer
    `staging`, after all stores but the last PENDING have left theirs."""
    out = rounded(sums, c.dtype, LARGEST)
    tma_store_wait(PENDING)
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
def write_part(
    c, acc, even, odd, extra, m, n, z, row, col, TILE_N: gl.constexpr, PART: gl.constexpr,
    C_ROW: gl.constexpr, SPLIT: gl.constexpr, TAKES: gl.constexpr, FOLD: gl.constexpr,
    LARGEST: gl.constexpr, BATCHING: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """Write one accumulator of a group, at column `col`, to C, in pieces, alternating between the
    group's two staging buffers."""
    COUNT: gl.constexpr = pieces(TILE_N, SPLIT, PART)
    FIRST: gl.constexpr = pieces_before(TILE_N, SPLIT, PART)
    PIECES: gl.constexpr = by_pieces(TAKES, width(TILE_N, PART))
    if not PIECES:
        acc = apply(acc, extra, row, col, m, n, CHAIN, TAKES, C_ROW, True, True, indices)
    found = cut(acc, COUNT)
    for i in gl.static_range(COUNT):
        at = col + i * (width(TILE_N, PART) // COUNT)
        out = found[i]
        if PIECES:
            out = apply(out, extra, row, at, m, n, CHAIN, TAKES, C_ROW, True, True, indices)
        staging = even if (FIRST + i) % 2 == 0 else odd
        if PART > 0:
            staging = boxed(c, staging)
        store_piece(
            c, z, row, at, out, staging, C_ROW, FOLD, LARGEST, BATCHING,
            pending(TILE_N, SPLIT, FIRST + i),
        )  # fmt: skip


@jit
def write_tile(
    c, c_rest, acc, rest, even, odd, extra, m, n, z, row, col, TILE_N: gl.constexpr,
    C_ROW: gl.constexpr, SPLIT: gl.constexpr, TAKES: gl.constexpr, FOLD: gl.constexpr,
    LARGEST: gl.constexpr, BATCHING: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """Write a group's sums at (row, col) of matrix `z` to C: `acc`, and the other parts of the tile
    after it, each through its own of the descriptors `c_rest`."""
    write_part(
        c, acc, even, odd, extra, m, n, z, row, col, TILE_N, 0,
        C_ROW, SPLIT, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
    )  # fmt: skip
    for i in gl.static_range(parts_of(TILE_N) - 1):
        write_part(
            c_rest[i], rest[i], even, odd, extra, m, n, z, row, col + before(TILE_N, i + 1),
            TILE_N, i + 1, C_ROW, SPLIT, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
        )  # fmt: skip
