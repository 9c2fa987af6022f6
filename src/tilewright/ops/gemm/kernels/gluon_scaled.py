"""Block-scaled 8-bit GEMM with the warps' roles written out, in Gluon (sm_90).

Idea. As `gluon_ws`: one warp loads, one or two warp groups of four multiply, each its own rows of
C, each in a partition of its own. Here the products of every K step start from zero, are waited
for, and are added to the sum times their scales by ordinary multiply-adds. While one group adds,
the other one's products keep the matrix units busy.

Registers decide the tile. A group holds its sums and one set of products, and 232 registers a
thread hold 64x128 products (64 of them) beside sums of twice that. So a tile is made of parts of
64 rows and 128 columns (or fewer), and a group has one part or two, which take the products'
registers one after the other. (DeepGEMM's 256x128 tile shares them in this way.) Two parts halve
what a group reads from L2 for each product.

Data movement. A ring of STAGES slots, each with parts of A and of B by the copy engine, and the
scales by asynchronous copies of 4 bytes (so scales are fp32): a vector of 64 for each part of A,
and for each part of B its one scale, 64 times over, so that both are read alike. A slot's `full`
barrier counts the bytes of the former and an arrival from each lane of the latter; `empty` counts
the groups. What a group need not do between products it does under them: it reads scales, releases
the slot before, and waits for the slot behind. C leaves as in `gluon_ws`, part by part, in two
pieces (with SPLIT, four).

Edges. As in `tma`. Scales outside are read at the edge; their products are zeros, or never stored.

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

What limits it. On the large shapes power: profiled (4096×7168×16384, 256x128 tiles, before the
waits were moved under the products), the clock is 1.53 of 1.98 GHz, at which full matrix units
give 1654 TFLOP/s, and they are busy for 73 % of the time; without the additions 86 %. Issue slots
are 31 % used, L2 69 % of its rate.

Measured (H200, Triton 3.6; benchmarks/gemm_quantised.py, interleaved, L2 flushed, medians of 16),
against torch._scaled_mm (cuBLAS) with the same scales, in TFLOP/s:

    4096×7168×16384   1217 to 1191   1.022   128x256 s3 split g8; 1362 by the profiler
    4096×7168×2048    1165 to 1118   1.042   128x256 s3 split g16
    4096×4096×7168    1309 to 1273   1.029   128x256 s3 split g16
    2048×28672×4096   1292 to 1251   1.033   128x256 s3 split g16
    8192×4096×14336   1076 to 1045   1.029   128x256 s4 split g16
    4096×24576×1536   1180 to 1143   1.032   128x256 s4 split g16
    128×7168×2048      308 to  280   1.102   64x128 s8 split, one group
    64×2112×7168       122 to   76   1.599   `tma`, 64x32, split_k 7: this kernel is behind it

In one run on 4096×7168×16384: cuBLAS with one scale for all 716 us, this loop without the
additions (and so wrong) 757, with them 812, cuBLAS with these scales 827.

Tried, on that shape, in multiples of the time of cuBLAS with one scale in the same run. Scales
read from memory by the groups, a K step ahead: 1.27 to 1.33 (256x128), 1.46 to 1.53 (128x256), 1.9
to 2.0 (128x128, whose steps are shorter than the way to L2). Through the ring: 1.21 to 1.27, 1.28,
1.37 to 1.38. Waits under the products, as now: 1.18 to 1.21, 1.13 to 1.15, 1.33. Left out: groups
that take turns, where one issues after the other has issued (1.21 to 1.33) or after a part of the
other's products are done (1.29 to 1.59), since a turn costs more than the overlap it ensures; one
part a group and two sets of products (128x128), so that each group always has some under way
(1.52). Scales of A that lie row by row instead of M-major cost 2 to 4 %.
"""

