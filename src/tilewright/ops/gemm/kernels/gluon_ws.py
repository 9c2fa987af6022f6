"""GEMM with warp roles written out, in Gluon: one warp loads, the others multiply (sm_90).

Idea. Triton 3.6 does not specialise warps on sm_90 (see `tma`), so this kernel does it by hand. One
warp, with 24 registers a thread, only requests tiles from the copy engine. One to three warp groups
(GROUPS; four warps each, up to 240 registers) multiply. Each group is a partition of its own, with
its own TILE_M / GROUPS rows of A and C, its own copy of the loop and its own barrier. The groups
share B, but never wait for each other: while one stores its part of C another may still be
multiplying, so the matrix units need not idle during an epilogue.

Data movement. A ring of STAGES slots in shared memory, each with a tile of A for each group and one
tile of B. A slot has two mbarriers: `full` (the copies' bytes have arrived) and `empty` (every
group has read it). A group keeps one wgmma batch running and releases the slot before it. The ring
continues from tile to tile: the loads of the next tile start during the last steps of the current
one. C leaves in pieces (see `gluon_store`) through two staging buffers for each group, by
asynchronous stores that are waited for only when their buffer is needed again.

Edges. As in `tma`: the copy engine fills elements outside with zeros and does not write there. If
there is more than one tile of rows, the last begins earlier (see `schedule`).

Layouts. Operands are read in shared memory in their memory layout; wgmma transposes 16-bit
operands. 8-bit and tf32 operands must have K contiguous, which a rule checks.

Odd tiles. A tile has 64, 128, 192 (three groups) or 256 rows, and columns in steps of 8. Triton's
tensors are powers of two, so columns that are none are cut into parts that are: 88 columns are
accumulators of 64, 16 and 8. Each part has its own wgmma over the same tile of A, its own ring of
B's tiles and its own descriptors of B and C (see `gluon_ring`); a slot's barriers serve all. Such
tiles fill the last wave of some shapes where powers of two leave most of it empty.

Their price: each part's wgmma reads A from shared memory again. In 16 bits that takes 16 clocks for
64 rows and 16 of K, as long as 32 columns take to multiply. So a tile has three parts at most
(`warpgroups.MOST_PARTS`), and a part of 8 columns is estimated to cost as much as one of 32.

In the tables shipped in bf16 such tiles (here and in `gluon_pingpong`; the edge is along M where A
and B are swapped) are the best of the kernels built here for 65 to 2048 rows on 322 of 799 sizes on
an H200 and on 1,222 of 2,666 on an H100. Of more than 4 waves of 128x128 tiles, 128x160 take 1.05
of the time that goes by their columns, here, and 1.09 in `gluon_pingpong`; 128x192 1.00 and 1.01
(`rates.COLUMNS_AT_PEAK`).

Clusters (see `gluon_exchange`). With reduction `cluster` the workgroups of a tile exchange sums
through each other's shared memory. They walk no further tile.

Schedulers (see `schedule`). All except `tile`, which has no next tile to overlap with. If
workgroups share a tile (not with an odd edge), each group has its own flags and slots (see
`reduce`), and its partials go to memory in the order of registers (see `gluon_partials`). A group
may wait for another workgroup's group. This cannot deadlock, although groups share a ring: a
waiting group has read all operands of its part, so they are there for the other groups too, and
every workgroup takes tiles in increasing order.

Epilogues (see `epilogue` and `gluon_store`) act before the pieces leave. The threads that hold the
elements load vectors and matrices, in pairs.

Chains. The kernel may start while the kernel before it drains, and load B meanwhile (PDL, see
`gluon_ring`). Not timed yet.

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

What limits it. Large products: power. At its 700 W an H200 does as many operations a second as
their energy allows, and all good kernels, cuBLAS's included, need about the same energy for each
(`gluon_pingpong` has the table). On zeros, at 450 W, this kernel is ahead of `torch.mm` by 5 to 7
%. Small products: see below.

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

Odd waves and large K, bf16 rcr: the better of torch.mm and cuBLASLt's candidates against the best
of a declared space (f1dfe4c6:benchmarks/gemm_vs_vendor.py --set odd; the samples are in
benchmarks/results), in µs:

    2048×2112×7168    85.5   87.5  0.977  192x192x64   3 groups, s4, persistent: one wave of 121
    3840×4096×2048    86.4   88.9  0.972  gluon_pingpong 128x192x64, s4
    512×768×4096      14.1   14.2  0.995  128x64x64    swapped, s8, split_k 2, cluster
    512×512×8192      17.2   18.0  0.960  64x128x64    1 group, s8, split_k 4, atomic
    256×256×16384     14.8   15.5  0.954  128x64x64    swapped, s8, split_k 8, cluster
    1024×1024×8192    31.6   31.7  0.996  64x128x64    1 group, s8, persistent
    128×4096×14336    43.6   43.4  1.004  64x64x64     1 group, s13, persistent

The geometric mean is 0.979, to torch.mm 0.996. Without clusters (`gluon_exchange`) four runs gave
0.961 to 0.970: products of 14 to 18 µs move by 2 to 4 % from run to run.

Limits. First the launch: one 64×64×64 product takes 6.0 µs here with two stages, 6.4 with
thirteen (their barriers are initialised one after another), 5.6 in `tma` and 5.7 in cuBLAS. Then
L2: 64x64 tiles at K = 4096 bring 1 MB to each multiprocessor in about 7.5 µs, 70 bytes a clock. For
shared tiles, combining the parts: 512×512×8192 takes 18.1 µs in 64x128 tiles and four parts, whose
partials are 32 KB, and 20.2 in 128x128 tiles and eight parts, which load a third less.

Stream-K against the best other kernel (whole tiles, `gluon_pingpong`'s too, or split-K), bf16 rcr:
that kernel's time over the time of the best stream-K. Over all shapes whose last wave is under half
full for each tile from 128x128 on (--set last_wave; that benchmark has the definition) the
geometric mean is 1.016; 0.985 for K = 4096, 1.032 for 8192 and for 16384; in µs:

    M×N           K = 4096             8192                 16384
    1280×3584      58.4   62.4  0.937  112.9  110.4  1.023  218.0  210.0  1.038
    1280×7552     115.7  116.3  0.995  230.9  220.2  1.049  478.5  469.5  1.019
    1792×7552     159.3  156.4  1.018  364.5  349.8  1.042  702.4  670.4  1.048
    2048×4736     115.9  113.0  1.026  233.7  225.0  1.039  501.8  468.2  1.072
    2432×3968     114.8  120.9  0.950  231.9  233.5  0.993  477.9  469.2  1.018
    2560×3712     115.3  112.8  1.022  236.8  218.0  1.086  479.2  465.4  1.030
    2944×4736     161.0  168.2  0.957  368.7  360.0  1.024  678.6  683.9  0.992
    3712×3712     159.7  163.4  0.978  373.8  372.4  1.004  704.5  675.5  1.043

Before `gluon_pingpong` was among the others it was 1.036 (1.004, 1.046 and 1.058).

Over eight shapes with such a last wave for 128x256 tiles (--set last_wave_128x256) it is 0.983:
1.110 on 2240×2240×16384 and 1.046 at half its K, but 0.891 on 2048×2112×7168 and 0.94 to 0.96 on
2304×2048×16384, 1280×1408×16384, 2560×2304×8192 and 3072×3072×8192, whose waves 192x192, 128x192 or
128x128 tiles fill. When shares crossed tiles, these eight gave 0.871: 132 workgroups then read at
as many places of K.

What limits it. First the waves of the other kernels: rounds of whole tiles of 128x128 and more
compute 1.147 times the work of these shapes (geometric mean of the best tile's), but tiles of 64
rows only 1.021 times, at nine tenths of the speed (2304×2048×16384, whole waves both: 217.7 µs in
64x192, 197.7 in 192x192). Tiles of 64 rows are the best other kernel for half of the 24 shapes.
Then combining the parts: on 2048×4736×8192, 256x128 tiles take 196.5 µs without the shared tiles,
221.3 with these but without adding them up, and 233.5 complete; whole 128x128 tiles take 243.9. If
combining cost nothing, the ratio would be 1.10. In tiles of 256x128 combining costs 9 to 16 µs, by
any method (here 231.4, 233.9 and 233.1 for atomic, linear and tree, up to 8 ways); 128x128 tiles,
with half the partials, take 229.5.

Tried, and left out: postponed combining. Contributors deliver, do their whole tiles, and each then
sums a piece of the shared tile. That made linear as fast as atomic in large tiles (1.1 to 1.9 %
faster), and the best stream-K of each shape 0.1 to 0.5 % faster.

Epilogues, against the same kernel without, in the same run, 128x256, in µs (4096³; 8192²×4096, fp8
8192³):

    bf16  none                 176.7   725.1
    bf16  bias                 180.7   743.3
    bf16  bias+silu            194.5   789.1
    bf16  swiglu               180.4   726.8
    bf16  add                  197.0   805.9   split; direct 303.9 and 1224.4
    fp8   none                  95.4   716.4
    fp8   row_scale+col_scale  100.8   731.1   cuBLAS, row-wise: 105.5   774.4
    fp8   … +bias              102.5   741.5

The groups reach their epilogues together, so nothing hides the cost; `gluon_pingpong` hides it.

Tried, and left out. Multicast: pairs of workgroups, clusters by directives added to Triton's PTX,
each of which loads half of every tile of B for both. With 128x256 tiles 4096³, 8192³,
2048×28672×4096 and 60288×4096×2048 reached 0.991, 0.994, 0.997 and 1.003 of the speed without, so
reads from L2 are not what consumes the power; with 128x128 tiles 8192³ gained 1.4 to 1.8 % and
60288×4096×2048 up to 3.8. Later with small tiles, for M of 97 to 2048: 18 products, up to seven
tiles of 64x48 to 192x224 each, in clusters of 2x1, 1x2, 4x1, 1x4 and 2x2, where the workgroups
along an axis load every second (fourth) tile of what they share. The mean speed is 0.938, 0.929,
0.747, 0.730 and 0.740 of that without, and no cluster was the best kernel of a product. What an SM
takes in is the same bytes with and without; multicast only spares L2. Of 32 clusters of four, not
all find place at once. (An arrival at the other's barrier must not release at cluster scope: that
waits for all memory and halves the speed.) Requests for the first three steps before the other
barriers are initialised: by the first warps 1.01 of the time by single calls and 1.04 in graphs, by
the warp that loads 1.02 and 1.05; that warp initialising all barriers 1.01 and 1.02 (42 kernels on
15 products of 64 to 1024 rows, H200; changed copies that are not kept). The conditions of early
requests cost every later step more than an early start brings. 256 bytes of K a step in tiles with
an edge of 72 to 144, and half the stages: 0.99 to 1.11 of the time (11 products, the same run).
Ordinary stores of C from registers, instead of staging: 34.0 µs instead of 32.5 (1024×1024×8192),
since a warp's store covers only 16 of each 32 bytes. Having the copy engine fetch C's descriptor
early, by a store outside of C: no difference (seven products, 0.965 of cuBLAS both ways). Three
warp groups on 192x256 tiles (22 % fewer reads from L2): the clock rose from 1.41 to 1.50 GHz, but
three stages and unlucky tile counts led to 0.89 to 1.01; m64n256 also needs 154 registers at
launch, where four groups have 128, so wgmma had to be split in two. Walking K backwards in every
other tile, to find the last tile's operands in L2: no difference beyond noise. tile_k = 128 with
two stages: 0.67 to 0.69. One warp group on 128x128 tiles: 0.94 to 1.00. 256x128 tiles: slightly
slower than 128x256.
"""

