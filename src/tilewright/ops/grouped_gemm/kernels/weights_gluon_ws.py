"""Grouped GEMM with groups along K, with warp roles written out (sm_90).

Idea. That of `weights_tma`, with the roles of `gluon_ws`: a producer warp keeps a ring of tiles of
A and B full, one or two warp groups multiply, each its own rows of the tile. A tile has as many K
steps as its group needs. The ring continues from tile to tile, so the next tile's loads, of the
same or of the next group, begin while the current one is multiplied and stored.

Data movement. Tiles of both operands lie with K outside, as in memory, and wgmma reads them
transposed, which it does with 16 bits. The copies end with the group, and fill the rest of a box
with zeros (`catalogue._ragged`). C leaves in pieces through two staging buffers of each warp group.

Edges. A group without rows takes no step, and stores zeros. Rows and columns past C's edge are
loaded as zeros and not stored.

On a CPU. Gluon has no interpreter; `weights_tma` with the same fields computes the same result.

What limits it. The tiles of a large group take longer than those of others, and tiles are dealt out
in turn: the workgroups that got the largest group's tiles last end last.
"""

from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    reinterpreted,
    tma_load,
    tma_store,
    tma_store_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import (
    OF_TWO_REGISTERS,
    PRODUCER_REGISTERS,
    Ring,
    awaited,
    barriers,
    multiply,
    tiles_of,
    turned,
    zeros,
)
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.device.gluon_store import cut
from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.grouped_gemm.kernels.walk import RAGGED_ROWS, group_rows

Groups = bundle("Groups", "table m n k groups lead TILE_M TILE_N TILE_K GROUP_M")
"""The products, and how they are cut into tiles."""


@jit
def _tiles(g):
    """Rows and columns of tiles of a group."""
    return gl.cdiv(g.m, g.TILE_M), gl.cdiv(g.n, g.TILE_N)


@jit
def _place(g, tile):
    """For a tile: its group, that group's part of K (begin and size), and the tile's first row and
    column."""
    tiles_m, tiles_n = _tiles(g)
    group = tile // (tiles_m * tiles_n)
    begin, size = group_rows(g.table, group, g.k, g.lead, False)
    tile_m, tile_n = tile_coordinates(tile % (tiles_m * tiles_n), tiles_m, tiles_n, g.GROUP_M)
    return group, begin, size, tile_m * g.TILE_M, tile_n * g.TILE_N


@jit
def _copy(matrix, end, at, column, ready, tile):
    """Copy K rows of a group that ends at `end`, from column `column` on, to a tile."""
    box = reinterpreted(tile, matrix.dtype, matrix.block_type.shape, matrix.layout)
    tma_load(matrix, [RAGGED_ROWS, end, at, column], ready, box)


@jit
def _load(g, ring, a, b):
    """The producer: loads every K step of every tile of this workgroup into the ring."""
    ROWS: gl.constexpr = g.TILE_M // ring.GROUPS
    tiles_m, tiles_n = _tiles(g)
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    for tile in range(gl.program_id(0), g.groups * tiles_m * tiles_n, gl.num_programs(0)):
        _, begin, size, row, col = _place(g, tile)
        end = begin + size
        for k0 in range(0, size, g.TILE_K):
            at = RAGGED_ROWS - size + k0
            ready = ring.full.index(stage)
            mbarrier.wait(ring.empty.index(stage), phase)
            mbarrier.expect(ready, ring.GROUPS * a.block_type.nbytes + b.block_type.nbytes)
            for i in gl.static_range(ring.GROUPS):
                of_group = ring.a_tiles.index(stage * ring.GROUPS + i)
                _copy(a, end, at, row + i * ROWS, ready, of_group)
            _copy(b, end, at, col, ready, ring.b_tiles.index(stage))
            stage, phase = turned(stage, phase, ring.STAGES)


@jit
def _multiply(g, ring, c, c_tiles, INT_ACC: gl.constexpr, SPLIT: gl.constexpr, MINE: gl.constexpr):
    """A consumer, warp group number MINE: its rows of every tile of this workgroup."""
    ROWS: gl.constexpr = g.TILE_M // ring.GROUPS
    MMA_K: gl.constexpr = 256 // ring.a_tiles.dtype.primitive_bitwidth
    COUNT: gl.constexpr = 4 if SPLIT else 2
    tiles_m, tiles_n = _tiles(g)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), g.groups * tiles_m * tiles_n, gl.num_programs(0)):
        group, _, size, row, col = _place(g, tile)
        steps = gl.cdiv(size, g.TILE_K)
        acc = zeros(ROWS, g.TILE_N, MMA_K, INT_ACC)
        acc, rest, used, stage, phase = multiply(ring, acc, (), 0, steps, stage, phase, MINE)
        acc, rest = awaited(acc, rest, 0)
        mbarrier.arrive(ring.empty.index(used), count=1, pred=steps > 0)
        pieces = cut(acc, COUNT)
        for i in gl.static_range(COUNT):
            tma_store_wait(1)  # the last piece but one has left this buffer
            staging = c_tiles.index(2 * MINE + i % 2)
            staging.store(pieces[i].to(c.dtype))
            fence_async_shared()
            box = reinterpreted(staging, c.dtype, c.block_type.shape, c.layout)
            tma_store(c, [group, row + MINE * ROWS, col + i * (g.TILE_N // COUNT)], box)
    tma_store_wait(0)


@jit
def grouped_weights_gluon_ws(
    a, b, c, table, m, n, k, groups, lead,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    INT_ACC: gl.constexpr, SPLIT: gl.constexpr, STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with a, b, c tensor descriptors; WARP_GROUPS warp groups
    multiply. Other arguments as in `weights_tma`."""
    a_tiles = tiles_of(a, STAGES * WARP_GROUPS)
    b_tiles = tiles_of(b, STAGES)
    c_tiles = tiles_of(c, 2 * WARP_GROUPS)
    full, empty = barriers(STAGES, WARP_GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    products = Groups(table, m, n, k, groups, lead, TILE_M, TILE_N, TILE_K, GROUP_M)
    ring = Ring(a_tiles, b_tiles, (), full, empty, False, True, STAGES, WARP_GROUPS)
    specialized(
        _multiply, (products, ring, c, c_tiles, INT_ACC, SPLIT), _load, (products, ring, a, b),
        WARP_GROUPS, OF_TWO_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
