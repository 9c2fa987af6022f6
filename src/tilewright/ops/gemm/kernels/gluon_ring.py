"""The ring of tiles in shared memory between the warp that loads and the groups that multiply;
shared by `gluon_ws` and `gluon_pingpong`.

The ring has STAGES slots, each with A's tile (or one tile for each group's rows) and B's. A slot
has two mbarriers: `full` (the copies' bytes have arrived) and `empty` (its readers are done). The
ring continues from one part of the work to the next, so the next part's loads begin during the last
steps of the current one.
"""

from tilewright.ops.device import widths
from tilewright.ops.device.gluon_api import (
    constexpr_function,
    gl,
    jit,
    mbarrier,
    reinterpreted,
    tma_load,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.device.schedule import (
    begin_of,
    next_part,
    shared_steps,
    tile_coordinates,
)
from tilewright.ops.gemm.kernels.batching import in_batch, in_matrix, shared_or

PRODUCER_REGISTERS = gl.constexpr(24)
OF_TWO_REGISTERS = gl.constexpr(240)
OF_THREE_REGISTERS = gl.constexpr(160)


wide = constexpr_function(widths.wide)
piece = constexpr_function(widths.piece)


@jit
def place(z, i, j, BATCHING: gl.constexpr):
    """Coordinates of a tile's first element, in a matrix or in matrix `z` of a batch."""
    if BATCHING == "none":
        at = (i, j)
    else:
        at = (z, i, j)  # type: ignore[assignment]
    return at


@jit
def work_of(tiles, steps, splits, SCHEDULER: gl.constexpr):
    """This workgroup's start for `next_part`: the results of `shared_steps` for stream-K, its first
    part, and the number of parts."""
    ways = 1
    share = steps
    at = steps * 0
    end = steps * 0
    part = gl.program_id(0)
    parts = tiles
    if SCHEDULER == "stream_k":
        ways, share, at, end = shared_steps(splits, steps)
        part += splits
    elif SCHEDULER == "split_k":
        parts = tiles * splits
    return ways, share, at, end, part, parts


@jit
def fill(
    a, b, a_tiles, b_tiles, b_rest, full, empty, m, n, k, batch, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, BATCHING: gl.constexpr, SCHEDULER: gl.constexpr,
    INSIDE: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """The producer: loads every K step of every part of this workgroup into the ring."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    tiles = in_batch(each, batch, BATCHING)
    steps = gl.cdiv(k, TILE_K)
    ROWS: gl.constexpr = TILE_M // GROUPS
    WIDE: gl.constexpr = wide(TILE_N)
    BOX_N: gl.constexpr = b.block_type.shape[-1 if B_ROW else -2]
    BYTES: gl.constexpr = GROUPS * a.block_type.nbytes + TILE_N // BOX_N * b.block_type.nbytes
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    _, _, at, end, part, parts = work_of(tiles, steps, splits, SCHEDULER)
    while (at < end) | (part < parts):
        tile, begin, stop, at, part = next_part(at, end, part, splits, steps, SCHEDULER)
        z, within = in_matrix(tile, each, BATCHING)
        z_a = shared_or(z, batch, 1, BATCHING)
        z_b = shared_or(z, batch, 2, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        row = begin_of(tile_m, m, TILE_M, "m", INSIDE)
        col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
        for k0 in range(begin * TILE_K, stop * TILE_K, TILE_K):
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(ready, BYTES)
            for group in gl.static_range(GROUPS):
                a_tile = a_tiles.index(stage * GROUPS + group)
                if A_ROW:
                    tma_load(a, place(z_a, row + group * ROWS, k0, BATCHING), ready, a_tile)
                else:
                    tma_load(a, place(z_a, k0, row + group * ROWS, BATCHING), ready, a_tile)
            for box in gl.static_range(TILE_N // BOX_N):
                # The boxes of one slot are adjacent, so that they form one tile.
                if box < WIDE // BOX_N:
                    b_tile = b_tiles.index(stage * (WIDE // BOX_N) + box)
                else:
                    b_tile = b_rest.index(stage)
                if B_ROW:
                    tma_load(b, place(z_b, k0, col + box * BOX_N, BATCHING), ready, b_tile)
                else:
                    tma_load(b, place(z_b, col + box * BOX_N, k0, BATCHING), ready, b_tile)
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@jit
def accumulators(
    a_tiles, ROWS: gl.constexpr, TILE_N: gl.constexpr, INT_ACC: gl.constexpr
):  # fmt: skip
    """A warp group's sums for ROWS rows: those of the first `wide(TILE_N)` columns, and those of
    the remaining columns. If none remain, the first twice."""
    MMA_K: gl.constexpr = 256 // a_tiles.dtype.primitive_bitwidth
    WIDE: gl.constexpr = wide(TILE_N)
    MMA_N: gl.constexpr = min(WIDE, 128 if INT_ACC else 256)
    ACC: gl.constexpr = gl.int32 if INT_ACC else gl.float32
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MMA_N, MMA_K])
    acc = gl.zeros((ROWS, WIDE), ACC, LAYOUT)
    rest = acc
    if TILE_N > WIDE:
        REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE_N - WIDE, MMA_K])
        rest = gl.zeros((ROWS, TILE_N - WIDE), ACC, REST)
    return acc, rest


@jit
def multiply(
    a_tiles, b_tiles, b_rest, full, empty, acc, rest, begin, stop, stage, phase,
    TILE_N: gl.constexpr, A_ROW: gl.constexpr, B_ROW: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """One warp group's sums over K steps `begin` to `stop`, from the ring. The last wgmma is still
    running. Also returns the slot that it reads, and `stage` and `phase` of the next step. `acc`
    and `rest` give only shapes; their contents are ignored."""
    used = 0
    for step in range(begin, stop):
        mbarrier.wait(full.index(stage), phase)
        a_tile = a_tiles.index(stage * GROUPS + GROUP)
        b_tile = b_tiles.index(stage)
        if not A_ROW:
            a_tile = a_tile.permute((1, 0))
        if not B_ROW:
            b_tile = b_tile.permute((1, 0))
        acc = warpgroup_mma(a_tile, b_tile, acc, use_acc=step > begin, is_async=True)
        if wide(TILE_N) < TILE_N:
            b_tile = b_rest.index(stage)
            if not B_ROW:
                b_tile = b_tile.permute((1, 0))
            rest = warpgroup_mma(a_tile, b_tile, rest, use_acc=step > begin, is_async=True)
            acc, rest = warpgroup_mma_wait(2, deps=(acc, rest))
        else:
            acc = warpgroup_mma_wait(1, deps=(acc,))
        mbarrier.arrive(empty.index(used), count=1, pred=step > begin)
        used = stage
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    return acc, rest, used, stage, phase


@jit
def tiles_of(matrix, COUNT: gl.constexpr):
    """Shared memory for COUNT tiles, each as large as one copy of `matrix` moves."""
    ROWS: gl.constexpr = matrix.block_type.shape[-2]
    COLS: gl.constexpr = matrix.block_type.shape[-1]
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLS], matrix.dtype)
    return gl.allocate_shared_memory(matrix.dtype, [COUNT, ROWS, COLS], LAYOUT)


@jit
def settled(acc, rest, TILE_N: gl.constexpr):
    """The sums, after the last wgmma has ended."""
    if wide(TILE_N) < TILE_N:
        acc, rest = warpgroup_mma_wait(0, deps=(acc, rest))
    else:
        acc = warpgroup_mma_wait(0, deps=(acc,))
    return acc, rest


@jit
def b_ring(
    b, TILE_N: gl.constexpr, TILE_K: gl.constexpr, B_ROW: gl.constexpr, STAGES: gl.constexpr
):
    """Shared memory for B's tiles: as the copies fill it, as wgmma reads it, and for the columns
    past `wide(TILE_N)`."""
    WIDE: gl.constexpr = wide(TILE_N)
    BOX_N: gl.constexpr = b.block_type.shape[-1 if B_ROW else -2]
    boxes = tiles_of(b, STAGES * (WIDE // BOX_N))
    whole = boxes
    rest = boxes
    if TILE_N > WIDE:
        SHAPE: gl.constexpr = [STAGES, TILE_K, WIDE] if B_ROW else [STAGES, WIDE, TILE_K]
        whole = reinterpreted(boxes, b.dtype, SHAPE, boxes.layout)
        rest = tiles_of(b, STAGES)
    return boxes, whole, rest


@jit
def barriers(STAGES: gl.constexpr, READERS: gl.constexpr):
    """The barriers `full` and `empty` of a ring whose slots have READERS groups each. The copy
    engine sees them after the next `fence_async_shared`."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=READERS)
    return full, empty
