"""Block-scaled 8-bit GEMM with warp roles written out, in Gluon (sm_90).

Idea. As in `gluon_ws` one warp loads, and one or two warp groups of four multiply, each its own
rows of C, each in its own partition. The products of every K step start from zero, are waited for,
and are added to the sum times their scales by ordinary multiply-adds. While one group adds, the
other group's products keep the matrix units busy.

Registers decide the tile. A group holds its sums and one set of products. 232 registers a thread
hold 64x128 products (64 of them) beside sums of twice that. So a tile consists of parts of 64 rows
and 128 columns (or fewer), and a group has one part or two, which use the products' registers one
after the other. (DeepGEMM's 256x128 tile shares them in this way.) Two parts halve a group's reads
from L2 for each product.

Data movement. A ring of STAGES slots. Each slot has parts of A and of B, loaded by the copy engine,
and the scales, loaded by asynchronous copies of 4 bytes (so scales are fp32): a vector of 64 for
each part of A, and for each part of B its one scale, repeated 64 times, so that both are read
alike. A slot's `full` barrier counts the bytes of the operands and an arrival from each lane for
the scales; `empty` counts the groups. A group does as much as possible while its products run: it
reads scales, releases the previous slot, and waits for the next slot. C leaves as in `gluon_ws`,
part by part, in two pieces (with SPLIT, four).

Few tiles and a large K. A step may span several blocks of scales, if a group has one part: their
products lie side by side in registers and are waited for one after the other, so a step's waits,
barriers and scales cost once. Workgroups can also share a tile (split-K); each part then has its
own flags and slots (see `reduce`, `gluon_partials`), as in `gluon_ws`, which also explains why the
waits cannot deadlock.

Edges are as in `tma`. Scales outside are read at the edge; their products are zeros, or never
stored.

On a CPU. Gluon has no interpreter; `tma` with the same fields, one block a step, computes the same
result there.

What limits it. Large products: power, as soon as calls follow one another. Measured on an H200
against torch._scaled_mm with the same scales: 1.020 to 1.049 on large products, more on small ones.
More measurements, and what was tried: docs/notes/gemm-gluon_scaled.md.
"""

from tilewright.ops.device.gluon_api import (
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
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_partials import add, load, store, within_registers
from tilewright.ops.device.gluon_ring import (
    Ring,
    barriers,
    place,
    tiles_of,
    turned,
)
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.device.gluon_store import cut
from tilewright.ops.device.reduce import reduce, take_turn
from tilewright.ops.device.scale import size_of
from tilewright.ops.device.schedule import next_part, tile_coordinates
from tilewright.ops.gemm.kernels.gluon_fill import Product, column_of, extent, row_of

LANES = gl.constexpr(32)
PRODUCER_REGISTERS = gl.constexpr(40)
CONSUMER_REGISTERS = gl.constexpr(232)
ROWS = gl.constexpr(64)
"""Rows of a part: the rows that one wgmma computes."""

Scales = bundle("Scales", "scales factors SCALES")
"""The scales in memory, their vectors in the ring's slots, and which there are (see `scale`)."""

Output = bundle("Output", "c c_tiles flags partials C_ROW SPLIT REDUCTION")
"""Where sums go: C through two staging buffers for each group, or other workgroups."""


@jit
def _shares(tiles, p):
    """Number of shares of work: tiles, or parts of K of tiles."""
    shares = tiles
    if p.SCHEDULER == "split_k":
        shares = tiles * p.splits
    return shares


@jit
def _load(p, ring, scales):
    """The producer: loads every K step of every share of this workgroup into the ring."""
    tiles_m, tiles_n, tiles, steps = extent(p)
    COLS: gl.constexpr = p.b.block_type.shape[0]
    A_PARTS: gl.constexpr = p.TILE_M // ROWS
    B_PARTS: gl.constexpr = p.TILE_N // COLS
    A_SCALES: gl.constexpr = A_PARTS if size_of(scales.SCALES, 0, 0) > 0 else 0
    B_SCALES: gl.constexpr = B_PARTS if size_of(scales.SCALES, 1, 0) > 0 else 0
    BLOCK_K: gl.constexpr = p.a.block_type.shape[1]
    BLOCKS: gl.constexpr = p.TILE_K // BLOCK_K
    BYTES: gl.constexpr = A_PARTS * p.a.block_type.nbytes + B_PARTS * p.b.block_type.nbytes
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    shares = _shares(tiles, p)
    for share in range(gl.program_id(0), shares, gl.num_programs(0)):
        tile, begin, stop, _, _ = next_part(0, 0, share, p.splits, steps, p.SCHEDULER)
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, p.GROUP_M)
        row = row_of(p, tile_m)
        col = column_of(p, tile_n)
        for k0 in range(begin * p.TILE_K, stop * p.TILE_K, p.TILE_K):
            ready = ring.full.index(stage)
            mbarrier.wait(ring.empty.index(stage), phase)
            mbarrier.expect(ready, BLOCKS * BYTES)
            for block in gl.static_range(BLOCKS):
                at = k0 + block * BLOCK_K
                slot = stage * BLOCKS + block
                for part in gl.static_range(A_PARTS):
                    a_tile = ring.a_tiles.index(slot * A_PARTS + part)
                    tma_load(p.a, [row + part * ROWS, at], ready, a_tile)
                for part in gl.static_range(B_PARTS):
                    b_tile = ring.b_tiles.index(slot * B_PARTS + part)
                    tma_load(p.b, [col + part * COLS, at], ready, b_tile)
            for block in gl.static_range(BLOCKS):
                at = k0
                if block > 0:  # a block outside has zeros to scale
                    at = gl.minimum(k0 + block * BLOCK_K, p.k - 1)
                first = (stage * BLOCKS + block) * (A_SCALES + B_SCALES)
                for part in gl.static_range(A_SCALES):
                    to = scales.factors.index(first + part)
                    copy_a(scales.scales, scales.SCALES, row + part * ROWS, at, p.m, to)
                for part in gl.static_range(B_SCALES):
                    to = scales.factors.index(first + A_SCALES + part)
                    copy_b(scales.scales, scales.SCALES, col + part * COLS, at, p.n, to)
            copy_arrive(ready, increment_count=False)
            stage, phase = turned(stage, phase, ring.STAGES)


