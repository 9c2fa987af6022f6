"""Grouped GEMM of gathered rows, with warp roles written out (sm_90).

Idea. That of `gluon_ws`, whose consumers this kernel has. Rows of A lie anywhere, and Hopper's copy
engine gathers none. So four warps load instead of one: their threads copy A's rows, 16 bytes each
(cp.async), and one of them asks the engine for B. All arrive at the slot's barrier when their
copies have.

Data movement. A thread reads the map once for each tile, and then has an address for each of its
rows. No row of A is written anywhere but to shared memory. Gates and ups that lie apart are taken
by turns by B's tensor map.

Edges. Rows that the map does not mean, and those behind the group's end, are not read; zeros stand
for them. If all rows of the second warp group lie behind it, none of its rows are asked for.

Proxies. Threads have written A, and wgmma reads it as the copy engine would: so each consumer
fences after it has waited for a slot.

On a CPU. Gluon has no interpreter; `basic` with the same fields computes the same result there.

Measured on an H200 in bf16 with SwiGLU (docs/notes/moe-layers.md): 0.68 to 0.95 of the time of
`basic`.
"""

from tilewright.ops.device.gluon_api import (
    constexpr_function,
    copy_arrive,
    copy_load,
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    reinterpreted,
)
from tilewright.ops.device.gluon_ring import Ring, barriers, turned
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.grouped_gemm.kernels.gluon_post import (
    asks_at,
    posted,
    taken,
    tell_end,
    tell_place,
)
from tilewright.ops.grouped_gemm.kernels.gluon_walk import cleared, tiles_of, walked
from tilewright.ops.grouped_gemm.kernels.gluon_ws import Output, load_b, multiply

LOADERS = gl.constexpr(4)
"""Warps that load."""
THREADS = gl.constexpr(128)
LOADER_REGISTERS = gl.constexpr(72)
CONSUMER_REGISTERS = gl.constexpr(216)


@constexpr_function
def copied(dtype, columns):
    """How the loaders' threads copy rows of so many columns: 16 bytes each."""
    vector = 128 // dtype.primitive_bitwidth
    lanes = min(32, columns // vector)
    return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [4, 1], [1, 0])


@jit
def places(w, maps, begin, row, rows, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """The rows of A that ROWS rows of a group are, from its row `row` on, and which there are."""
    at = row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    row_map, rows_a, per_row = maps
    numbers = gl.load(row_map + begin + at, mask=at < rows, other=-1)
    there = (numbers >= 0) & (numbers < rows_a * per_row)
    return (gl.where(there, numbers, 0) // per_row).to(gl.int64), there


@jit
def _load(w, ring, post, a, lda, maps, b):
    """The producers: take tiles, tell the consumers, and load every K step into the ring."""
    ROWS: gl.constexpr = w.TILE_M // ring.GROUPS
    LAYOUT: gl.constexpr = copied(b.dtype, w.TILE_K)
    column = gl.arange(0, w.TILE_K, gl.SliceLayout(0, LAYOUT))
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    slot = 0
    slot_phase = 1
    ask = asks_at(w, ring.STAGES)
    tile = gl.program_id(0)
    while tile < w.tiles:
        group, begin, rows, row, col, slot, slot_phase = tell_place(
            w, post, tile, slot, slot_phase, LOADERS
        )  # fmt: skip
        first, first_there = places(w, maps, begin, row, rows, ROWS, LAYOUT)
        from_first = a + first[:, None] * lda + column[None, :]
        if ring.GROUPS == 2:
            second, second_there = places(w, maps, begin, row + ROWS, rows, ROWS, LAYOUT)
            from_second = a + second[:, None] * lda + column[None, :]
        for k0 in range(0, w.k, w.TILE_K):
            if k0 == ask:
                tile = taken(post, w.tiles)
            ready = ring.full.index(stage)
            mbarrier.wait(ring.empty.index(stage), phase)
            mbarrier.expect(ready, b.block_type.nbytes)
            b_tile = reinterpreted(
                ring.b_tiles.index(stage), b.dtype, b.block_type.shape, b.layout
            )  # fmt: skip
            load_b(b, group, k0, col, ready, b_tile, ring.B_ROW)
            inside = (k0 + column < w.k)[None, :]
            a_tile = ring.a_tiles.index(stage * ring.GROUPS)
            copy_load(a_tile, from_first + k0, mask=first_there[:, None] & inside)
            if ring.GROUPS == 2:  # noqa: SIM102 (a constant, then a number)
                if row + ROWS < rows:
                    a_tile = ring.a_tiles.index(stage * ring.GROUPS + 1)
                    copy_load(a_tile, from_second + k0, mask=second_there[:, None] & inside)
            copy_arrive(ready, increment_count=False)
            stage, phase = turned(stage, phase, ring.STAGES)
    tell_end(post, slot, slot_phase, LOADERS)


@jit
def grouped_gathered_gluon_ws(
    a, b, c, table, m, n, k, lda, groups, lead, c_rows, ldc, zero_rest, row_map, rows_a, per_row,
    counter, extra,
    FORM: gl.constexpr,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    B_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    TAKES: gl.constexpr, WIDTHS: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, whose rows of A the map says, with b and c tensor descriptors
    and a a pointer; WARP_GROUPS warp groups multiply. counter: see `gluon_ws`. Other arguments as
    in `basic`."""
    if zero_rest != 0:
        cleared(c_rows, ldc, table, m, groups, lead, n // FOLD, False)
    ROWS: gl.constexpr = TILE_M // WARP_GROUPS
    PIECE: gl.constexpr = TILE_N // 4 if SPLIT else TILE_N // 2
    a_tiles = tiles_of(b, STAGES * WARP_GROUPS, ROWS, TILE_K)  # of B's type
    if B_ROW:
        b_tiles = tiles_of(b, STAGES, TILE_K, TILE_N)
    else:
        b_tiles = tiles_of(b, STAGES, TILE_N, TILE_K)
    c_tiles = tiles_of(c, 2 * WARP_GROUPS, ROWS, PIECE // FOLD)
    full, empty = barriers(STAGES, WARP_GROUPS, 1 + THREADS)
    walk = walked(
        table, m, n, k, groups, lead, FORM, TILE_M, TILE_N, TILE_K, GROUP_M, SPLIT
    )  # fmt: skip
    post = posted(counter, WARP_GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    ring = Ring(a_tiles, b_tiles, (), full, empty, True, B_ROW, STAGES, WARP_GROUPS)
    output = Output(c, c_tiles, extra, n, SPLIT, TAKES, WIDTHS, FOLD, LARGEST, CHAIN)
    specialized(
        multiply, (walk, ring, post, output, INT_ACC),
        _load, (walk, ring, post, a, lda, (row_map, rows_a, per_row), b), WARP_GROUPS,
        CONSUMER_REGISTERS, LOADER_REGISTERS, LOADERS,
    )  # fmt: skip
