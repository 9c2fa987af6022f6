"""The ring of tiles in shared memory between the warp that loads and the groups that multiply;
shared by `gluon_ws` and `gluon_pingpong`.

The ring has STAGES slots, each with A's tile (or one tile for each group's rows) and B's. A slot
has two mbarriers: `full` (the copies' bytes have arrived) and `empty` (its readers are done). The
ring continues from one part of the work to the next, so the next part's loads begin during the last
steps of the current one.

A tile whose columns are no power of two is cut into parts that are (`widths.parts`), and each part
has its own descriptor of B, its own ring of B's tiles, and its own accumulator: `b`, `b_tiles` and
`acc` are the first part's, `b_rest`, `rest_tiles` and `rest` tuples of the others'. All share a
slot's barriers.

Programmatic dependent launch. With PDL other than ``none``, the kernel may start before the kernel
before it has ended. So each warp waits for that kernel (`gdc_wait`) before it touches memory that
others may write: those that multiply before anything else, since they store over what the kernel
before may still read, and read operands of the epilogue, flags and partial sums; the one that loads
before its first load. The wait ends when the kernel before has ended and its stores can be seen.
Every workgroup waits, also one without work: otherwise the kernel behind this one could start
before the kernel before this one has ended. With ``a`` or ``b``, the caller has said that nobody
writes to that matrix: its tiles of the first steps, as many as the ring has slots, are requested
before the wait, and those of the other matrix join them in their slots behind it.

The warp that loads lets the next kernel start (`gdc_launch_dependents`) behind its last request.
The grid has at most as many workgroups as there are SMs, so all are resident by then, and the next
kernel takes no place that this one still needs.
"""

from tilewright.ops.device import widths
from tilewright.ops.device.batching import in_batch, in_matrix, shared_or
from tilewright.ops.device.gluon_api import (
    constexpr_function,
    gdc_launch_dependents,
    gdc_wait,
    gl,
    jit,
    mbarrier,
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

PRODUCER_REGISTERS = gl.constexpr(24)
OF_TWO_REGISTERS = gl.constexpr(240)
OF_THREE_REGISTERS = gl.constexpr(160)


parts = constexpr_function(widths.parts)
piece = constexpr_function(widths.piece)


@constexpr_function
def parts_of(tile_n):
    """How many accumulators a tile has."""
    return len(parts(tile_n))


@constexpr_function
def width(tile_n, part):
    """Columns of an accumulator."""
    return parts(tile_n)[part]


@constexpr_function
def before(tile_n, part):
    """Columns of a tile on the left of an accumulator's."""
    return sum(parts(tile_n)[:part])


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
    a, b, b_rest, a_tiles, b_tiles, rest_tiles, full, empty, m, n, k, batch, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, BATCHING: gl.constexpr, SCHEDULER: gl.constexpr,
    INSIDE: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The producer: loads every K step of every part of this workgroup into the ring."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    tiles = in_batch(each, batch, BATCHING)
    steps = gl.cdiv(k, TILE_K)
    ROWS: gl.constexpr = TILE_M // GROUPS
    OF_B: gl.constexpr = b.block_type.nbytes // width(TILE_N, 0) * TILE_N
    BYTES: gl.constexpr = GROUPS * a.block_type.nbytes + OF_B
    AHEAD: gl.constexpr = PDL == "a" or PDL == "b"
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    _, _, at, end, part, parts = work_of(tiles, steps, splits, SCHEDULER)
    if AHEAD:
        early = steps * 0
        if (at < end) | (part < parts):
            tile, begin, stop, _, _ = next_part(at, end, part, splits, steps, SCHEDULER)
            z, within = in_matrix(tile, each, BATCHING)
            tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
            early = gl.minimum(stop - begin, STAGES)
            for slot in range(early):
                k0 = (begin + slot) * TILE_K
                mbarrier.expect(full.index(slot), BYTES)
                if PDL == "a":
                    z_a = shared_or(z, batch, 1, BATCHING)
                    row = begin_of(tile_m, m, TILE_M, "m", INSIDE)
                    load_a(
                        a, a_tiles, full, slot, z_a, row, k0, ROWS, GROUPS, A_ROW, BATCHING, True,
                    )  # fmt: skip
                else:
                    z_b = shared_or(z, batch, 2, BATCHING)
                    col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
                    load_b(
                        b, b_rest, b_tiles, rest_tiles, full, slot, z_b, k0, col, TILE_N, B_ROW,
                        BATCHING, True,
                    )  # fmt: skip
    if PDL != "none":
        gdc_wait()
    while (at < end) | (part < parts):
        tile, begin, stop, at, part = next_part(at, end, part, splits, steps, SCHEDULER)
        z, within = in_matrix(tile, each, BATCHING)
        z_a = shared_or(z, batch, 1, BATCHING)
        z_b = shared_or(z, batch, 2, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        row = begin_of(tile_m, m, TILE_M, "m", INSIDE)
        col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
        for k0 in range(begin * TILE_K, stop * TILE_K, TILE_K):
            mbarrier.wait(empty.index(stage), phase)
            if AHEAD:
                missing = early <= 0  # neither was requested before the wait
                early -= 1
                mbarrier.expect(full.index(stage), BYTES, missing)
            else:
                mbarrier.expect(full.index(stage), BYTES)
            load_a(
                a, a_tiles, full, stage, z_a, row, k0, ROWS, GROUPS, A_ROW, BATCHING,
                missing if PDL == "a" else True,
            )  # fmt: skip
            load_b(
                b, b_rest, b_tiles, rest_tiles, full, stage, z_b, k0, col, TILE_N, B_ROW, BATCHING,
                missing if PDL == "b" else True,
            )  # fmt: skip
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
    if PDL != "none":
        gdc_launch_dependents()


@jit
def load_a(
    a, a_tiles, full, slot, z, row, k0, ROWS: gl.constexpr, GROUPS: gl.constexpr,
    A_ROW: gl.constexpr, BATCHING: gl.constexpr, wanted,
):  # fmt: skip
    """Request A's tiles of a step, one for each group, into a slot of the ring, if they are
    `wanted`."""
    ready = full.index(slot)
    for group in gl.static_range(GROUPS):
        a_tile = a_tiles.index(slot * GROUPS + group)
        if A_ROW:
            tma_load(a, place(z, row + group * ROWS, k0, BATCHING), ready, a_tile, wanted)
        else:
            tma_load(a, place(z, k0, row + group * ROWS, BATCHING), ready, a_tile, wanted)


@jit
def load_b(
    b, b_rest, b_tiles, rest_tiles, full, slot, z, k0, col, TILE_N: gl.constexpr,
    B_ROW: gl.constexpr, BATCHING: gl.constexpr, wanted,
):  # fmt: skip
    """Request B's tile of a step, part by part, into a slot of the ring, if it is `wanted`."""
    ready = full.index(slot)
    load_columns(b, b_tiles.index(slot), ready, z, k0, col, B_ROW, BATCHING, wanted)
    for i in gl.static_range(len(b_rest)):
        there = col + before(TILE_N, i + 1)
        b_tile = rest_tiles[i].index(slot)
        load_columns(b_rest[i], b_tile, ready, z, k0, there, B_ROW, BATCHING, wanted)


@jit
def load_columns(b, b_tile, ready, z, k0, col, B_ROW: gl.constexpr, BATCHING: gl.constexpr, wanted):
    """Request B's columns from `col` on that one box of `b` has."""
    if B_ROW:
        tma_load(b, place(z, k0, col, BATCHING), ready, b_tile, wanted)
    else:
        tma_load(b, place(z, col, k0, BATCHING), ready, b_tile, wanted)


@jit
def zeros(ROWS: gl.constexpr, COLUMNS: gl.constexpr, MMA_K: gl.constexpr, INT_ACC: gl.constexpr):
    """A warp group's sums of COLUMNS columns, as wgmma has them."""
    MMA_N: gl.constexpr = min(COLUMNS, 128 if INT_ACC else 256)
    ACC: gl.constexpr = gl.int32 if INT_ACC else gl.float32
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MMA_N, MMA_K])
    return gl.zeros((ROWS, COLUMNS), ACC, LAYOUT)