from tilewright.ops.gemm.kernels.gluon_api import (
    copy_arrive,
    copy_load,
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    tma_load,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.gemm.kernels.scale import size_of
from tilewright.ops.gemm.kernels.schedule import tile_coordinates

LANES = gl.constexpr(32)
PRODUCER_REGISTERS = gl.constexpr(40)
CONSUMER_REGISTERS = gl.constexpr(232)
ROWS = gl.constexpr(64)
"""Rows of a part: what one wgmma computes."""


@jit
def _load(
    a, b, scales, a_tiles, b_tiles, factors, full, empty, m, n, k,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    SCALES: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The producer: every K step of every tile of this workgroup into the ring."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    COLS: gl.constexpr = b.block_type.shape[0]
    A_PARTS: gl.constexpr = TILE_M // ROWS
    B_PARTS: gl.constexpr = TILE_N // COLS
    A_SCALES: gl.constexpr = A_PARTS if size_of(SCALES, 0, 0) > 0 else 0
    B_SCALES: gl.constexpr = B_PARTS if size_of(SCALES, 1, 0) > 0 else 0
    BYTES: gl.constexpr = A_PARTS * a.block_type.nbytes + B_PARTS * b.block_type.nbytes
    stage = 0
    phase = 1  # of a ring nobody has used: every slot counts as released
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        for k0 in range(0, k, TILE_K):
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(ready, BYTES)
            for part in gl.static_range(A_PARTS):
                tma_load(a, [row + part * ROWS, k0], ready, a_tiles.index(stage * A_PARTS + part))
            for part in gl.static_range(B_PARTS):
                tma_load(b, [col + part * COLS, k0], ready, b_tiles.index(stage * B_PARTS + part))
            first = stage * (A_SCALES + B_SCALES)
            for part in gl.static_range(A_SCALES):
                _copy_a(scales, row + part * ROWS, k0, m, factors.index(first + part), SCALES)
            for part in gl.static_range(B_SCALES):
                to = factors.index(first + A_SCALES + part)
                _copy_b(scales, col + part * COLS, k0, n, to, SCALES)
            copy_arrive(ready, increment_count=False)
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@jit
def _copy_a(scales, row, k0, m, to, SCALES: gl.constexpr):
    """Ask for A's scales of the ROWS rows from `row` on. What would lie outside is read at the
    edge, and multiplied with zeros."""
    lanes = gl.arange(0, ROWS, gl.BlockedLayout([1], [LANES], [1], [0]))
    rows = gl.minimum(row + lanes, m - 1) // size_of(SCALES, 0, 0)
    copy_load(to, scales[0] + rows * scales[1] + k0 // size_of(SCALES, 0, 1) * scales[2])


@jit
def _copy_b(scales, col, k0, n, to, SCALES: gl.constexpr):
    """Ask for B's scale of the columns from `col` on, which lie in one block: once for each row."""
    FIRST: gl.constexpr = 3 if size_of(SCALES, 0, 0) > 0 else 0
    zeros = gl.zeros((ROWS,), gl.int32, gl.BlockedLayout([1], [LANES], [1], [0]))
    cols = gl.minimum(col, n - 1) // size_of(SCALES, 1, 1)
    step = k0 // size_of(SCALES, 1, 0) * scales[FIRST + 1]
    copy_load(to, scales[FIRST] + (step + cols * scales[FIRST + 2]) + zeros)


@jit
def _factor(
    factors, first, A_PART: gl.constexpr, B_PART: gl.constexpr, A_PARTS: gl.constexpr,
    SCALES: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Scales of a part of the tile, a factor for each row."""
    VECTOR: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    if size_of(SCALES, 0, 0) == 0:
        factor = factors.index(first + B_PART).load(VECTOR)
    else:
        factor = factors.index(first + A_PART).load(VECTOR)
        if size_of(SCALES, 1, 0) > 0:
            factor *= factors.index(first + A_PARTS + B_PART).load(VECTOR)
    return factor


@jit
def _store(c, row, col, piece, staging, C_ROW: gl.constexpr):
    """One piece of C from registers to memory, through the staging buffer `staging`."""
    out = piece.to(c.dtype)
    tma_store_wait(1)  # the piece before the last has left this buffer
    if C_ROW:
        staging.store(out)
        fence_async_shared()
        tma_store(c, [row, col], staging)
    else:
        staging.permute((1, 0)).store(out)
        fence_async_shared()
        tma_store(c, [col, row], staging)


@jit
def _halves(tile):
    """The left and the right half of a tile in registers."""
    M: gl.constexpr = tile.shape[0]
    N: gl.constexpr = tile.shape[1]
    return tile.reshape((M, 2, N // 2)).permute((0, 2, 1)).split()


@jit
def _store_part(c, row, col, acc, one, other, C_ROW: gl.constexpr, SPLIT: gl.constexpr):
    """A part of C in two pieces (with SPLIT, four), through two staging buffers."""
    COLS: gl.constexpr = acc.shape[1]
    left, right = _halves(acc)
    if SPLIT:
        Q: gl.constexpr = COLS // 4
        p0, p1 = _halves(left)
        p2, p3 = _halves(right)
        _store(c, row, col, p0, one, C_ROW)
        _store(c, row, col + Q, p1, other, C_ROW)
        _store(c, row, col + 2 * Q, p2, one, C_ROW)
        _store(c, row, col + 3 * Q, p3, other, C_ROW)
    else:
        _store(c, row, col, left, one, C_ROW)
        _store(c, row, col + COLS // 2, right, other, C_ROW)


@jit
def _multiply(
    c, a_tiles, b_tiles, c_tiles, factors, full, empty, m, n, k,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    C_ROW: gl.constexpr, SCALES: gl.constexpr, SPLIT: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: its rows of every tile of this workgroup."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    COLS: gl.constexpr = b_tiles.shape[1]
    A_PARTS: gl.constexpr = TILE_M // ROWS
    B_PARTS: gl.constexpr = TILE_N // COLS
    MINE: gl.constexpr = A_PARTS // GROUPS
    DOWN: gl.constexpr = MINE - 1  # where the second part lies, if there is one
    RIGHT: gl.constexpr = B_PARTS - 1
    VECTORS: gl.constexpr = factors.shape[0] // STAGES
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 32])
    SUM: gl.constexpr = gl.int32 if a_tiles.dtype == gl.int8 else gl.float32
    tiles = tiles_m * tiles_n
    stage = 0
    phase = 0
    last = 0
    mbarrier.wait(full.index(stage), phase)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * TILE_M + GROUP * MINE * ROWS
        col = tile_n * TILE_N
        acc0 = gl.zeros((ROWS, COLS), gl.float32, LAYOUT)
        acc1 = gl.zeros((ROWS, COLS), gl.float32, LAYOUT)
        none = gl.zeros((ROWS, COLS), SUM, LAYOUT)
        for k0 in range(0, k, TILE_K):
            a_tile = a_tiles.index(stage * A_PARTS + GROUP * MINE)
            b_tile = b_tiles.index(stage * B_PARTS).permute((1, 0))
            part = warpgroup_mma(a_tile, b_tile, none, use_acc=False, is_async=True)
            mbarrier.arrive(empty.index(last), count=1, pred=k0 > 0)
            first = stage * VECTORS
            factor = _factor(factors, first, GROUP * MINE, 0, A_PARTS, SCALES, LAYOUT)
            last = stage
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
            more = (k0 + TILE_K < k) | (tile + gl.num_programs(0) < tiles)
            if DOWN + RIGHT:
                other = _factor(factors, first, GROUP * MINE + DOWN, RIGHT, A_PARTS, SCALES, LAYOUT)
                part = warpgroup_mma_wait(0, deps=(part,))
                acc0 += part.to(gl.float32) * factor[:, None]
                # The additions must come before the next products, which take the same registers
                # (they do not read them: k is not below 0). Left alone, the compiler mixes the
                # two, and a second set of registers does not fit.
                acc0, part = warpgroup_mma_wait(0, deps=(acc0, part))
                a_tile = a_tiles.index(last * A_PARTS + GROUP * MINE + DOWN)
                b_tile = b_tiles.index(last * B_PARTS + RIGHT).permute((1, 0))
                part = warpgroup_mma(a_tile, b_tile, part, use_acc=k < 0, is_async=True)
                mbarrier.wait(full.index(stage), phase, pred=more)
                part = warpgroup_mma_wait(0, deps=(part,))
                acc1 += part.to(gl.float32) * other[:, None]
            else:
                mbarrier.wait(full.index(stage), phase, pred=more)
                part = warpgroup_mma_wait(0, deps=(part,))
                acc0 += part.to(gl.float32) * factor[:, None]
        mbarrier.arrive(empty.index(last), count=1)
        one = c_tiles.index(2 * GROUP)
        other = c_tiles.index(2 * GROUP + 1)
        _store_part(c, row, col, acc0, one, other, C_ROW, SPLIT)
        if DOWN + RIGHT:
            _store_part(c, row + DOWN * ROWS, col + RIGHT * COLS, acc1, one, other, C_ROW, SPLIT)
    tma_store_wait(0)


@jit
def _tiles(matrix, COUNT: gl.constexpr):
    """Shared memory for COUNT of the tiles that one copy of `matrix` moves."""
    BLOCK: gl.constexpr = matrix.block_type.shape
    return gl.allocate_shared_memory(matrix.dtype, [COUNT, BLOCK[0], BLOCK[1]], matrix.layout)


@jit
def gemm_gluon_scaled(
    a, b, c, m, n, k, scales,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    C_ROW: gl.constexpr, SCALES: gl.constexpr, SPLIT: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """C = A·B with a, b, c tensor descriptors of the matrices as they lie in memory (A row-major,
    B column-major; so B is described as its transpose); GROUPS warp groups multiply. `scales` and
    SCALES: see `scale`."""
    a_tiles = _tiles(a, STAGES * (TILE_M // ROWS))
    b_tiles = _tiles(b, STAGES * (TILE_N // b.block_type.shape[0]))
    c_tiles = _tiles(c, 2 * GROUPS)
    A_SCALES: gl.constexpr = TILE_M // ROWS if size_of(SCALES, 0, 0) > 0 else 0
    B_SCALES: gl.constexpr = TILE_N // b.block_type.shape[0] if size_of(SCALES, 1, 0) > 0 else 0
    factors = gl.allocate_shared_memory(
        gl.float32, [STAGES * (A_SCALES + B_SCALES), ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1 + LANES)
        mbarrier.init(empty.index(stage), count=GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, factors, full, empty, m, n, k,
                    TILE_M, TILE_N, TILE_K, GROUP_M, C_ROW, SCALES, SPLIT, STAGES, GROUPS, 0,
                )),
                (_load, (
                    a, b, scales, a_tiles, b_tiles, factors, full, empty, m, n, k,
                    TILE_M, TILE_N, TILE_K, GROUP_M, SCALES, STAGES,
                )),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, factors, full, empty, m, n, k,
                    TILE_M, TILE_N, TILE_K, GROUP_M, C_ROW, SCALES, SPLIT, STAGES, GROUPS, 0,
                )),
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, factors, full, empty, m, n, k,
                    TILE_M, TILE_N, TILE_K, GROUP_M, C_ROW, SCALES, SPLIT, STAGES, GROUPS, 1,
                )),
                (_load, (
                    a, b, scales, a_tiles, b_tiles, factors, full, empty, m, n, k,
                    TILE_M, TILE_N, TILE_K, GROUP_M, SCALES, STAGES,
                )),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
