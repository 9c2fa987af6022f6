"""Block-scaled 8-bit grouped GEMM with warp roles written out, in Gluon (sm_90).

Idea. The walk of `gluon_ws`, and for each tile the sum of the GEMM kernel of the same name
(`tilewright.ops.gemm.kernels.gluon_scaled`): one warp loads, and one or two warp groups multiply.
The products of every K step start from zero and are added to the sum times their scales, while the
other group's products keep the matrix units busy. That kernel explains the parts of a tile and
their registers.

Data movement. The ring's slots hold parts of A and B, loaded by the copy engine, and vectors of
scales, loaded by copies of 4 bytes from the group's own scales. C leaves through a descriptor that
ends with the group, as in `tma`.

Gates. With an epilogue that makes one column of two, one part of a tile is gates, and the other
the ups of the same columns of C: B has all gates first, so each part has its own scale. A thread
then has both of a pair in the same place of its two sums, and the epilogue acts in registers.

Rounding. A part of C has one block of 128 columns of each row, so a quad of threads has its largest
value: two shuffles find it, and the scale goes to memory beside C.

Edges. If all rows of the second warp group lie past the group's end, its A is not loaded, and it
only returns the slots of the ring. Scales past the group's end are read at its last row.

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

What limits it. As the GEMM's kernel, with tiles that end inside the groups. On an H200 it
was right in every case of the tests; docs/notes/moe-layers.md has times.
"""

