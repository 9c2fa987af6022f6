"""GEMM with the warps' roles written out, in Gluon: one warp loads, the others multiply (sm_90).

Idea. Triton 3.6 does not specialise warps on sm_90 (see `tma`), so it is done by hand. One warp,
with 24 registers a thread, does nothing but ask the copy engine for tiles. One or two warp groups
(GROUPS; four warps each, up to 240 registers) multiply. The groups are partitions of their own:
each has its own TILE_M / GROUPS rows of A and C, its own copy of the loop and its own barrier.
They share B, but never wait for each other: while one stores its part of C the other may still
be multiplying, so the matrix units need not idle during an epilogue.

Data movement. A ring of STAGES slots in shared memory, each with a tile of A per group and one of
B. A slot has two mbarriers: `full` (the copies' bytes have arrived) and `empty` (every group has
read it). A group keeps one wgmma batch in flight and releases the slot before it. The ring runs
on from tile to tile: the loads of the next tile start during the last steps of this one. C leaves
in pieces of TILE_N / 2 columns (with SPLIT, TILE_N / 4), through two staging buffers a group, by
asynchronous stores that are waited for only when their buffer is needed again.

Edges. As in `tma`: the copy engine fills what lies outside with zeros and does not write there.

Layouts. Operands are read in shared memory as they lie in memory; wgmma transposes 16-bit ones on
the way. 8-bit and tf32 operands must have K contiguous, which a rule says.

Schedulers. Persistent only: without a next tile there is nothing to overlap.

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

What limits it. For 16-bit operands, power: on an H200 with random data every good kernel here,
cuBLAS too, runs at the board's 700 W and 1.41 to 1.50 GHz, so a kernel that waits less is clocked
lower. On zeros, at 450 W, this one is ahead of cuBLAS by 5 to 7 %. What would help is less energy
for each operation: TMA multicast to a pair of workgroups would save a third of the reads from L2,
but Triton 3.6 does not have it.

Measured (H200, Triton 3.6, torch's cuBLAS; interleaved, L2 flushed, medians of 60 or 20 samples).
Ratios to cuBLAS on 4096³, 8192³, 2048×28672×4096 and 8192×4096×14336, in this order:

    bf16  128x256x64  s3 direct g16     1.001  1.025  1.005  1.000   16384²×4096: 1.022
    bf16  128x256x64  s4 split g16      0.999  1.024  0.997  1.000   16384²×4096: 1.023
    bf16  tma, the same tile, s3        0.997  1.020  0.999  0.997   16384²×4096: 1.010
    fp8   128x256x128 s3 direct g8      1.004  1.027  1.013  0.998   (1219 to 1312 TFLOP/s)
    fp8   tma, the same tile, s3        1.004  1.016  0.999  0.994
    int8  128x256x128 s3 split g8       1.532  1.583  1.569  1.613   (1276 to 1443 TFLOP/s)
    int8  128x128x128 s4 split g8       1.490  1.628  1.586  1.581
    int8  tma, 128x256x128 s3           1.301  1.332  1.314  1.340
    bf16  on zeros, repeated, s4 g16      -    1.074  1.049    -

Tried, and left out. Three warp groups on 192x256 tiles (22 % fewer reads from L2): the clock rose
from 1.41 to 1.50 GHz, but with three stages and unlucky counts of tiles it came to 0.89 to 1.01;
m64n256 also needs 154 registers at launch, where four groups have 128, so wgmma had to be split in
two. Walking K backwards in every other tile, to find the last tile's operands in L2: no difference
beyond noise. tile_k = 128 with two stages: 0.67 to 0.69. One warp group on 128x128 tiles: 0.94 to
1.00. 256x128 tiles: a little under 128x256.
"""

