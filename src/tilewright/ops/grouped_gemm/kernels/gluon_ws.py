"""Grouped GEMM with warp roles written out: one warp loads, others multiply (sm_90).

Idea. That of the GEMM kernel of the same name (`tilewright.ops.gemm.kernels.gluon_ws`): a producer
warp keeps a ring of tiles of A and B full. One or two warp groups multiply, each its own rows of
the tile, with its own copy of the loop. The ring continues from tile to tile, and so from group to
group.

Groups. Before the roles part, four warps add up the groups' tiles (as `walk`) in shared memory.
Every role looks up its tiles there by itself, so none waits to be told its next tile. A consumer
looks one tile ahead, so that the numbers arrive while it multiplies.

Edges. Most groups end inside a tile. If all rows of a warp group lie past the end, its A is not
loaded, and it neither multiplies nor stores but only returns the slots of the ring. The other warp
group then has the matrix units to itself, so half a tile takes less time than a whole tile. C
leaves through a descriptor that ends with the group, as in `tma`.

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

Measured on an H200 in bf16 with skewed loads: 1.141 to 1.380 times the speed of torch._grouped_mm.
It is not clearly ahead of `tma`. More measurements: docs/notes/grouped_gemm-gluon_ws.md.
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
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.grouped_gemm.kernels.walk import (
    COLUMNS,
    MAX_GROUPS,
    RAGGED_ROWS,
    clear_rest,
    group_rows,
)

PRODUCER_REGISTERS = gl.constexpr(24)
CONSUMER_REGISTERS = gl.constexpr(240)
PART = gl.constexpr(128)
"""Groups that a role examines together: few enough for the producer's registers."""


@jit
def _tile_ends(table, ends, m, groups, lead, tiles_n, FORM: gl.constexpr, TILE_M: gl.constexpr):
    """Write into `ends`, for each group, the number of its tiles and all tiles before; returns the
    total. As `walk.tile_ends`."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([MAX_GROUPS // 128], [32], [4], [0])
    group = gl.arange(0, MAX_GROUPS, LAYOUT)
    _, rows = group_rows(table, gl.minimum(group, groups - 1), m, lead, FORM == "masked")
    tiles = (rows + TILE_M - 1) // TILE_M * tiles_n
    tiles = gl.where(group < groups, tiles, 0)
    ends.store(gl.associative_scan(tiles, 0, _plus))
    return gl.sum(tiles, 0)


@jit
def _cleared(c, ldc, table, m, groups, lead, columns, MASKED: gl.constexpr):
    """As `walk.cleared`."""
    OF_GROUPS: gl.constexpr = gl.BlockedLayout([MAX_GROUPS // 128], [32], [4], [0])
    OF_COLUMNS: gl.constexpr = gl.BlockedLayout([COLUMNS // 128], [32], [4], [0])
    group = gl.minimum(gl.arange(0, MAX_GROUPS, OF_GROUPS), groups - 1)
    begin, size = group_rows(table, group, m, lead, MASKED)
    column = gl.arange(0, COLUMNS, OF_COLUMNS)
    clear_rest(
        c, ldc, table, m, groups, lead, gl.max(begin + size, 0), column, columns, MASKED
    )  # fmt: skip


@jit
def _plus(x, y):
    return x + y


@jit
def _find(tile, ends, groups, WARPS: gl.constexpr):
    """The group of a tile, and the number of that group's first tile."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([PART // (32 * WARPS)], [32], [WARPS], [0])
    counts = gl.zeros([PART], gl.int32, LAYOUT)
    latest = gl.zeros([PART], gl.int32, LAYOUT)
    for part in range(gl.cdiv(groups, PART)):
        part_ends = ends.index(part).load(LAYOUT)
        before = part_ends <= tile
        counts += before.to(gl.int32)
        latest = gl.where(before, part_ends, latest)
    return gl.sum(counts, 0), gl.max(latest, 0)


