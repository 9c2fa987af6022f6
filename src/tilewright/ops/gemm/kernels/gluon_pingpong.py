"""GEMM by two warp groups that take whole tiles in turn, in Gluon (sm_90): "ping-pong".

Idea. In `gluon_ws` the groups share a tile and finish it together: while they store it, apply an
epilogue to it, and wait for each other, the matrix units idle. Here the groups take alternate tiles
of the workgroup. One group multiplies while the other stores, and the matrix units pass from one
group to the other with work still queued. (CUTLASS calls its kernel of this kind ping-pong; by
their names, cuBLASLt's fastest kernels for large products are of this kind.)

Data movement. As in `gluon_ws` (see `gluon_ring`, `gluon_store`): one warp fills the ring. Each
slot holds tiles of one group, so one group releases it. A group also counts the other group's
steps, and so knows where in the ring its next tile begins. Tiles are at most half as large as those
that two groups can share, so each product reads more from L2. 128x192 makes up for most of this,
with 192 accumulators a thread.

Turns. A pair of mbarriers, one for each group: a group waits at its own before its first wgmma, and
arrives at the other's when its last wgmma is running. So the groups' products do not mix, and every
tile takes the time that it would take alone.

Edges, layouts, odd widths, epilogues, batches and chains are as in `gluon_ws`. The scheduler is
`persistent` only, since the groups of a workgroup must have equally many steps in each tile.

On a CPU. `tma` with the same fields computes the same result.

What limits it. Power: half of a product's energy goes to switching bits, the same in every kernel.
Measured on an H200 against the better of torch.mm and cuBLASLt's eight algorithms, eleven large
products: 0.993 in bf16, 0.991 in fp16 (geometric means). More measurements:
docs/notes/gemm-gluon_pingpong.md.
"""

from tilewright.ops.device.batching import extra_of, in_matrix, of_c
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gdc_wait,
    gl,
    jit,
    mbarrier,
    tma_store_wait,
)
from tilewright.ops.device.gluon_ring import (
    OF_TWO_REGISTERS,
    PRODUCER_REGISTERS,
    Ring,
    accumulators,
    awaited,
    barriers,
    multiply,
    rests_of,
    tiles_of,
)
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.device.gluon_store import Output, touch, write_tile
from tilewright.ops.device.schedule import axes_inside, tile_coordinates
from tilewright.ops.gemm.kernels.gluon_fill import Product, column_of, extent, fill, row_of


@jit
def _take_turns(p, ring, out, turns, INT_ACC: gl.constexpr, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: every second tile of this workgroup."""
    if p.PDL != "none":
        gdc_wait()
    tiles_m, tiles_n, tiles, steps = extent(p)
    done = GROUP * steps
    turn = 1 - GROUP  # nobody has arrived at the barriers yet: the first group goes ahead
    first = gl.program_id(0) + GROUP * gl.num_programs(0)
    for tile in range(first, tiles, 2 * gl.num_programs(0)):
        z, within = in_matrix(tile, tiles_m * tiles_n, p.BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, p.GROUP_M)
        row = row_of(p, tile_m)
        col = column_of(p, tile_n)
        extra = extra_of(out.extra, p.batch, z, out.TAKES, p.BATCHING)
        touch(out, extra, row, col, p.TILE_M, p.TILE_N)
        acc, rest = accumulators(ring.a_tiles, p.TILE_M, p.TILE_N, INT_ACC)
        mbarrier.wait(turns.index(GROUP), turn)
        turn ^= 1
        acc, rest, used, _, _ = multiply(
            ring, acc, rest, steps * 0, steps, done % ring.STAGES, done // ring.STAGES & 1, 0
        )  # fmt: skip
        mbarrier.arrive(turns.index(1 - GROUP), count=1)
        done += 2 * steps
        acc, rest = awaited(acc, rest, 0)
        mbarrier.arrive(ring.empty.index(used), count=1)
        write_tile(out, acc, rest, extra, z, row, col, GROUP)
    tma_store_wait(0)


@jit
def gemm_gluon_pingpong(
    a, b, c, m, n, k, b_rest, c_rest, extra, batch,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr, BATCHING: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """C = A·B with a, b, c tensor descriptors of the matrices as they lie in memory. Arguments: see
    `gluon_ws`."""
    INSIDE: gl.constexpr = axes_inside(A_ROW, B_ROW, C_ROW, "persistent", TAKES)
    a_tiles = tiles_of(a, STAGES)
    b_tiles = tiles_of(b, STAGES)
    rest_tiles = rests_of(b_rest, STAGES)
    c_tiles = tiles_of(c, 4)
    full, empty = barriers(STAGES, 1)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    fence_async_shared()
    product = Product(
        a, b, b_rest, m, n, k, batch, 0, TILE_M, TILE_N, TILE_K, GROUP_M, BATCHING, "persistent",
        INSIDE, PDL,
    )  # fmt: skip
    ring = Ring(a_tiles, b_tiles, rest_tiles, full, empty, A_ROW, B_ROW, STAGES, 1)
    output = Output(
        c, c_rest, c_tiles, extra, m, n, TILE_N, C_ROW, SPLIT, TAKES, FOLD, LARGEST,
        of_c(BATCHING), CHAIN,
    )  # fmt: skip
    specialized(
        _take_turns, (product, ring, output, turns, INT_ACC), fill, (product, ring), 2,
        OF_TWO_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
