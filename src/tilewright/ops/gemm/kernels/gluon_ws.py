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

Chains. The kernel may start while the kernel before it drains (PDL, see `gluon_fill`).

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

What limits it. Large products: power, as for every good kernel, cuBLAS's included. Small ones: the
launch, then L2. Measured on an H200 against cuBLAS: 0.997 to 1.025 on large bf16 products, 1.490 to
1.628 in int8. More measurements, and what was tried: docs/notes/gemm-gluon_ws.md.
"""

from tilewright.ops.device.batching import extra_of, in_matrix, of_c
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gdc_wait,
    gl,
    jit,
    mbarrier,
    tma_store_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_cluster import ready
from tilewright.ops.device.gluon_partials import add, load, store, within_registers
from tilewright.ops.device.gluon_ring import (
    OF_THREE_REGISTERS,
    OF_TWO_REGISTERS,
    PRODUCER_REGISTERS,
    Ring,
    accumulators,
    awaited,
    barriers,
    multiply,
    rests_of,
    tiles_of,
    work_of,
)
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.device.gluon_store import Output, touch, write_tile
from tilewright.ops.device.reduce import reduce, take_turn
from tilewright.ops.device.schedule import axes_inside, contributors, next_part, tile_coordinates
from tilewright.ops.gemm.kernels.gluon_exchange import exchange, mail
from tilewright.ops.gemm.kernels.gluon_fill import Product, column_of, extent, fill, row_of

Sharing = bundle("Sharing", "flags partials inbox told REDUCTION CLUSTER")
"""How workgroups that share a tile combine their sums: through memory, or through the shared memory
of CLUSTER workgroups."""


@jit
def _multiply(p, ring, out, sharing, INT_ACC: gl.constexpr, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: its rows of every part of this workgroup."""
    if p.PDL != "none":
        gdc_wait()
    tiles_m, tiles_n, tiles, steps = extent(p)
    ROWS: gl.constexpr = p.TILE_M // ring.GROUPS
    APART: gl.constexpr = sharing.REDUCTION == "two_stage"
    MEETS: gl.constexpr = p.SCHEDULER != "persistent" and not APART and sharing.CLUSTER == 1
    stage = 0
    phase = 0
    ways, share, at, end, part, parts = work_of(tiles, steps, p.splits, p.SCHEDULER)
    while (at < end) | (part < parts):
        here = part
        tile, begin, stop, at, part = next_part(at, end, part, p.splits, steps, p.SCHEDULER)
        z, within = in_matrix(tile, tiles_m * tiles_n, p.BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, p.GROUP_M)
        row = row_of(p, tile_m) + GROUP * ROWS
        col = column_of(p, tile_n)
        if MEETS:
            shared = stop - begin < steps
            if p.SCHEDULER == "split_k":
                i = here % p.splits
                count = p.splits
                base = tile * p.splits
                stride = 1
                shift = 0
            else:
                earliest, count, shift = contributors(tile, steps, ways, share)
                i = gl.program_id(0) - earliest
                base = 2 * earliest
                stride = 2
            if sharing.REDUCTION == "atomic":
                base = tile
            # Each group has its own slots and flags, as if its rows were a tile.
            base = base * ring.GROUPS + GROUP
            stride = stride * ring.GROUPS
            shift = shift * ring.GROUPS
            # The answer arrives together with the first operands.
            last = shared
            if shared:
                last = take_turn(sharing.flags, count, base, stride, shift, sharing.REDUCTION)
        extra = extra_of(out.extra, p.batch, z, out.TAKES, p.BATCHING)
        touch(out, extra, row, col, ROWS, p.TILE_N)
        acc, rest = accumulators(ring.a_tiles, ROWS, p.TILE_N, INT_ACC)
        acc, rest, used, stage, phase = multiply(
            ring, acc, rest, begin, stop, stage, phase, GROUP
        )  # fmt: skip
        acc, rest = awaited(acc, rest, 0)
        mbarrier.arrive(ring.empty.index(used), count=1)

        whole = stop - begin == steps
        if APART:
            z = here % p.splits
            whole = stop > begin
        if sharing.CLUSTER > 1:
            whole = stop > begin
            rank = here % sharing.CLUSTER
            acc = exchange(acc, sharing, rank, GROUP)
            col += rank * out.TILE_N
        if MEETS:  # noqa: SIM102 - only this is known when compiling
            if shared:
                LAYOUT: gl.constexpr = acc.type.layout
                slots = within_registers(ROWS, p.TILE_N, LAYOUT)
                whole, acc = reduce(
                    acc, last, sharing.flags, sharing.partials, slots, i, count, base, stride,
                    shift, sharing.REDUCTION, store, load, add,
                )  # fmt: skip
        if whole:
            write_tile(out, acc, rest, extra, z, row, col, GROUP)
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
    batch, BATCHING: as in `tma`. PDL: see `gluon_fill`.
    """
    INSIDE: gl.constexpr = axes_inside(A_ROW, B_ROW, C_ROW, SCHEDULER, TAKES)
    CLUSTER: gl.constexpr = splits if REDUCTION == "cluster" else 1
    OF_C: gl.constexpr = "strided" if REDUCTION == "two_stage" else of_c(BATCHING)
    a_tiles = tiles_of(a, STAGES * GROUPS)
    b_tiles = tiles_of(b, STAGES)
    rest_tiles = rests_of(b_rest, STAGES)
    c_tiles = tiles_of(c, 2 * GROUPS)
    full, empty = barriers(STAGES, GROUPS)
    inbox, told = mail(TILE_M // GROUPS, TILE_N, INT_ACC, GROUPS, CLUSTER)
    fence_async_shared()  # the copy engine sees the barriers too
    if CLUSTER > 1:
        ready()
    product = Product(
        a, b, b_rest, m, n, k, batch, splits, TILE_M, TILE_N, TILE_K, GROUP_M, BATCHING, SCHEDULER,
        INSIDE, PDL,
    )  # fmt: skip
    ring = Ring(a_tiles, b_tiles, rest_tiles, full, empty, A_ROW, B_ROW, STAGES, GROUPS)
    output = Output(
        c, c_rest, c_tiles, extra, m, n, TILE_N // CLUSTER, C_ROW, SPLIT, TAKES, FOLD, LARGEST,
        OF_C, CHAIN,
    )  # fmt: skip
    sharing = Sharing(flags, partials, inbox, told, REDUCTION, CLUSTER)
    specialized(
        _multiply, (product, ring, output, sharing, INT_ACC), fill, (product, ring), GROUPS,
        OF_THREE_REGISTERS if GROUPS == 3 else OF_TWO_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
