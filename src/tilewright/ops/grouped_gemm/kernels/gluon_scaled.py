"""Block-scaled 8-bit grouped GEMM with warp roles written out, in Gluon (sm_90).

Idea. The walk of `gluon_ws`, and for each tile the sum of the GEMM kernel of the same name
(`tilewright.ops.gemm.kernels.gluon_scaled`): one warp loads, and one or two warp groups multiply.
The products of every K step start from zero and are added to the sum times their scales, while the
other group's products keep the matrix units busy. That kernel explains the parts of a tile and
their registers.

Data movement. The ring's slots hold parts of A and B, loaded by the copy engine, and vectors of
scales, loaded by copies of 4 bytes from the group's own scales. C leaves through a descriptor that
ends with the group, as in `tma`.

Edges. If all rows of the second warp group lie past the group's end, its A is not loaded, and it
only returns the slots of the ring. Scales past the group's end are read at its last row.

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

What limits it. As the GEMM's kernel, with tiles that end inside the groups. On an H200 it
was right in every case of the tests; docs/notes/moe-layers.md has times.
"""

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
from tilewright.ops.device.gluon_store import cut
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
from tilewright.ops.grouped_gemm.kernels.operands import scales_of_group
from tilewright.ops.grouped_gemm.kernels.walk import RAGGED_ROWS

Scales = bundle("Scales", "scales factors n SCALES")
"""The scales of all groups in memory, their vectors in the ring's slots, and which there are."""


@jit
def _load(w, ring, post, scales, a, b):
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
                tma_load(b, [group, col + part * COLS, k0], ready, b_tile)
            first = stage * (A_SCALES + B_SCALES)
            for part in gl.static_range(A_SCALES):
                to = scales.factors.index(first + part)
                copy_a(own, scales.SCALES, row + part * ROWS, k0, rows, to)
            for part in gl.static_range(B_SCALES):
                to = scales.factors.index(first + A_SCALES + part)
                copy_b(own, scales.SCALES, col + part * COLS, k0, scales.n, to)
            copy_arrive(ready, increment_count=False)
            stage, phase = turned(stage, phase, ring.STAGES)
    tell_end(post, slot, slot_phase, 1)


@jit
def _store_part(c, c_tiles, begin, rows, row, col, acc, SPLIT: gl.constexpr, MINE: gl.constexpr):
    """Write a part of a tile, at (row, col) of a group's `rows` rows from `begin` on, to C, in two
    pieces (with SPLIT, four), through the warp group's two staging buffers."""
    COUNT: gl.constexpr = 4 if SPLIT else 2
    pieces = cut(acc, COUNT)
    for i in gl.static_range(COUNT):
        tma_store_wait(1)  # the last piece but one has left this buffer
        staging = c_tiles.index(2 * MINE + i % 2)
        staging.store(pieces[i].to(c.dtype))
        fence_async_shared()
        # Rows past the group's end are not written.
        at = [
            RAGGED_ROWS, begin + rows, RAGGED_ROWS - rows + row, col + i * (acc.shape[1] // COUNT),
        ]  # fmt: skip
        tma_store(c, at, reinterpreted(staging, c.dtype, c.block_type.shape, c.layout))


@jit
def multiply(w, ring, post, scales, c, c_tiles, SPLIT: gl.constexpr, GROUP: gl.constexpr):
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
            _store_part(c, c_tiles, begin, rows, row, col, acc0, SPLIT, GROUP)
            if DOWN + RIGHT:
                row += DOWN * ROWS
                col += RIGHT * COLS
                _store_part(c, c_tiles, begin, rows, row, col, acc1, SPLIT, GROUP)
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
    a, b, c, table, m, n, k, groups, lead, c_rows, ldc, zero_rest, counter, scales,
    FORM: gl.constexpr,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    SCALES: gl.constexpr, SPLIT: gl.constexpr, STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with a, b, c tensor descriptors of parts; WARP_GROUPS warp
    groups multiply. counter: see `gluon_ws`. scales, SCALES: see `operands`. Other arguments as in
    `tma`."""
    if zero_rest != 0:
        cleared(c_rows, ldc, table, m, groups, lead, n, FORM == "masked")
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
    specialized(
        multiply, (walk, ring, post, found, c, c_tiles, SPLIT),
        _load, (walk, ring, post, found, a, b),
        WARP_GROUPS, CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
