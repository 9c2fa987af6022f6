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

Balance. Groups have parts of K of any size, so their tiles take times of any length. Tiles are
numbered with the largest group's first, and the producer takes the next number from a counter and
tells the others (`gluon_post`): workgroups that got long tiles take fewer. The order is found once,
before the roles part: each group's place is the number of groups that are larger.

What limits it. With many rows a group, the matrix units; with few, writing C. A single group with
most of the rows leaves workgroups without work: its sums are not cut.

Measured on an H200 (docs/notes/moe-layers.md): 0.83 to 0.89 of the time of `weights_tma`.
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
from tilewright.ops.grouped_gemm.kernels.gluon_post import (
    hear,
    heard,
    posted,
    taken,
    tell,
    tell_end,
)
from tilewright.ops.grouped_gemm.kernels.walk import MAX_GROUPS, RAGGED_ROWS, group_rows

Groups = bundle("Groups", "table m n k groups lead places TILE_M TILE_N TILE_K GROUP_M")
"""The products, and how they are cut into tiles."""

PRODUCER_REGISTERS = gl.constexpr(40)
CONSUMER_REGISTERS = gl.constexpr(232)
"""Of a thread. With 24, the warp that looks for tiles and loads them spilled 32 bytes."""
PART = gl.constexpr(128)
"""Groups that are looked through together."""
ONE_WARP = gl.constexpr(gl.BlockedLayout([PART // 32], [32], [1], [0]))
ALL_GROUPS = gl.constexpr(gl.BlockedLayout([MAX_GROUPS // 128], [32], [4], [0]))


@jit
def _tiles(g):
    """Rows and columns of tiles of a group."""
    return gl.cdiv(g.m, g.TILE_M), gl.cdiv(g.n, g.TILE_N)


@jit
def _order(places, table, k, groups, lead):
    """Write each group's place: how many groups have more of K, or as much and a smaller number."""
    group = gl.arange(0, MAX_GROUPS, ALL_GROUPS)
    _, size = group_rows(table, gl.minimum(group, groups - 1), k, lead, False)
    place = group * 0
    for other in range(groups):
        _other, its = group_rows(table, other, k, lead, False)
        place += ((its > size) | ((its == size) & (other < group))).to(gl.int32)
    places.store(gl.where(group < groups, place, MAX_GROUPS).to(gl.int16))


@jit
def _group_at(g, place):
    """The group that has a place."""
    found = gl.zeros([PART], gl.int32, ONE_WARP)
    for part in range(gl.cdiv(g.groups, PART)):
        here = g.places.index(part).load(ONE_WARP).to(gl.int32)
        found += gl.where(here == place, part * PART + gl.arange(0, PART, ONE_WARP), 0)
    return gl.sum(found, 0)


@jit
def _copy(matrix, end, at, column, ready, tile):
    """Copy K rows of a group that ends at `end`, from column `column` on, to a tile."""
    box = reinterpreted(tile, matrix.dtype, matrix.block_type.shape, matrix.layout)
    tma_load(matrix, [RAGGED_ROWS, end, at, column], ready, box)


@jit
def _load(g, ring, post, a, b):
    """The producer: takes tiles, tells the consumers, and loads every K step into the ring."""
    ROWS: gl.constexpr = g.TILE_M // ring.GROUPS
    tiles_m, tiles_n = _tiles(g)
    each = tiles_m * tiles_n
    last = g.groups * each
    slot = 0
    slot_phase = 1  # an unused slot counts as released
    stage = 0
    phase = 1
    number = gl.program_id(0)
    while number < last:
        following = taken(post, last)
        group = _group_at(g, number // each)
        begin, size = group_rows(g.table, group, g.k, g.lead, False)
        tile_m, tile_n = tile_coordinates(number % each, tiles_m, tiles_n, g.GROUP_M)
        row = tile_m * g.TILE_M
        col = tile_n * g.TILE_N
        slot, slot_phase = tell(post, (group, 0, size, row, col), slot, slot_phase, 1)
        for k0 in range(0, size, g.TILE_K):
            at = RAGGED_ROWS - size + k0
            ready = ring.full.index(stage)
            mbarrier.wait(ring.empty.index(stage), phase)
            mbarrier.expect(ready, ring.GROUPS * a.block_type.nbytes + b.block_type.nbytes)
            for i in gl.static_range(ring.GROUPS):
                of_group = ring.a_tiles.index(stage * ring.GROUPS + i)
                _copy(a, begin + size, at, row + i * ROWS, ready, of_group)
            _copy(b, begin + size, at, col, ready, ring.b_tiles.index(stage))
            stage, phase = turned(stage, phase, ring.STAGES)
        number = following
    tell_end(post, slot, slot_phase, 1)


@jit
def _multiply(
    g, ring, post, c, c_tiles, INT_ACC: gl.constexpr, SPLIT: gl.constexpr, MINE: gl.constexpr
):  # fmt: skip
    """A consumer, warp group number MINE: its rows of every tile of this workgroup."""
    ROWS: gl.constexpr = g.TILE_M // ring.GROUPS
    MMA_K: gl.constexpr = 256 // ring.a_tiles.dtype.primitive_bitwidth
    COUNT: gl.constexpr = 4 if SPLIT else 2
    slot = 0
    slot_phase = 0
    stage = 0
    phase = 0
    group, _, size, row, col = hear(post, slot, slot_phase)
    while group >= 0:
        steps = gl.cdiv(size, g.TILE_K)
        row += MINE * ROWS
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
            tma_store(c, [group, row, col + i * (g.TILE_N // COUNT)], box)
        slot, slot_phase = heard(post, slot, slot_phase)
        group, _, size, row, col = hear(post, slot, slot_phase)
    tma_store_wait(0)


@jit
def grouped_weights_gluon_ws(
    a, b, c, table, m, n, k, groups, lead, counter,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    INT_ACC: gl.constexpr, SPLIT: gl.constexpr, STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with a, b, c tensor descriptors; WARP_GROUPS warp groups
    multiply.

    counter: a number that is 0 before and after. Other arguments as in `weights_tma`.
    """
    a_tiles = tiles_of(a, STAGES * WARP_GROUPS)
    b_tiles = tiles_of(b, STAGES)
    c_tiles = tiles_of(c, 2 * WARP_GROUPS)
    full, empty = barriers(STAGES, WARP_GROUPS)
    post = posted(counter, WARP_GROUPS)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    places = gl.allocate_shared_memory(gl.int16, [MAX_GROUPS // PART, PART], PLAIN)
    _order(reinterpreted(places, gl.int16, [MAX_GROUPS], PLAIN), table, k, groups, lead)
    fence_async_shared()  # the copy engine sees the barriers too
    products = Groups(table, m, n, k, groups, lead, places, TILE_M, TILE_N, TILE_K, GROUP_M)
    ring = Ring(a_tiles, b_tiles, (), full, empty, False, True, STAGES, WARP_GROUPS)
    specialized(
        _multiply, (products, ring, post, c, c_tiles, INT_ACC, SPLIT), _load,
        (products, ring, post, a, b), WARP_GROUPS, CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
