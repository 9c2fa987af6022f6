"""Grouped GEMM with warp roles written out: one warp loads, others multiply (sm_90).

Idea. That of the GEMM kernel of the same name (`tilewright.ops.gemm.kernels.gluon_ws`): a producer
warp keeps a ring of tiles of A and B full. One or two warp groups multiply, each its own rows of
the tile, with its own copy of the loop. The ring continues from tile to tile, and so from group to
group.

Groups. Before the roles part, four warps add up the groups' tiles (as `walk`) in shared memory. The
producer takes tiles from a counter, looks up where they are, and tells the consumers
(`gluon_post`): a tile with few rows takes less time than a whole one.

Edges. Most groups end inside a tile. If all rows of a warp group lie past the end, its A is not
loaded, and it neither multiplies nor stores but only returns the slots of the ring. The other warp
group then has the matrix units to itself, so half a tile takes less time than a whole tile. C
leaves through a descriptor that ends with the group, as in `tma`.

Epilogues. The sums of a tile go through them in registers, as in the GEMM's kernel and by its rule
of what would spill (`gluon_store.by_pieces`): at once, or piece by piece. Their vectors and
matrices come through pointers.

On a CPU. Gluon has no interpreter; `tma` with the same fields computes the same result there.

Measured on an H200 in bf16 with skewed loads: 1.141 to 1.380 times the speed of torch._grouped_mm.
It is not clearly ahead of `tma`. More measurements: docs/notes/grouped_gemm-gluon_ws.md.
"""

from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    reinterpreted,
    tma_load,
    tma_store,
    tma_store_wait,
    warpgroup_mma_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import Ring, barriers, multiplied, turned, zeros
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.device.gluon_store import by_pieces, cut, indices
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
from tilewright.ops.grouped_gemm.kernels.operands import of_group
from tilewright.ops.grouped_gemm.kernels.walk import RAGGED_ROWS

PRODUCER_REGISTERS = gl.constexpr(40)
CONSUMER_REGISTERS = gl.constexpr(232)

Output = bundle("Output", "c c_tiles extra n SPLIT TAKES WIDTHS FOLD LARGEST CHAIN")
"""Where sums go: C through two staging buffers for each warp group, the epilogue and its
operands."""


@jit
def _load(w, ring, post, a, b):
    """The producer: takes tiles, tells the consumers, and loads every K step into the ring."""
    ROWS: gl.constexpr = w.TILE_M // ring.GROUPS
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    slot = 0
    slot_phase = 1
    ask = asks_at(w, ring.STAGES)
    tile = gl.program_id(0)
    while tile < w.tiles:
        group, begin, rows, inside, col, slot, slot_phase = tell_place(
            w, post, tile, slot, slot_phase, 1
        )
        row = begin + inside
        both = (inside + ROWS < rows) | (ring.GROUPS == 1)
        for k0 in range(0, w.k, w.TILE_K):
            if k0 == ask:
                tile = taken(post, w.tiles)
            ready = ring.full.index(stage)
            mbarrier.wait(ring.empty.index(stage), phase)
            if both:
                mbarrier.expect(ready, ring.GROUPS * a.block_type.nbytes + b.block_type.nbytes)
            else:
                mbarrier.expect(ready, a.block_type.nbytes + b.block_type.nbytes)
            tma_load(a, [row, k0], ready, ring.a_tiles.index(stage * ring.GROUPS))
            if ring.GROUPS == 2:
                tma_load(
                    a, [row + ROWS, k0], ready, ring.a_tiles.index(stage * ring.GROUPS + 1),
                    pred=both,
                )  # fmt: skip
            b_tile = reinterpreted(
                ring.b_tiles.index(stage), b.dtype, b.block_type.shape, b.layout
            )  # fmt: skip
            load_b(b, group, k0, col, ready, b_tile, ring.B_ROW)
            stage, phase = turned(stage, phase, ring.STAGES)
    tell_end(post, slot, slot_phase, 1)


