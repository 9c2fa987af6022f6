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

Edges, layouts, odd widths, epilogues, batches, chains: as in `gluon_ws`. Scheduler `persistent`
only, since the groups of a workgroup must have equally many steps in each tile.

On a CPU. `tma` with the same fields computes the same result.

What limits it. Power. The energy of a floating-point operation in pJ (H200,
f1dfe4c6:benchmarks/gemm_energy.py: each kernel alone for 1.5 s, read from the board's energy
counter), and TFLOP/s, on random operands and on zeros:

                                        8192³             2048×28672×4096    8192³, zeros
    bf16  gluon_ws 128x256              1.024    663      1.048    660       0.541    831
          this, 128x192                 1.008    677      1.044    661       0.534    802
          this, 128x128                 1.058    653      1.052    655       0.579    801
          torch.mm                      1.100    662      1.053    660       0.519    777
          the best of cuBLASLt's eight  1.008    685      1.022    680       0.537    830
    fp8   gluon_ws 128x256              0.529   1293      0.541   1273       0.271   1558
          this, 128x192                 0.533   1299      0.554   1252       0.279   1519
          torch._scaled_mm, row-wise    0.531   1294      0.543   1277       0.288   1538

On random operands all were at the limit, 680 to 730 W, where speed is watts over joules an
operation: being 5 % faster than cuBLASLt's best takes 5 % less energy for the same multiplications.
Half of that energy goes to switching bits (the zeros show this) and is the same in every kernel.
Tiles and pipelines differ by 2 to 5 %.

Measured against the better of torch.mm and cuBLASLt's eight (H200,
f1dfe4c6:benchmarks/gemm_vs_vendor.py --set large; 60 interleaved samples each, L2 flushed), the
best kernel of 52:

    µs, and ratio        bf16           fp16
    4096×4096×4096       194.0  0.988   196.7  0.997   gluon_ws 128x256
    8192×8192×8192      1634.8  0.989  1683.2  0.998   128x192
    2048×28672×4096      715.7  0.975   750.9  0.972   128x128
    8192×4096×14336     1407.1  1.002  1451.9  1.000   gluon_ws 128x256
    32768×4096×8192     3267.8  1.002  3359.5  0.976   128x128
    16384×7168×8192     2883.5  0.992  2942.7  0.983   128x128
    2048×26624×16384    2569.4  1.010  2749.5  1.012   128x192; fp16 gluon_ws 128x192
    60288×4096×2048     1509.5  0.978  1556.1  0.983   128x128
    5504×6144×5376       560.2  1.009   561.6  1.009   128x128
    2048×11264×7168      509.3  0.995   518.3  0.993   128x128
    8192×17408×4096     1752.7  0.987  1789.6  0.985   128x128
    geometric mean              0.993          0.991   (to torch.mm: 1.032 and 1.030)

Without this pipeline the mean was 0.976 and the least 0.932.

Epilogues (f1dfe4c6:benchmarks/gemm_epilogues.py): µs, and the share of the same kernel's speed
without:

    bf16  bias+gelu            4096³ 207.4 0.935   8192×16384×4096 1704.6 0.956   8192³ 1704.6 0.977
    bf16  swiglu               8192×28672×4096 2848.1 0.992
    fp8   row_scale+col_scale  4096³ 98.7 0.989    8192³ 821.4 0.995   8192×14336×4096 748.3 0.997

On 4096³ a workgroup has eight tiles, and nothing hides the last tile's GELU.

fp8 against torch._scaled_mm (f1dfe4c6:benchmarks/gemm_quantised.py, eight products): with one scale
1.026, with a scale for each row and column 0.996. This pipeline is the fastest here in four of the
eight with one scale, and in six of the eight with the others.
"""

from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gdc_wait,
    gl,
    jit,
    mbarrier,
    tma_store_wait,
)
from tilewright.ops.device.schedule import axes_inside, begin_of, tile_coordinates
from tilewright.ops.gemm.kernels.batching import extra_of, in_batch, in_matrix
from tilewright.ops.gemm.kernels.gluon_ring import (
    OF_TWO_REGISTERS,
    PRODUCER_REGISTERS,
    accumulators,
    barriers,
    fill,
    multiply,
    rests_of,
    settled,
    tiles_of,
)
from tilewright.ops.gemm.kernels.gluon_store import touch, write_tile


@jit
def _take_turns(
    c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty, turns, m, n, k, extra, batch,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr, BATCHING: gl.constexpr,
    INSIDE: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, PDL: gl.constexpr,
    CHAIN: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: every second tile of this workgroup."""
    if PDL != "none":
        gdc_wait()
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    tiles = in_batch(each, batch, BATCHING)
    steps = gl.cdiv(k, TILE_K)
    even = c_tiles.index(2 * GROUP)
    odd = c_tiles.index(2 * GROUP + 1)
    done = GROUP * steps
    turn = 1 - GROUP  # nobody has arrived at the barriers yet: the first group goes ahead
    first = gl.program_id(0) + GROUP * gl.num_programs(0)
    for tile in range(first, tiles, 2 * gl.num_programs(0)):
        z, within = in_matrix(tile, each, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        row = begin_of(tile_m, m, TILE_M, "m", INSIDE)
        col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
        mine = extra_of(extra, batch, z, TAKES, BATCHING)
        touch(mine, row, col, m, n, TILE_M, TILE_N, TAKES, FOLD)
        acc, rest = accumulators(a_tiles, TILE_M, TILE_N, INT_ACC)
        mbarrier.wait(turns.index(GROUP), turn)
        turn ^= 1
        acc, rest, used, _, _ = multiply(
            a_tiles, b_tiles, rest_tiles, full, empty, acc, rest, steps * 0, steps,
            done % STAGES, done // STAGES & 1, TILE_N, A_ROW, B_ROW, STAGES, 1, 0,
        )  # fmt: skip
        mbarrier.arrive(turns.index(1 - GROUP), count=1)
        done += 2 * steps
        acc, rest = settled(acc, rest, TILE_N)
        mbarrier.arrive(empty.index(used), count=1)
        write_tile(
            c, c_rest, acc, rest, even, odd, mine, m, n, z, row, col, TILE_N,
            C_ROW, SPLIT, TAKES, FOLD, LARGEST, BATCHING, CHAIN,
        )  # fmt: skip
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
    gl.warp_specialize(
        [
            (_take_turns, (
                c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty,
                turns, m, n, k, extra, batch,
                TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW, INT_ACC,
                TAKES, FOLD, LARGEST, BATCHING, INSIDE, SPLIT, STAGES, 0, PDL, CHAIN,
            )),
            (_take_turns, (
                c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty,
                turns, m, n, k, extra, batch,
                TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW, INT_ACC,
                TAKES, FOLD, LARGEST, BATCHING, INSIDE, SPLIT, STAGES, 1, PDL, CHAIN,
            )),
            (fill, (
                a, b, b_rest, a_tiles, b_tiles, rest_tiles, full, empty, m, n, k, batch, 0, TILE_M,
                TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, BATCHING, "persistent", INSIDE, STAGES, 1,
                PDL,
            )),
        ],
        [4, 1],
        [OF_TWO_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