@jit
def _place(
    tile, ends, table, m, groups, lead, tiles_n, FORM: gl.constexpr, TILE_M: gl.constexpr,
    GROUP_M: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """For a tile: its group, that group's first row and number of rows, and the tile's position
    among the group's tiles. For a tile past the last: those of the last group, or meaningless
    values in range."""
    group, first = _find(tile, ends, groups, WARPS)
    group = gl.minimum(group, groups - 1)
    begin, rows = group_rows(table, group, m, lead, FORM == "masked")
    tile_m, tile_n = tile_coordinates(
        tile - first, (rows + TILE_M - 1) // TILE_M, tiles_n, GROUP_M
    )  # fmt: skip
    return group, begin, rows, tile_m, tile_n


@jit
def _load(
    a, b, a_tiles, b_tiles, full, empty, ends, table, m, k, groups, lead, tiles, tiles_n,
    FORM: gl.constexpr, TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr,
    GROUP_M: gl.constexpr, B_ROW: gl.constexpr, STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr,
):  # fmt: skip
    """The producer: loads every K step of every tile of this workgroup into the ring."""
    ROWS: gl.constexpr = TILE_M // WARP_GROUPS
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        group, begin, rows, tile_m, tile_n = _place(
            tile, ends, table, m, groups, lead, tiles_n, FORM, TILE_M, GROUP_M, 1
        )
        row = begin + tile_m * TILE_M
        col = tile_n * TILE_N
        both = (tile_m * TILE_M + ROWS < rows) | (WARP_GROUPS == 1)
        for k0 in range(0, k, TILE_K):
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            if both:
                mbarrier.expect(ready, WARP_GROUPS * a.block_type.nbytes + b.block_type.nbytes)
            else:
                mbarrier.expect(ready, a.block_type.nbytes + b.block_type.nbytes)
            tma_load(a, [row, k0], ready, a_tiles.index(stage * WARP_GROUPS))
            if WARP_GROUPS == 2:
                tma_load(
                    a, [row + ROWS, k0], ready, a_tiles.index(stage * WARP_GROUPS + 1), pred=both
                )
            b_tile = reinterpreted(b_tiles.index(stage), b.dtype, b.block_type.shape, b.layout)
            if B_ROW:
                tma_load(b, [group, k0, col], ready, b_tile)
            else:
                tma_load(b, [group, col, k0], ready, b_tile)
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@jit
def _store(c, begin, rows, row, col, piece, staging):
    """Write one piece of C from registers to memory, through the staging buffer `staging`. Rows
    past the group's end are not written."""
    tma_store_wait(1)  # the last piece but one has left this buffer
    staging.store(piece.to(c.dtype))
    fence_async_shared()
    tma_store(
        c,
        [RAGGED_ROWS, begin + rows, RAGGED_ROWS - rows + row, col],
        reinterpreted(staging, c.dtype, c.block_type.shape, c.layout),
    )


@jit
def _halves(tile):
    """The left and the right half of a tile in registers."""
    M: gl.constexpr = tile.shape[0]
    N: gl.constexpr = tile.shape[1]
    return tile.reshape((M, 2, N // 2)).permute((0, 2, 1)).split()


@jit
def _multiply(
    c, a_tiles, b_tiles, c_tiles, full, empty, ends, table, m, k, groups, lead, tiles, tiles_n,
    FORM: gl.constexpr, TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr,
    GROUP_M: gl.constexpr, B_ROW: gl.constexpr, INT_ACC: gl.constexpr, SPLIT: gl.constexpr,
    STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr, MINE: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number MINE: its rows of every tile of this workgroup."""
    ROWS: gl.constexpr = TILE_M // WARP_GROUPS
    MMA_K: gl.constexpr = 256 // a_tiles.dtype.primitive_bitwidth
    WIDEST: gl.constexpr = 128 if INT_ACC else 256
    MMA_N: gl.constexpr = WIDEST if TILE_N > WIDEST else TILE_N
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MMA_N, MMA_K])
    ACC: gl.constexpr = gl.int32 if INT_ACC else gl.float32
    stage = 0
    phase = 0
    last = 0
    step = gl.num_programs(0)
    _, begin, rows, tile_m, tile_n = _place(
        gl.program_id(0), ends, table, m, groups, lead, tiles_n, FORM, TILE_M, GROUP_M, 4
    )
    for tile in range(gl.program_id(0), tiles, step):
        begin_now = begin
        rows_now = rows
        row = tile_m * TILE_M + MINE * ROWS
        col = tile_n * TILE_N
        _, begin, rows, tile_m, tile_n = _place(
            tile + step, ends, table, m, groups, lead, tiles_n, FORM, TILE_M, GROUP_M, 4
        )
        if row < rows_now:
            acc = gl.zeros((ROWS, TILE_N), ACC, LAYOUT)
            for k0 in range(0, k, TILE_K):
                mbarrier.wait(full.index(stage), phase)
                a_tile = a_tiles.index(stage * WARP_GROUPS + MINE)
                b_tile = b_tiles.index(stage)
                if not B_ROW:
                    b_tile = b_tile.permute((1, 0))
                acc = warpgroup_mma(a_tile, b_tile, acc, use_acc=k0 > 0, is_async=True)
                acc = warpgroup_mma_wait(1, deps=(acc,))
                mbarrier.arrive(empty.index(last), count=1, pred=k0 > 0)
                last = stage
                stage += 1
                if stage == STAGES:
                    stage = 0
                    phase ^= 1
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(empty.index(last), count=1)

            left, right = _halves(acc)
            even = c_tiles.index(2 * MINE)
            odd = c_tiles.index(2 * MINE + 1)
            if SPLIT:
                Q: gl.constexpr = TILE_N // 4
                p0, p1 = _halves(left)
                p2, p3 = _halves(right)
                _store(c, begin_now, rows_now, row, col, p0, even)
                _store(c, begin_now, rows_now, row, col + Q, p1, odd)
                _store(c, begin_now, rows_now, row, col + 2 * Q, p2, even)
                _store(c, begin_now, rows_now, row, col + 3 * Q, p3, odd)
            else:
                _store(c, begin_now, rows_now, row, col, left, even)
                _store(c, begin_now, rows_now, row, col + TILE_N // 2, right, odd)
        else:
            for _ in range(0, k, TILE_K):
                mbarrier.wait(full.index(stage), phase)
                mbarrier.arrive(empty.index(stage), count=1)
                stage += 1
                if stage == STAGES:
                    stage = 0
                    phase ^= 1
    tma_store_wait(0)


@jit
def _tiles(matrix, COUNT: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory for COUNT tiles, as matrices, each as large as one copy of `matrix` moves."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], matrix.dtype)
    return gl.allocate_shared_memory(matrix.dtype, [COUNT, ROWS, COLUMNS], LAYOUT)


@jit
def grouped_gemm_gluon_ws(
    a, b, c, table, m, n, k, groups, lead, c_rows, ldc, zero_rest,
    FORM: gl.constexpr,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    B_ROW: gl.constexpr, INT_ACC: gl.constexpr, SPLIT: gl.constexpr, STAGES: gl.constexpr,
    WARP_GROUPS: gl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with a, b, c tensor descriptors; WARP_GROUPS warp groups
    multiply. Other arguments as in `tma`."""
    if zero_rest != 0:
        _cleared(c_rows, ldc, table, m, groups, lead, n, FORM == "masked")
    ROWS: gl.constexpr = TILE_M // WARP_GROUPS
    PIECE: gl.constexpr = TILE_N // 4 if SPLIT else TILE_N // 2
    a_tiles = _tiles(a, STAGES * WARP_GROUPS, ROWS, TILE_K)
    if B_ROW:
        b_tiles = _tiles(b, STAGES, TILE_K, TILE_N)
    else:
        b_tiles = _tiles(b, STAGES, TILE_N, TILE_K)
    c_tiles = _tiles(c, 2 * WARP_GROUPS, ROWS, PIECE)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=WARP_GROUPS)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ends = gl.allocate_shared_memory(gl.int32, [MAX_GROUPS // PART, PART], PLAIN)
    tiles_n = gl.cdiv(n, TILE_N)
    whole = reinterpreted(ends, gl.int32, [MAX_GROUPS], PLAIN)
    tiles = _tile_ends(table, whole, m, groups, lead, tiles_n, FORM, TILE_M)
    fence_async_shared()  # the copy engine sees the barriers too
    if WARP_GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, full, empty, ends, table, m, k, groups, lead,
                    tiles, tiles_n, FORM, TILE_M, TILE_N, TILE_K, GROUP_M, B_ROW, INT_ACC, SPLIT,
                    STAGES, WARP_GROUPS, 0,
                )),
                (_load, (
                    a, b, a_tiles, b_tiles, full, empty, ends, table, m, k, groups, lead,
                    tiles, tiles_n, FORM, TILE_M, TILE_N, TILE_K, GROUP_M, B_ROW, STAGES,
                    WARP_GROUPS,
                )),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, full, empty, ends, table, m, k, groups, lead,
                    tiles, tiles_n, FORM, TILE_M, TILE_N, TILE_K, GROUP_M, B_ROW, INT_ACC, SPLIT,
                    STAGES, WARP_GROUPS, 0,
                )),
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, full, empty, ends, table, m, k, groups, lead,
                    tiles, tiles_n, FORM, TILE_M, TILE_N, TILE_K, GROUP_M, B_ROW, INT_ACC, SPLIT,
                    STAGES, WARP_GROUPS, 1,
                )),
                (_load, (
                    a, b, a_tiles, b_tiles, full, empty, ends, table, m, k, groups, lead,
                    tiles, tiles_n, FORM, TILE_M, TILE_N, TILE_K, GROUP_M, B_ROW, STAGES,
                    WARP_GROUPS,
                )),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
