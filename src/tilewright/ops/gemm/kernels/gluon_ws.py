"""GEMM with warp roles written out, in Gluon: one warp loads, the others multiply (sm_90).

Idea. Triton 3.6 does not specialise warps on sm_90 (see `tma`), so this kernel does it by hand. One
warp, with 24 registers a thread, only requests tiles from the copy engine. One to three warp groups
(GROUPS; four warps each, up to 240 registers) multiply. Each group is a partition of its own, with
its own TILE_M / GROUPS rows of A and C, its own copy of the loop and its own barrier. The groups
share B, but never wait for each other.

Data movement. A ring of STAGES slots in shared memory holds tiles of A and B (see `gluon_ring`) and
continues from tile to tile: the loads of the next tile start during the last steps of the current
one. A group keeps one wgmma batch running and releases the slot before it. C leaves in pieces by
asynchronous stores (see `gluon_store`); an epilogue acts before the pieces leave (see `epilogue`).

Edges are as in `tma`. wgmma reads 16-bit operands in their memory layout; 8-bit and tf32 operands
must have K contiguous, which a rule checks.

Odd tiles. Columns that are no power of two are cut into parts that are: 88 columns are accumulators
of 64, 16 and 8. Each part has its own wgmma over the same tile of A, its own ring of B's tiles and
its own descriptors; a slot's barriers serve all parts. A tile has three parts at most, because each
part reads A from shared memory again.

Schedulers. All except `tile`, which has no next tile to overlap with. If workgroups share a tile,
each group has its own flags and slots (see `reduce`, `gluon_partials`). A group may wait for
another workgroup's group. This cannot deadlock, although groups share a ring: a waiting group has
read all operands of its part, so they are there for the other groups too, and every workgroup takes
tiles in increasing order. With reduction `cluster` the workgroups of a tile exchange sums through
each other's shared memory (see `gluon_exchange`).

Chains. The kernel may start while the kernel before it drains (PDL, see `gluon_ring`).

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

What limits it. Large products: power, as for every good kernel, cuBLAS's included. Small ones: the
launch, then L2. Measured on an H200 against cuBLAS: 0.997 to 1.025 on large bf16 products, 1.490 to
1.628 in int8. More measurements, and what was tried: docs/notes/gemm-gluon_ws.md.
"""

from tilewright.ops.device.batching import extra_of, in_batch, in_matrix
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
from tilewright.ops.device.gluon_ring import (
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
from tilewright.ops.device.gluon_store import touch, write_tile
from tilewright.ops.device.reduce import reduce, take_turn
from tilewright.ops.device.schedule import (
    axes_inside,
    begin_of,
    contributors,
    next_part,
    tile_coordinates,
)
from tilewright.ops.gemm.kernels.gluon_exchange import exchange, mail


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
