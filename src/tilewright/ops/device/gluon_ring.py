"""The ring of tiles in shared memory between the warp that loads and the groups that multiply, in
Gluon for sm_90; shared by GEMM, grouped GEMM and convolution.

The ring has STAGES slots, each with A's tile (or one tile for each group's rows) and B's. A slot
has two mbarriers: `full` (the copies' bytes have arrived) and `empty` (its readers are done). The
ring continues from one part of the work to the next, so the next part's loads begin during the last
steps of the current one.

A tile whose columns are no power of two is cut into parts that are (`widths.parts`), and each part
has its own descriptor of B, its own ring of B's tiles, and its own accumulator: `b`, `b_tiles` and
`acc` are the first part's, `b_rest`, `rest_tiles` and `rest` tuples of the others'. All share a
slot's barriers.
"""

from tilewright.ops.device import widths
from tilewright.ops.device.gluon_api import (
    constexpr_function,
    gl,
    jit,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.schedule import shared_steps

PRODUCER_REGISTERS = gl.constexpr(24)
OF_TWO_REGISTERS = gl.constexpr(240)
OF_THREE_REGISTERS = gl.constexpr(160)


Ring = bundle("Ring", "a_tiles b_tiles rest_tiles full empty A_ROW B_ROW STAGES GROUPS")
"""The ring. A slot has GROUPS tiles of A; A_ROW, B_ROW: tiles lie row by row."""

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
def turned(stage, phase, STAGES: gl.constexpr):
    """Stage and phase of the next slot of a ring."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


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
def awaited(acc, rest, RUNNING: gl.constexpr):
    """The sums, when at most RUNNING wgmma are running."""
    if len(rest) == 0:
        acc = warpgroup_mma_wait(RUNNING, deps=(acc,))
    else:
        sums = (acc,)
        sums += rest
        sums = warpgroup_mma_wait(RUNNING, deps=sums)
        acc = sums[0]
        rest = sums[1:]
    return acc, rest


@jit
def multiply(ring, acc, rest, begin, stop, stage, phase, GROUP: gl.constexpr):
    """One warp group's sums over K steps `begin` to `stop`, from the ring, of which it reads A's
    tile number GROUP of each slot. The last step's wgmma are still running. Also returns the slot
    that they read, and `stage` and `phase` of the next step. `acc` and `rest` give only shapes;
    their contents are ignored."""
    used = 0
    for step in range(begin, stop):
        mbarrier.wait(ring.full.index(stage), phase)
        a_tile = ring.a_tiles.index(stage * ring.GROUPS + GROUP)
        if not ring.A_ROW:
            a_tile = a_tile.permute((1, 0))
        acc = multiplied(a_tile, ring.b_tiles.index(stage), acc, ring.B_ROW, step > begin)
        sums = ()
        for i in gl.static_range(len(ring.rest_tiles)):
            b_tile = ring.rest_tiles[i].index(stage)
            product = multiplied(a_tile, b_tile, rest[i], ring.B_ROW, step > begin)
            sums += (product,)  # type: ignore[assignment]
        acc, rest = awaited(acc, sums, 1 + len(ring.rest_tiles))
        mbarrier.arrive(ring.empty.index(used), count=1, pred=step > begin)
        used = stage
        stage, phase = turned(stage, phase, ring.STAGES)
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
def barriers(STAGES: gl.constexpr, READERS: gl.constexpr, WRITERS: gl.constexpr = 1):
    """The barriers `full` and `empty` of a ring: at a slot's, WRITERS and READERS arrive. The copy
    engine sees them after the next `fence_async_shared`."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=WRITERS)
        mbarrier.init(empty.index(stage), count=READERS)
    return full, empty