@jit
def load_b(b, group, k0, col, ready, b_tile, B_ROW: gl.constexpr):
    """Request a tile of B. A map of four dimensions takes gates and ups by turns."""
    if B_ROW:
        tma_load(b, [group, k0, col], ready, b_tile)
    elif len(b.block_type.shape) == 4:
        tma_load(b, [group, col // 2, 0, k0], ready, b_tile)
    else:
        tma_load(b, [group, col, k0], ready, b_tile)


@jit
def _finished(out, acc, extra, begin, rows, row, col):
    """Sums at (row, col) of a group's `rows` rows from `begin` on, after the epilogue."""
    return apply(
        acc, extra, begin + row, col, begin + rows, out.n, out.CHAIN, out.TAKES, True, True, True,
        indices,
    )  # fmt: skip


@jit
def multiply(w, ring, post, out, INT_ACC: gl.constexpr, MINE: gl.constexpr):
    """A consumer, warp group number MINE: its rows of every tile of this workgroup."""
    ROWS: gl.constexpr = w.TILE_M // ring.GROUPS
    MMA_K: gl.constexpr = 256 // ring.a_tiles.dtype.primitive_bitwidth
    COUNT: gl.constexpr = 4 if out.SPLIT else 2
    PIECES: gl.constexpr = by_pieces(out.TAKES, w.TILE_N)
    stage = 0
    phase = 0
    last = 0
    slot = 0
    slot_phase = 0
    group, begin, rows, row, col = hear(post, slot, slot_phase)
    while group >= 0:
        extra = of_group(out.extra, group, out.n, out.WIDTHS)
        row += MINE * ROWS
        if row < rows:
            acc = zeros(ROWS, w.TILE_N, MMA_K, INT_ACC)
            for k0 in range(0, w.k, w.TILE_K):
                mbarrier.wait(ring.full.index(stage), phase)
                if w.FORM == "gathered":
                    fence_async_shared()  # threads, not the copy engine, have written A
                a_tile = ring.a_tiles.index(stage * ring.GROUPS + MINE)
                acc = multiplied(a_tile, ring.b_tiles.index(stage), acc, ring.B_ROW, k0 > 0)
                acc = warpgroup_mma_wait(1, deps=(acc,))
                mbarrier.arrive(ring.empty.index(last), count=1, pred=k0 > 0)
                last = stage
                stage, phase = turned(stage, phase, ring.STAGES)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(ring.empty.index(last), count=1)
            if not PIECES:
                acc = _finished(out, acc, extra, begin, rows, row, col)
            pieces = cut(acc, COUNT)
            for i in gl.static_range(COUNT):
                sums = pieces[i]
                if PIECES:
                    there = col + i * (w.TILE_N // COUNT)
                    sums = _finished(out, sums, extra, begin, rows, row, there)
                tma_store_wait(1)  # the last piece but one has left this buffer
                staging = out.c_tiles.index(2 * MINE + i % 2)
                staging.store(rounded(sums, out.c.dtype, out.LARGEST))
                fence_async_shared()
                # Rows past the group's end are not written.
                at = [
                    RAGGED_ROWS, begin + rows, RAGGED_ROWS - rows + row,
                    (col + i * (w.TILE_N // COUNT)) // out.FOLD,
                ]  # fmt: skip
                box = reinterpreted(staging, out.c.dtype, out.c.block_type.shape, out.c.layout)
                tma_store(out.c, at, box)
        else:
            for _ in range(0, w.k, w.TILE_K):
                mbarrier.wait(ring.full.index(stage), phase)
                mbarrier.arrive(ring.empty.index(stage), count=1)
                stage, phase = turned(stage, phase, ring.STAGES)
        slot, slot_phase = heard(post, slot, slot_phase)
        group, begin, rows, row, col = hear(post, slot, slot_phase)
    tma_store_wait(0)


@jit
def grouped_gemm_gluon_ws(
    a, b, c, table, m, n, k, groups, lead, c_rows, ldc, zero_rest, counter, extra,
    FORM: gl.constexpr,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    B_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    TAKES: gl.constexpr, WIDTHS: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """C_g = A_g·B_g for every group, with a, b, c tensor descriptors; WARP_GROUPS warp groups
    multiply. counter: a number that is 0 before and after. Other arguments as in `tma`."""
    if zero_rest != 0:
        cleared(c_rows, ldc, table, m, groups, lead, n // FOLD, FORM == "masked")
    ROWS: gl.constexpr = TILE_M // WARP_GROUPS
    PIECE: gl.constexpr = TILE_N // 4 if SPLIT else TILE_N // 2
    a_tiles = tiles_of(a, STAGES * WARP_GROUPS, ROWS, TILE_K)
    if B_ROW:
        b_tiles = tiles_of(b, STAGES, TILE_K, TILE_N)
    else:
        b_tiles = tiles_of(b, STAGES, TILE_N, TILE_K)
    c_tiles = tiles_of(c, 2 * WARP_GROUPS, ROWS, PIECE // FOLD)
    full, empty = barriers(STAGES, WARP_GROUPS)
    walk = walked(
        table, m, n, k, groups, lead, FORM, TILE_M, TILE_N, TILE_K, GROUP_M, SPLIT
    )  # fmt: skip
    post = posted(counter, WARP_GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    ring = Ring(a_tiles, b_tiles, (), full, empty, True, B_ROW, STAGES, WARP_GROUPS)
    output = Output(c, c_tiles, extra, n, SPLIT, TAKES, WIDTHS, FOLD, LARGEST, CHAIN)
    specialized(
        multiply, (walk, ring, post, output, INT_ACC), _load, (walk, ring, post, a, b), WARP_GROUPS,
        CONSUMER_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