@jit
def copy_a(x, SCALES: gl.constexpr, row, k0, m, to):
    """Request A's scales for the ROWS rows from `row` on. Scales outside are read at the edge, and
    multiplied with zeros."""
    lanes = gl.arange(0, ROWS, gl.BlockedLayout([1], [LANES], [1], [0]))
    rows = gl.minimum(row + lanes, m - 1) // size_of(SCALES, 0, 0)
    at = x[0] + rows * x[1] + k0 // size_of(SCALES, 0, 1) * x[2]
    copy_load(to, at)


@jit
def copy_b(x, SCALES: gl.constexpr, col, k0, n, to):
    """Request B's scale for the columns from `col` on, which lie in one block: once for each
    row."""
    FIRST: gl.constexpr = 3 if size_of(SCALES, 0, 0) > 0 else 0
    zeros = gl.zeros((ROWS,), gl.int32, gl.BlockedLayout([1], [LANES], [1], [0]))
    cols = gl.minimum(col, n - 1) // size_of(SCALES, 1, 1)
    step = k0 // size_of(SCALES, 1, 0) * x[FIRST + 1]
    copy_load(to, x[FIRST] + (step + cols * x[FIRST + 2]) + zeros)


@jit
def factor_of(
    factors, SCALES: gl.constexpr, first, A_PART: gl.constexpr, B_PART: gl.constexpr,
    A_PARTS: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Scales of a part of the tile, one factor for each row."""
    VECTOR: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    if size_of(SCALES, 0, 0) == 0:
        factor = factors.index(first + B_PART).load(VECTOR)
    else:
        factor = factors.index(first + A_PART).load(VECTOR)
        if size_of(SCALES, 1, 0) > 0:
            factor *= factors.index(first + A_PARTS + B_PART).load(VECTOR)
    return factor


@jit
def _store_part(out, z, row, col, acc, GROUP: gl.constexpr, BATCHING: gl.constexpr):
    """Write a part of a tile to C, or to its part `z`, in two pieces (with SPLIT, four), through
    the group's two staging buffers."""
    COUNT: gl.constexpr = 4 if out.SPLIT else 2
    pieces = cut(acc, COUNT)
    for i in gl.static_range(COUNT):
        piece = pieces[i].to(out.c.dtype)
        at = col + i * (acc.shape[1] // COUNT)
        staging = out.c_tiles.index(2 * GROUP + i % 2)
        tma_store_wait(1)  # the last piece but one has left this buffer
        if out.C_ROW:
            staging.store(piece)
            fence_async_shared()
            tma_store(out.c, place(z, row, at, BATCHING), staging)
        else:
            staging.permute((1, 0)).store(piece)
            fence_async_shared()
            tma_store(out.c, place(z, at, row, BATCHING), staging)


@jit
def _multiply(p, ring, scales, out, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: its rows of every share of this workgroup."""
    tiles_m, tiles_n, tiles, steps = extent(p)
    COLS: gl.constexpr = ring.b_tiles.shape[1]
    A_PARTS: gl.constexpr = p.TILE_M // ROWS
    B_PARTS: gl.constexpr = p.TILE_N // COLS
    MINE: gl.constexpr = A_PARTS // ring.GROUPS
    DOWN: gl.constexpr = MINE - 1  # the position of the second part, if there is one
    RIGHT: gl.constexpr = B_PARTS - 1
    BLOCKS: gl.constexpr = p.TILE_K // ring.a_tiles.shape[2]
    VECTORS: gl.constexpr = scales.factors.shape[0] // (ring.STAGES * BLOCKS)
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 32])
    SUM: gl.constexpr = gl.int32 if ring.a_tiles.dtype == gl.int8 else gl.float32
    OF_GROUP: gl.constexpr = MINE * B_PARTS
    APART: gl.constexpr = out.REDUCTION == "two_stage"
    MEETS: gl.constexpr = p.SCHEDULER == "split_k" and not APART
    OF_C: gl.constexpr = "strided" if APART else "none"
    stage = 0
    phase = 0
    last = 0
    shares = _shares(tiles, p)
    if p.SCHEDULER == "persistent":
        mbarrier.wait(ring.full.index(stage), phase)
    for share in range(gl.program_id(0), shares, gl.num_programs(0)):
        tile, begin, stop, _, _ = next_part(0, 0, share, p.splits, steps, p.SCHEDULER)
        tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, p.GROUP_M)
        row = row_of(p, tile_m) + GROUP * MINE * ROWS
        col = column_of(p, tile_n)
        if MEETS:
            # Each part of each group has its own slots and flags, as if it were a tile.
            stride: gl.constexpr = ring.GROUPS * OF_GROUP
            base = tile if out.REDUCTION == "atomic" else tile * p.splits
            base = base * stride + GROUP * OF_GROUP
            # The answers arrive together with the first operands.
            last0 = take_turn(out.flags, p.splits, base, stride, 0, out.REDUCTION)
            if DOWN + RIGHT:
                last1 = take_turn(out.flags, p.splits, base + 1, stride, 0, out.REDUCTION)
        if p.SCHEDULER == "split_k":
            mbarrier.wait(ring.full.index(stage), phase)
        acc0 = gl.zeros((ROWS, COLS), gl.float32, LAYOUT)
        acc1 = gl.zeros((ROWS, COLS), gl.float32, LAYOUT)
        none = gl.zeros((ROWS, COLS), SUM, LAYOUT)
        for k0 in range(begin * p.TILE_K, stop * p.TILE_K, p.TILE_K):
            slot = stage * BLOCKS
            a_tile = ring.a_tiles.index(slot * A_PARTS + GROUP * MINE)
            b_tile = ring.b_tiles.index(slot * B_PARTS).permute((1, 0))
            part = warpgroup_mma(a_tile, b_tile, none, use_acc=False, is_async=True)
            parts = (part,)
            for block in gl.static_range(1, BLOCKS):  # without a second part, products side by side
                a_tile = ring.a_tiles.index((slot + block) * A_PARTS + GROUP)
                b_tile = ring.b_tiles.index(slot + block).permute((1, 0))
                part = warpgroup_mma(a_tile, b_tile, none, use_acc=False, is_async=True)
                parts = parts + (part,)  # type: ignore[assignment]
            mbarrier.arrive(ring.empty.index(last), count=1, pred=k0 > begin * p.TILE_K)
            first = slot * VECTORS
            factor = factor_of(
                scales.factors, scales.SCALES, first, GROUP * MINE, 0, A_PARTS, LAYOUT
            )
            last = stage
            stage, phase = turned(stage, phase, ring.STAGES)
            more = k0 + p.TILE_K < stop * p.TILE_K
            if p.SCHEDULER == "persistent":
                more = more | (share + gl.num_programs(0) < shares)
            if DOWN + RIGHT:
                other = factor_of(
                    scales.factors,
                    scales.SCALES,
                    first,
                    GROUP * MINE + DOWN,
                    RIGHT,
                    A_PARTS,
                    LAYOUT,
                )
                part = warpgroup_mma_wait(0, deps=(part,))
                acc0 += part.to(gl.float32) * factor[:, None]
                # The additions must come before the next products, which use the same registers
                # (they do not read them: k is not below 0). Otherwise the compiler mixes the two,
                # and a second set of registers does not fit.
                acc0, part = warpgroup_mma_wait(0, deps=(acc0, part))
                a_tile = ring.a_tiles.index(last * A_PARTS + GROUP * MINE + DOWN)
                b_tile = ring.b_tiles.index(last * B_PARTS + RIGHT).permute((1, 0))
                part = warpgroup_mma(a_tile, b_tile, part, use_acc=p.k < 0, is_async=True)
                mbarrier.wait(ring.full.index(stage), phase, pred=more)
                part = warpgroup_mma_wait(0, deps=(part,))
                acc1 += part.to(gl.float32) * other[:, None]
            else:
                vectors = (factor,)
                for block in gl.static_range(1, BLOCKS):
                    there = first + block * VECTORS
                    factor = factor_of(
                        scales.factors, scales.SCALES, there, GROUP, 0, A_PARTS, LAYOUT
                    )
                    vectors = vectors + (factor,)  # type: ignore[assignment]
                mbarrier.wait(ring.full.index(stage), phase, pred=more)
                for block in gl.static_range(BLOCKS):
                    part = warpgroup_mma_wait(BLOCKS - 1 - block, deps=(parts[block],))
                    acc0 += part.to(gl.float32) * vectors[block][:, None]
        mbarrier.arrive(ring.empty.index(last), count=1)
        z = share % p.splits if APART else 0
        if MEETS:
            i = share % p.splits
            slots = within_registers(ROWS, COLS, LAYOUT)
            whole, acc0 = reduce(
                acc0, last0, out.flags, out.partials, slots, i, p.splits, base, stride, 0,
                out.REDUCTION, store, load, add,
            )  # fmt: skip
            if whole:
                _store_part(out, 0, row, col, acc0, GROUP, "none")
        else:
            _store_part(out, z, row, col, acc0, GROUP, OF_C)
        if DOWN + RIGHT:
            row += DOWN * ROWS
            col += RIGHT * COLS
            if MEETS:
                whole, acc1 = reduce(
                    acc1, last1, out.flags, out.partials, slots, i, p.splits, base + 1, stride, 0,
                    out.REDUCTION, store, load, add,
                )  # fmt: skip
                if whole:
                    _store_part(out, 0, row, col, acc1, GROUP, "none")
            else:
                _store_part(out, z, row, col, acc1, GROUP, OF_C)
    tma_store_wait(0)


@jit
def gemm_gluon_scaled(
    a, b, c, m, n, k, scales, flags, partials, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    C_ROW: gl.constexpr, SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr,
    SCALES: gl.constexpr, SPLIT: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """C = A·B, multiplied by GROUPS warp groups.

    a, b, c: tensor descriptors of the matrices as they lie in memory (A row-major, B column-major,
        so B is described as its transpose).
    scales, SCALES: see `scale`.
    flags, partials, splits: for split-K.
    """
    BLOCKS: gl.constexpr = TILE_K // a.block_type.shape[1]
    a_tiles = tiles_of(a, STAGES * BLOCKS * (TILE_M // ROWS))
    b_tiles = tiles_of(b, STAGES * BLOCKS * (TILE_N // b.block_type.shape[0]))
    c_tiles = tiles_of(c, 2 * GROUPS)
    A_SCALES: gl.constexpr = TILE_M // ROWS if size_of(SCALES, 0, 0) > 0 else 0
    B_SCALES: gl.constexpr = TILE_N // b.block_type.shape[0] if size_of(SCALES, 1, 0) > 0 else 0
    VECTORS: gl.constexpr = STAGES * BLOCKS * (A_SCALES + B_SCALES)
    factors = gl.allocate_shared_memory(
        gl.float32, [VECTORS, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    full, empty = barriers(STAGES, GROUPS, 1 + LANES)
    fence_async_shared()  # the copy engine sees the barriers too
    product = Product(
        a, b, (), m, n, k, (), splits, TILE_M, TILE_N, TILE_K, GROUP_M, "none", SCHEDULER, "m",
        "none",
    )  # fmt: skip
    ring = Ring(a_tiles, b_tiles, (), full, empty, True, False, STAGES, GROUPS)
    found = Scales(scales, factors, SCALES)
    output = Output(c, c_tiles, flags, partials, C_ROW, SPLIT, REDUCTION)
    specialized(
        _multiply, (product, ring, found, output), _load, (product, ring, found), GROUPS,
        CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