from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.gluon_api import (
    copy_arrive,
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    reinterpreted,
    tma_load,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import Ring, barriers, turned
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.device.gluon_store import cut, indices
from tilewright.ops.device.rounding import BLOCK, scale_of_block
from tilewright.ops.device.scale import size_of
from tilewright.ops.gemm.kernels.gluon_scaled import (
    CONSUMER_REGISTERS,
    LANES,
    PRODUCER_REGISTERS,
    ROWS,
    copy_a,
    copy_b,
    factor_of,
)
from tilewright.ops.grouped_gemm.kernels.gluon_post import (
    asks_at,
    hear,
    heard,
    posted,
    taken,
    tell_end,
    tell_place,
)
from tilewright.ops.grouped_gemm.kernels.gluon_walk import cleared, tiles_of, walked
from tilewright.ops.grouped_gemm.kernels.operands import of_group, scales_of_group
from tilewright.ops.grouped_gemm.kernels.walk import RAGGED_ROWS

Scales = bundle("Scales", "scales factors n SCALES")
"""The scales of all groups in memory, their vectors in the ring's slots, and which there are."""

Output = bundle("Output", "c c_tiles extra quants n SPLIT TAKES WIDTHS FOLD LARGEST CHAIN")
"""Where sums go: as of `gluon_ws`."""


@jit
def part_of_b(col, n, PART: gl.constexpr, COLS: gl.constexpr, FOLD: gl.constexpr):
    """The first column of B in a part of the tile at `col`: of gates and then of their ups, if two
    columns become one."""
    if FOLD == 2:
        first = col // 2 + PART * (n // 2)
    else:
        first = col + PART * COLS
    return first


@jit
def _load(w, ring, post, scales, a, b, FOLD: gl.constexpr):
    """The producer: takes tiles, tells the consumers, and loads every K step into the ring."""
    COLS: gl.constexpr = b.block_type.shape[1]
    A_PARTS: gl.constexpr = w.TILE_M // ROWS
    B_PARTS: gl.constexpr = w.TILE_N // COLS
    MINE: gl.constexpr = A_PARTS // ring.GROUPS
    A_SCALES: gl.constexpr = A_PARTS if size_of(scales.SCALES, 0, 0) > 0 else 0
    B_SCALES: gl.constexpr = B_PARTS if size_of(scales.SCALES, 1, 0) > 0 else 0
    OF_GROUP: gl.constexpr = MINE * a.block_type.nbytes
    OF_B: gl.constexpr = B_PARTS * b.block_type.nbytes
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    slot = 0
    slot_phase = 1
    ask = asks_at(w, ring.STAGES)
    tile = gl.program_id(0)
    while tile < w.tiles:
        group, begin, rows, row, col, slot, slot_phase = tell_place(
            w, post, tile, slot, slot_phase, 1
        )
        own = scales_of_group(scales.scales, begin, group, w.FORM, scales.SCALES)
        both = (row + MINE * ROWS < rows) | (ring.GROUPS == 1)
        for k0 in range(0, w.k, w.TILE_K):
            if k0 == ask:
                tile = taken(post, w.tiles)
            ready = ring.full.index(stage)
            mbarrier.wait(ring.empty.index(stage), phase)
            if both:
                mbarrier.expect(ready, ring.GROUPS * OF_GROUP + OF_B)
            else:
                mbarrier.expect(ready, OF_GROUP + OF_B)
            for part in gl.static_range(MINE):
                a_tile = ring.a_tiles.index(stage * A_PARTS + part)
                tma_load(a, [begin + row + part * ROWS, k0], ready, a_tile)
            for part in gl.static_range(MINE, A_PARTS):
                a_tile = ring.a_tiles.index(stage * A_PARTS + part)
                tma_load(a, [begin + row + part * ROWS, k0], ready, a_tile, pred=both)
            for part in gl.static_range(B_PARTS):
                b_tile = reinterpreted(
                    ring.b_tiles.index(stage * B_PARTS + part), b.dtype, b.block_type.shape,
                    b.layout,
                )  # fmt: skip
                at = part_of_b(col, scales.n, part, COLS, FOLD)
                tma_load(b, [group, at, k0], ready, b_tile)
            first = stage * (A_SCALES + B_SCALES)
            for part in gl.static_range(A_SCALES):
                to = scales.factors.index(first + part)
                copy_a(own, scales.SCALES, row + part * ROWS, k0, rows, to)
            for part in gl.static_range(B_SCALES):
                to = scales.factors.index(first + A_SCALES + part)
                at = part_of_b(col, scales.n, part, COLS, FOLD)
                copy_b(own, scales.SCALES, at, k0, scales.n, to)
            copy_arrive(ready, increment_count=False)
            stage, phase = turned(stage, phase, ring.STAGES)
    tell_end(post, slot, slot_phase, 1)


@jit
def _gated(out, gates, ups, group, begin, rows, row, col):
    """A part of C: sums at (row, col) of the product, after the epilogue that makes one of two."""
    extra = of_group(out.extra, group, out.n, out.WIDTHS)
    pairs = gl.join(gates, ups).reshape((gates.shape[0], 2 * gates.shape[1]))
    return apply(
        pairs, extra, begin + row, col, begin + rows, out.n, out.CHAIN, out.TAKES, True, True, True,
        indices,
    )  # fmt: skip


@jit
def _in_blocks(out, acc, begin, rows, row, col):
    """A part of C divided by the scales of its rows, which go to `out.quants`, if there are any."""
    found = acc
    if len(out.quants) > 0:
        gl.static_assert(acc.shape[1] == BLOCK)
        by = scale_of_block(gl.max(gl.abs(acc), 1), out.c.dtype)
        found = acc * (1.0 / by)[:, None]
        at = row + indices(acc, 0)
        to = (begin + at).to(gl.int64) * (out.n // out.FOLD // BLOCK) + col // BLOCK
        gl.store(out.quants[0] + to, by, mask=at < rows)
    return found


@jit
def _store_part(out, begin, rows, row, col, acc, MINE: gl.constexpr):
    """Write a part of a tile, at (row, col) of a group's `rows` rows from `begin` on, to C, in two
    pieces (with SPLIT, four), through the warp group's two staging buffers."""
    c = out.c
    COUNT: gl.constexpr = 4 if out.SPLIT else 2
    pieces = cut(_in_blocks(out, acc, begin, rows, row, col), COUNT)
    for i in gl.static_range(COUNT):
        tma_store_wait(1)  # the last piece but one has left this buffer
        staging = out.c_tiles.index(2 * MINE + i % 2)
        staging.store(rounded(pieces[i], c.dtype, out.LARGEST))
        fence_async_shared()
        # Rows past the group's end are not written.
        at = [
            RAGGED_ROWS, begin + rows, RAGGED_ROWS - rows + row, col + i * (acc.shape[1] // COUNT),
        ]  # fmt: skip
        tma_store(c, at, reinterpreted(staging, c.dtype, c.block_type.shape, c.layout))


@jit
def multiply(w, ring, post, scales, out, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: its rows of every tile of this workgroup."""
    COLS: gl.constexpr = ring.b_tiles.shape[1]
    A_PARTS: gl.constexpr = w.TILE_M // ROWS
    B_PARTS: gl.constexpr = w.TILE_N // COLS
    MINE: gl.constexpr = A_PARTS // ring.GROUPS
    DOWN: gl.constexpr = MINE - 1  # the position of the second part, if there is one
    RIGHT: gl.constexpr = B_PARTS - 1
    VECTORS: gl.constexpr = scales.factors.shape[0] // ring.STAGES
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 32])
    SUM: gl.constexpr = gl.int32 if ring.a_tiles.dtype == gl.int8 else gl.float32
    stage = 0
    phase = 0
    last = 0
    slot = 0
    slot_phase = 0
    group, begin, rows, row, col = hear(post, slot, slot_phase)
    while group >= 0:
        row += GROUP * MINE * ROWS
        if row < rows:
            acc0 = gl.zeros((ROWS, COLS), gl.float32, LAYOUT)
            acc1 = gl.zeros((ROWS, COLS), gl.float32, LAYOUT)
            none = gl.zeros((ROWS, COLS), SUM, LAYOUT)
            mbarrier.wait(ring.full.index(stage), phase)
            for k0 in range(0, w.k, w.TILE_K):
                if w.FORM == "gathered":
                    fence_async_shared()  # threads, not the copy engine, have written A
                a_tile = ring.a_tiles.index(stage * A_PARTS + GROUP * MINE)
                b_tile = ring.b_tiles.index(stage * B_PARTS).permute((1, 0))
                part = warpgroup_mma(a_tile, b_tile, none, use_acc=False, is_async=True)
                mbarrier.arrive(ring.empty.index(last), count=1, pred=k0 > 0)
                first = stage * VECTORS
                factor = factor_of(
                    scales.factors, scales.SCALES, first, GROUP * MINE, 0, A_PARTS, LAYOUT
                )  # fmt: skip
                last = stage
                stage, phase = turned(stage, phase, ring.STAGES)
                more = k0 + w.TILE_K < w.k
                if DOWN + RIGHT:
                    other = factor_of(
                        scales.factors, scales.SCALES, first, GROUP * MINE + DOWN, RIGHT, A_PARTS,
                        LAYOUT,
                    )  # fmt: skip
                    part = warpgroup_mma_wait(0, deps=(part,))
                    acc0 += part.to(gl.float32) * factor[:, None]
                    # As in the GEMM's kernel: the additions come before the next products.
                    acc0, part = warpgroup_mma_wait(0, deps=(acc0, part))
                    a_tile = ring.a_tiles.index(last * A_PARTS + GROUP * MINE + DOWN)
                    b_tile = ring.b_tiles.index(last * B_PARTS + RIGHT).permute((1, 0))
                    part = warpgroup_mma(a_tile, b_tile, part, use_acc=w.k < 0, is_async=True)
                    mbarrier.wait(ring.full.index(stage), phase, pred=more)
                    part = warpgroup_mma_wait(0, deps=(part,))
                    acc1 += part.to(gl.float32) * other[:, None]
                else:
                    mbarrier.wait(ring.full.index(stage), phase, pred=more)
                    part = warpgroup_mma_wait(0, deps=(part,))
                    acc0 += part.to(gl.float32) * factor[:, None]
            mbarrier.arrive(ring.empty.index(last), count=1)
            if out.FOLD == 2:
                acc0 = _gated(out, acc0, acc1, group, begin, rows, row, col)
                _store_part(out, begin, rows, row, col // 2, acc0, GROUP)
            else:
                _store_part(out, begin, rows, row, col, acc0, GROUP)
                if DOWN + RIGHT:
                    row += DOWN * ROWS
                    col += RIGHT * COLS
                    _store_part(out, begin, rows, row, col, acc1, GROUP)
        else:
            for _ in range(0, w.k, w.TILE_K):
                mbarrier.wait(ring.full.index(stage), phase)
                mbarrier.arrive(ring.empty.index(stage), count=1)
                stage, phase = turned(stage, phase, ring.STAGES)
        slot, slot_phase = heard(post, slot, slot_phase)
        group, begin, rows, row, col = hear(post, slot, slot_phase)
    tma_store_wait(0)


@jit
def grouped_gemm_gluon_scaled(
    a, b, c, table, m, n, k, groups, lead, c_rows, ldc, zero_rest, counter, scales, extra,
    quants,
    FORM: gl.constexpr,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    SCALES: gl.constexpr,
    TAKES: gl.constexpr, WIDTHS: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with a, b, c tensor descriptors of parts; WARP_GROUPS warp
    groups multiply. counter: see `gluon_ws`. scales, SCALES: see `operands`. quants: see `basic`.
    Other arguments as in `tma`."""
    if zero_rest != 0:
        cleared(c_rows, ldc, table, m, groups, lead, n // FOLD, FORM == "masked")
    COLS: gl.constexpr = b.block_type.shape[1]
    A_PARTS: gl.constexpr = TILE_M // ROWS
    B_PARTS: gl.constexpr = TILE_N // COLS
    a_tiles = tiles_of(a, STAGES * A_PARTS, ROWS, TILE_K)
    b_tiles = tiles_of(b, STAGES * B_PARTS, COLS, TILE_K)
    c_tiles = tiles_of(c, 2 * WARP_GROUPS, ROWS, c.block_type.shape[3])
    A_SCALES: gl.constexpr = A_PARTS if size_of(SCALES, 0, 0) > 0 else 0
    B_SCALES: gl.constexpr = B_PARTS if size_of(SCALES, 1, 0) > 0 else 0
    factors = gl.allocate_shared_memory(
        gl.float32, [STAGES * (A_SCALES + B_SCALES), ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    full, empty = barriers(STAGES, WARP_GROUPS, 1 + LANES)
    walk = walked(
        table, m, n, k, groups, lead, FORM, TILE_M, TILE_N, TILE_K, GROUP_M, SPLIT
    )  # fmt: skip
    post = posted(counter, WARP_GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    ring = Ring(a_tiles, b_tiles, (), full, empty, True, False, STAGES, WARP_GROUPS)
    found = Scales(scales, factors, n, SCALES)
    output = Output(c, c_tiles, extra, quants, n, SPLIT, TAKES, WIDTHS, FOLD, LARGEST, CHAIN)
    specialized(
        multiply, (walk, ring, post, found, output),
        _load, (walk, ring, post, found, a, b, FOLD),
        WARP_GROUPS, CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