from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gdc_wait,
    gl,
    jit,
    mbarrier,
    tma_store_wait,
)
from tilewright.ops.device.gluon_cluster import ready
from tilewright.ops.device.gluon_partials import add, load, store, within_registers
from tilewright.ops.device.reduce import reduce, take_turn
from tilewright.ops.device.schedule import (
    axes_inside,
    begin_of,
    contributors,
    next_part,
    tile_coordinates,
)
from tilewright.ops.gemm.kernels.batching import extra_of, in_batch, in_matrix
from tilewright.ops.gemm.kernels.gluon_exchange import exchange, mail
from tilewright.ops.gemm.kernels.gluon_ring import (
    OF_THREE_REGISTERS,
    OF_TWO_REGISTERS,
    PRODUCER_REGISTERS,
    accumulators,
    barriers,
    fill,
    multiply,
    rests_of,
    settled,
    tiles_of,
    work_of,
)
from tilewright.ops.gemm.kernels.gluon_store import touch, write_tile


@jit
def _multiply(
    c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty, m, n, k, extra, batch,
    flags, partials, splits, inbox, told,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr,
    SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr,
    INT_ACC: gl.constexpr, TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    BATCHING: gl.constexpr, INSIDE: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr,
    PDL: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: its rows of every part of this workgroup."""
    if PDL != "none":
        gdc_wait()
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    each = tiles_m * tiles_n
    tiles = in_batch(each, batch, BATCHING)
    steps = gl.cdiv(k, TILE_K)
    ROWS: gl.constexpr = TILE_M // GROUPS
    APART: gl.constexpr = REDUCTION == "two_stage"
    CLUSTER: gl.constexpr = splits if REDUCTION == "cluster" else 1
    MEETS: gl.constexpr = SCHEDULER != "persistent" and not APART and CLUSTER == 1
    COLUMNS: gl.constexpr = TILE_N // CLUSTER
    stage = 0
    phase = 0
    even = c_tiles.index(2 * GROUP)
    odd = c_tiles.index(2 * GROUP + 1)
    ways, share, at, end, part, parts = work_of(tiles, steps, splits, SCHEDULER)
    while (at < end) | (part < parts):
        here = part
        tile, begin, stop, at, part = next_part(at, end, part, splits, steps, SCHEDULER)
        z, within = in_matrix(tile, each, BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, GROUP_M)
        row = begin_of(tile_m, m, TILE_M, "m", INSIDE) + GROUP * ROWS
        col = begin_of(tile_n, n, TILE_N, "n", INSIDE)
        if MEETS:
            shared = stop - begin < steps
            if SCHEDULER == "split_k":
                i = here % splits
                count = splits
                base = tile * splits
                stride = 1
                shift = 0
            else:
                earliest, count, shift = contributors(tile, steps, ways, share)
                i = gl.program_id(0) - earliest
                base = 2 * earliest
                stride = 2
            if REDUCTION == "atomic":
                base = tile
            # Each group has its own slots and flags, as if its rows were a tile.
            base = base * GROUPS + GROUP
            stride = stride * GROUPS
            shift = shift * GROUPS
            # The answer arrives together with the first operands.
            last = shared
            if shared:
                last = take_turn(flags, count, base, stride, shift, REDUCTION)
        mine = extra_of(extra, batch, z, TAKES, BATCHING)
        touch(mine, row, col, m, n, ROWS, TILE_N, TAKES, FOLD)
        acc, rest = accumulators(a_tiles, ROWS, TILE_N, INT_ACC)
        acc, rest, used, stage, phase = multiply(
            a_tiles, b_tiles, rest_tiles, full, empty, acc, rest, begin, stop, stage, phase,
            TILE_N, A_ROW, B_ROW, STAGES, GROUPS, GROUP,
        )  # fmt: skip
        acc, rest = settled(acc, rest, TILE_N)
        mbarrier.arrive(empty.index(used), count=1)

        whole = stop - begin == steps
        if APART:
            z = here % splits
            whole = stop > begin
        if CLUSTER > 1:
            whole = stop > begin
            acc = exchange(acc, inbox, told, here % CLUSTER, CLUSTER, GROUP)
            col += here % CLUSTER * COLUMNS
        if MEETS:  # noqa: SIM102 - only this is known when compiling
            if shared:
                LAYOUT: gl.constexpr = acc.type.layout
                slots = within_registers(ROWS, TILE_N, LAYOUT)
                whole, acc = reduce(
                    acc, last, flags, partials, slots, i, count, base, stride, shift,
                    REDUCTION, store, load, add,
                )  # fmt: skip
        if whole:
            write_tile(
                c, c_rest, acc, rest, even, odd, mine, m, n, z, row, col, COLUMNS,
                C_ROW, SPLIT, TAKES, FOLD, LARGEST, "strided" if APART else BATCHING, CHAIN,
            )  # fmt: skip
    tma_store_wait(0)


@jit
def gemm_gluon_ws(
    a, b, c, m, n, k, b_rest, c_rest, extra, batch, flags, partials, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr,
    SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr,
    PRECISION: gl.constexpr, INT_ACC: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr, BATCHING: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, PDL: gl.constexpr,
    CHAIN: gl.constexpr,
):  # fmt: skip
    """C = A·B, multiplied by GROUPS warp groups.

    a, b, c: tensor descriptors of the matrices as they lie in memory, so a column-major matrix is
        described as its row-major transpose.
    flags, partials, splits: for the schedulers that share tiles; the others ignore them.
    b_rest, c_rest: descriptors of B and C for each part of a tile behind the first.
    extra, TAKES, CHAIN: see `epilogue`; C has n / FOLD columns.
    batch, BATCHING: as in `tma`. PDL: see `gluon_ring`.
    """
    INSIDE: gl.constexpr = axes_inside(A_ROW, B_ROW, C_ROW, SCHEDULER, TAKES)
    a_tiles = tiles_of(a, STAGES * GROUPS)
    b_tiles = tiles_of(b, STAGES)
    rest_tiles = rests_of(b_rest, STAGES)
    c_tiles = tiles_of(c, 2 * GROUPS)
    full, empty = barriers(STAGES, GROUPS)
    CLUSTER: gl.constexpr = splits if REDUCTION == "cluster" else 1
    inbox, told = mail(TILE_M // GROUPS, TILE_N, INT_ACC, GROUPS, CLUSTER)
    fence_async_shared()  # the copy engine sees the barriers too
    if CLUSTER > 1:
        ready()
    # Arguments are written out for each group: from a named tuple, Triton 3.6 turns constants into
    # tensors, or fails.

    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty,
                    m, n, k, extra, batch,
                    flags, partials, splits, inbox, told,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW,
                    SCHEDULER, REDUCTION, INT_ACC, TAKES, FOLD, LARGEST,
                    BATCHING, INSIDE, SPLIT, STAGES, GROUPS, 0, PDL, CHAIN,
                )),
                (fill, (
                    a, b, b_rest, a_tiles, b_tiles, rest_tiles, full, empty,
                    m, n, k, batch, splits, TILE_M,
                    TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, BATCHING, SCHEDULER, INSIDE, STAGES,
                    GROUPS, PDL,
                )),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )  # fmt: skip
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty,
                    m, n, k, extra, batch,
                    flags, partials, splits, inbox, told,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW,
                    SCHEDULER, REDUCTION, INT_ACC, TAKES, FOLD, LARGEST,
                    BATCHING, INSIDE, SPLIT, STAGES, GROUPS, 0, PDL, CHAIN,
                )),
                (_multiply, (
                    c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty,
                    m, n, k, extra, batch,
                    flags, partials, splits, inbox, told,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW,
                    SCHEDULER, REDUCTION, INT_ACC, TAKES, FOLD, LARGEST,
                    BATCHING, INSIDE, SPLIT, STAGES, GROUPS, 1, PDL, CHAIN,
                )),
                (fill, (
                    a, b, b_rest, a_tiles, b_tiles, rest_tiles, full, empty,
                    m, n, k, batch, splits, TILE_M,
                    TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, BATCHING, SCHEDULER, INSIDE, STAGES,
                    GROUPS, PDL,
                )),
            ],
            [4, 1],
            [OF_TWO_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (
                    c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty,
                    m, n, k, extra, batch,
                    flags, partials, splits, inbox, told,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW,
                    SCHEDULER, REDUCTION, INT_ACC, TAKES, FOLD, LARGEST,
                    BATCHING, INSIDE, SPLIT, STAGES, GROUPS, 0, PDL, CHAIN,
                )),
                (_multiply, (
                    c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty,
                    m, n, k, extra, batch,
                    flags, partials, splits, inbox, told,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW,
                    SCHEDULER, REDUCTION, INT_ACC, TAKES, FOLD, LARGEST,
                    BATCHING, INSIDE, SPLIT, STAGES, GROUPS, 1, PDL, CHAIN,
                )),
                (_multiply, (
                    c, c_rest, a_tiles, b_tiles, rest_tiles, c_tiles, full, empty,
                    m, n, k, extra, batch,
                    flags, partials, splits, inbox, told,
                    TILE_M, TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, C_ROW,
                    SCHEDULER, REDUCTION, INT_ACC, TAKES, FOLD, LARGEST,
                    BATCHING, INSIDE, SPLIT, STAGES, GROUPS, 2, PDL, CHAIN,
                )),
                (fill, (
                    a, b, b_rest, a_tiles, b_tiles, rest_tiles, full, empty,
                    m, n, k, batch, splits, TILE_M,
                    TILE_N, TILE_K, GROUP_M, A_ROW, B_ROW, BATCHING, SCHEDULER, INSIDE, STAGES,
                    GROUPS, PDL,
                )),
            ],
            [4, 4, 1],
            [OF_THREE_REGISTERS, OF_THREE_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