@jit
def accumulators(
    a_tiles, ROWS: gl.constexpr, TILE_N: gl.constexpr, INT_ACC: gl.constexpr
):  # fmt: skip
    """A warp group's sums for ROWS rows: those of the first part's columns, and a tuple of those of
    the other parts."""
    MMA_K: gl.constexpr = 256 // a_tiles.dtype.primitive_bitwidth
    acc = zeros(ROWS, width(TILE_N, 0), MMA_K, INT_ACC)
    rest = ()
    for i in gl.static_range(1, parts_of(TILE_N)):
        rest += (zeros(ROWS, width(TILE_N, i), MMA_K, INT_ACC),)  # type: ignore[assignment]
    return acc, rest


@jit
def multiplied(a_tile, b_tile, acc, B_ROW: gl.constexpr, use_acc):
    """`acc` plus the product of two tiles, which is still running."""
    if not B_ROW:
        b_tile = b_tile.permute((1, 0))
    return warpgroup_mma(a_tile, b_tile, acc, use_acc=use_acc, is_async=True)


@jit
def awaited(acc, rest, TILE_N: gl.constexpr, RUNNING: gl.constexpr):
    """The sums, when at most RUNNING wgmma are running."""
    if parts_of(TILE_N) == 1:
        acc = warpgroup_mma_wait(RUNNING, deps=(acc,))
    else:
        sums = (acc,)
        sums += rest
        sums = warpgroup_mma_wait(RUNNING, deps=sums)
        acc = sums[0]
        rest = sums[1:]
    return acc, rest


@jit
def multiply(
    a_tiles, b_tiles, rest_tiles, full, empty, acc, rest, begin, stop, stage, phase,
    TILE_N: gl.constexpr, A_ROW: gl.constexpr, B_ROW: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """One warp group's sums over K steps `begin` to `stop`, from the ring. The last step's wgmma
    are still running. Also returns the slot that they read, and `stage` and `phase` of the next
    step. `acc` and `rest` give only shapes; their contents are ignored."""
    used = 0
    for step in range(begin, stop):
        mbarrier.wait(full.index(stage), phase)
        a_tile = a_tiles.index(stage * GROUPS + GROUP)
        if not A_ROW:
            a_tile = a_tile.permute((1, 0))
        acc = multiplied(a_tile, b_tiles.index(stage), acc, B_ROW, step > begin)
        sums = ()
        for i in gl.static_range(parts_of(TILE_N) - 1):
            b_tile = rest_tiles[i].index(stage)
            product = multiplied(a_tile, b_tile, rest[i], B_ROW, step > begin)
            sums += (product,)  # type: ignore[assignment]
        acc, rest = awaited(acc, sums, TILE_N, parts_of(TILE_N))
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
def rests_of(b_rest, STAGES: gl.constexpr):
    """Shared memory for the tiles of B's other parts, one ring for each."""
    rest_tiles = ()
    for i in gl.static_range(len(b_rest)):
        rest_tiles += (tiles_of(b_rest[i], STAGES),)  # type: ignore[assignment]
    return rest_tiles


@jit
def settled(acc, rest, TILE_N: gl.constexpr):
    """The sums, after the last wgmma has ended."""
    return awaited(acc, rest, TILE_N, 0)


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