from tilewright.ops.gemm.kernels.batching import in_batch, in_matrix, shared_or
from tilewright.ops.gemm.kernels.gluon_api import (
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
from tilewright.ops.gemm.kernels.schedule import tile_coordinates

PRODUCER_REGISTERS = gl.constexpr(24)
CONSUMER_REGISTERS = gl.constexpr(240)


@jit
def _at(z, i, j, BATCHING: gl.constexpr):
    """Coordinates of a tile's first element, of a matrix or of matrix `z` of a batch."""
    if BATCHING == "none":
        at = (i, j)
    else:
        at = (z, i, j)  # type: ignore[assignment]
    return at


@jit
def _load(
    a, b, a_tiles, b_tiles, full, empty, m, n, k, batch,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, BATCHING: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """The producer: every K step of every tile of this workgroup into the ring."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    tiles = in_batch(each, batch, BATCHING)
    ROWS: gl.constexpr = TILE_M // GROUPS
    stage = 0
    phase = 1  # of a ring nobody has used: every slot counts as released
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        z, within = in_matrix(tile, each, BATCHING)
        z_a = shared_or(z, batch, 1, BATCHING)
        z_b = shared_or(z, batch, 2, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        for k0 in range(0, k, TILE_K):
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(ready, GROUPS * a.block_type.nbytes + b.block_type.nbytes)
            for group in gl.static_range(GROUPS):
                a_tile = a_tiles.index(stage * GROUPS + group)
                if A_ROW:
                    tma_load(a, _at(z_a, row + group * ROWS, k0, BATCHING), ready, a_tile)
                else:
                    tma_load(a, _at(z_a, k0, row + group * ROWS, BATCHING), ready, a_tile)
            if B_ROW:
                tma_load(b, _at(z_b, k0, col, BATCHING), ready, b_tiles.index(stage))
            else:
                tma_load(b, _at(z_b, col, k0, BATCHING), ready, b_tiles.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@jit
def _store(c, z, row, col, piece, staging, C_ROW: gl.constexpr, BATCHING: gl.constexpr):
    """One piece of C from registers to memory, through the staging buffer `staging`."""
    out = piece.to(c.dtype)
    tma_store_wait(1)  # the piece before the last has left this buffer
    if C_ROW:
        staging.store(out)
        fence_async_shared()
        tma_store(c, _at(z, row, col, BATCHING), staging)
    else:
        staging.permute((1, 0)).store(out)
        fence_async_shared()
        tma_store(c, _at(z, col, row, BATCHING), staging)


@jit
def _halves(tile):
    """The left and the right half of a tile in registers."""
    M: gl.constexpr = tile.shape[0]
    N: gl.constexpr = tile.shape[1]
    return tile.reshape((M, 2, N // 2)).permute((0, 2, 1)).split()


@jit
def _multiply(
    c, a_tiles, b_tiles, c_tiles, full, empty, m, n, k, batch,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    BATCHING: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: its rows of every tile of this workgroup."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    tiles = in_batch(each, batch, BATCHING)
    ROWS: gl.constexpr = TILE_M // GROUPS
    MMA_K: gl.constexpr = 256 // a_tiles.dtype.primitive_bitwidth
    WIDEST: gl.constexpr = 128 if INT_ACC else 256
    MMA_N: gl.constexpr = WIDEST if TILE_N > WIDEST else TILE_N
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MMA_N, MMA_K])
    ACC: gl.constexpr = gl.int32 if INT_ACC else gl.float32
    stage = 0
    phase = 0
    last = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        z, within = in_matrix(tile, each, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        row = tile_m * TILE_M + GROUP * ROWS
        col = tile_n * TILE_N
        acc = gl.zeros((ROWS, TILE_N), ACC, LAYOUT)
        for k0 in range(0, k, TILE_K):
            mbarrier.wait(full.index(stage), phase)
            a_tile = a_tiles.index(stage * GROUPS + GROUP)
            b_tile = b_tiles.index(stage)
            if not A_ROW:
                a_tile = a_tile.permute((1, 0))
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
        if SPLIT:
            Q: gl.constexpr = TILE_N // 4
            p0, p1 = _halves(left)
            p2, p3 = _halves(right)
            _store(c, z, row, col, p0, c_tiles.index(2 * GROUP), C_ROW, BATCHING)
            _store(c, z, row, col + Q, p1, c_tiles.index(2 * GROUP + 1), C_ROW, BATCHING)
            _store(c, z, row, col + 2 * Q, p2, c_tiles.index(2 * GROUP), C_ROW, BATCHING)
            _store(c, z, row, col + 3 * Q, p3, c_tiles.index(2 * GROUP + 1), C_ROW, BATCHING)
        else:
            _store(c, z, row, col, left, c_tiles.index(2 * GROUP), C_ROW, BATCHING)
            _store(
                c, z, row, col + TILE_N // 2, right, c_tiles.index(2 * GROUP + 1), C_ROW, BATCHING
            )
    tma_store_wait(0)


@jit
def _tiles(matrix, COUNT: gl.constexpr):
    """Shared memory for COUNT of the tiles that one copy of `matrix` moves."""
    ROWS: gl.constexpr = matrix.block_type.shape[-2]
    COLS: gl.constexpr = matrix.block_type.shape[-1]
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLS], matrix.dtype)
    return gl.allocate_shared_memory(matrix.dtype, [COUNT, ROWS, COLS], LAYOUT)


@jit
def gemm_gluon_ws(
    a, b, c, m, n, k, batch,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr,
    INT_ACC: gl.constexpr, BATCHING: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """C = A·B with a, b, c tensor descriptors of the matrices as they lie in memory (so a
    column-major matrix is described as its row-major transpose); GROUPS warp groups multiply.
    `batch` and BATCHING: as in `tma`."""
    a_tiles = _tiles(a, STAGES * GROUPS)
    b_tiles = _tiles(b, STAGES)
    c_tiles = _tiles(c, 2 * GROUPS)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, full, empty, m, n, k, batch,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW, INT_ACC,
                    BATCHING, SPLIT, STAGES, GROUPS, 0,
                )),
                (_load, (
                    a, b, a_tiles, b_tiles, full, empty, m, n, k, batch,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, BATCHING, STAGES, GROUPS,
                )),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, full, empty, m, n, k, batch,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW, INT_ACC,
                    BATCHING, SPLIT, STAGES, GROUPS, 0,
                )),
                (_multiply, (
                    c, a_tiles, b_tiles, c_tiles, full, empty, m, n, k, batch,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW, INT_ACC,
                    BATCHING, SPLIT, STAGES, GROUPS, 1,
                )),
                (_load, (
                    a, b, a_tiles, b_tiles, full, empty, m, n, k, batch,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, BATCHING, STAGES, GROUPS,
                )),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
