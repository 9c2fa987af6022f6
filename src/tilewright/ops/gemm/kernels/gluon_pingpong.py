"""GEMM by two warp groups that take whole tiles by turns, in Gluon (sm_90): "ping-pong".

Idea. In `gluon_ws` the groups share a tile and come to its end together: while they store it,
apply an epilogue to it, and wait for each other, the matrix units idle. Here each group has a tile
of its own, every other one of the workgroup's. One multiplies while the other stores, and the
matrix units pass from one to the other with work for them still queued (CUTLASS calls its kernel
of this kind ping-pong; cuBLASLt's fastest kernels for large products are such by their names).

Data movement. As in `gluon_ws` (see `gluon_ring`, `gluon_store`): one warp fills the ring, whose
slots are tiles of one group at a time, so each is released by one group. A group knows where in the
ring its next tile begins, since it counts the other's steps too. Tiles are half as large as two
groups that share one can have, so more is read from L2 for each product; 128x192 makes up for most
of it, with 192 accumulators a thread.

Turns. A pair of mbarriers, one for each group: a group waits at its own before its first wgmma, and
arrives at the other's when its last is under way. So the groups' products do not mix, and every
tile is done in the time that it would take alone.

Edges, layouts, widths of 192, epilogues, batches: as in `gluon_ws`. Scheduler `persistent` only,
since the groups of a workgroup must have equally many steps in each tile.

On a CPU. `tma` with the same fields computes the same result.

@MEASURED@
"""

from tilewright.ops.gemm.kernels.batching import extra_of, in_batch, in_matrix
from tilewright.ops.gemm.kernels.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    tma_store_wait,
)
from tilewright.ops.gemm.kernels.gluon_ring import (
    OF_TWO_REGISTERS,
    PRODUCER_REGISTERS,
    accumulators,
    b_ring,
    barriers,
    fill,
    multiply,
    settled,
    tiles_of,
)
from tilewright.ops.gemm.kernels.gluon_store import write_tile
from tilewright.ops.gemm.kernels.schedule import tile_coordinates


@jit
def _take_turns(
    c, a_tiles, b_tiles, b_rest, c_tiles, full, empty, turns, m, n, k, extra, batch,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr, BATCHING: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: every second tile of this workgroup."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    tiles = in_batch(each, batch, BATCHING)
    steps = gl.cdiv(k, TILE_K)
    even = c_tiles.index(2 * GROUP)
    odd = c_tiles.index(2 * GROUP + 1)
    done = GROUP * steps
    turn = 1 - GROUP  # of barriers nobody has arrived at: the first group goes ahead
    first = gl.program_id(0) + GROUP * gl.num_programs(0)
    for tile in range(first, tiles, 2 * gl.num_programs(0)):
        z, within = in_matrix(tile, each, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        acc, rest = accumulators(a_tiles, TILE_M, TILE_N, INT_ACC)
        mbarrier.wait(turns.index(GROUP), turn)
        turn ^= 1
        acc, rest, used, _, _ = multiply(
            a_tiles, b_tiles, b_rest, full, empty, acc, rest, steps * 0, steps,
            done % STAGES, done // STAGES & 1, TILE_N, A_ROW, B_ROW, STAGES, 1, 0,
        )  # fmt: skip
        mbarrier.arrive(turns.index(1 - GROUP), count=1)
        done += 2 * steps
        acc, rest = settled(acc, rest, TILE_N)
        mbarrier.arrive(empty.index(used), count=1)
        mine = extra_of(extra, batch, z, TAKES, BATCHING)
        write_tile(
            c, acc, rest, even, odd, mine, m, n, z, row, col, TILE_N,
            C_ROW, SPLIT, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
        )  # fmt: skip
    tma_store_wait(0)


@jit
def gemm_gluon_pingpong(
    a, b, c, m, n, k, extra, batch,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr, BATCHING: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """C = A·B with a, b, c tensor descriptors of the matrices as they lie in memory. Arguments:
    see `gluon_ws`."""
    a_tiles = tiles_of(a, STAGES)
    b_tiles, b_wide, b_rest = b_ring(b, TILE_N, TILE_K, B_ROW, STAGES)
    c_tiles = tiles_of(c, 4)
    full, empty = barriers(STAGES, 1)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_take_turns, (
                c, a_tiles, b_wide, b_rest, c_tiles, full, empty, turns, m, n, k, extra, batch,
                TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW, INT_ACC,
                TAKES, FOLD, LARGEST, BATCHING, SPLIT, STAGES, 0, CHAIN,
            )),
            (_take_turns, (
                c, a_tiles, b_wide, b_rest, c_tiles, full, empty, turns, m, n, k, extra, batch,
                TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW, INT_ACC,
                TAKES, FOLD, LARGEST, BATCHING, SPLIT, STAGES, 1, CHAIN,
            )),
            (fill, (
                a, b, a_tiles, b_tiles, b_rest, full, empty, m, n, k, batch, 0, TILE_M,
                TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, BATCHING, "persistent", STAGES, 1,
            )),
        ],
        [4, 1],
        [OF_TWO_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
