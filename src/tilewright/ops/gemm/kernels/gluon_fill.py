"""The warp that loads, in Gluon for sm_90: it fills the ring (`gluon_ring`) with the tiles of a
product; shared by `gluon_ws` and `gluon_pingpong`.

Programmatic dependent launch. With PDL other than ``none``, the kernel may start before the kernel
before it has ended. So each warp waits for that kernel (`gdc_wait`) before it touches memory that
others may write: those that multiply before anything else, since they store over what the kernel
before may still read, and read operands of the epilogue, flags and partial sums; the one that loads
before its first load. The wait ends when the kernel before has ended and its stores can be seen.
Every workgroup waits, also one without work: otherwise the kernel behind this one could start
before the kernel before this one has ended. With ``a`` or ``b``, the caller has said that nobody
writes to that matrix: its tiles of the first steps, as many as the ring has slots, are requested
before the wait, and those of the other matrix join them in their slots behind it.

The warp that loads lets the next kernel start (`gdc_launch_dependents`) behind its last request.
The grid has at most as many workgroups as there are SMs, so all are resident by then, and the next
kernel takes no place that this one still needs.
"""

from tilewright.ops.device.batching import in_batch, in_matrix, step_of, summed_k
from tilewright.ops.device.gluon_api import (
    gdc_launch_dependents,
    gdc_wait,
    gl,
    jit,
    mbarrier,
    tma_load,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import before, place, turned, width, work_of
from tilewright.ops.device.schedule import begin_of, next_part, tile_coordinates

Product = bundle(
    "Product",
    "a b b_rest m n k batch splits TILE_M TILE_N TILE_K GROUP_M BATCHING SCHEDULER INSIDE PDL",
)
"""A product A·B: its descriptors and sizes, and how it is cut and shared out."""


@jit
def extent(p):
    """How a product is cut: rows and columns of tiles of a matrix, tiles of all matrices, and steps
    of a tile."""
    tiles_m = gl.cdiv(p.m, p.TILE_M)
    tiles_n = gl.cdiv(p.n, p.TILE_N)
    tiles = in_batch(tiles_m * tiles_n, p.batch, p.BATCHING)
    steps = gl.cdiv(summed_k(p.k, p.batch, p.TILE_K, p.BATCHING), p.TILE_K)
    return tiles_m, tiles_n, tiles, steps


@jit
def _step_of(p, z, k0):
    """`step_of` for a product."""
    return step_of(k0, z, p.k, p.batch, p.TILE_K, p.BATCHING)


@jit
def row_of(p, tile_m):
    """The first row of the tiles in row number `tile_m`."""
    return begin_of(tile_m, p.m, p.TILE_M, "m", p.INSIDE)


@jit
def column_of(p, tile_n):
    """The first column of the tiles in column number `tile_n`."""
    return begin_of(tile_n, p.n, p.TILE_N, "n", p.INSIDE)


@jit
def fill(p, ring):
    """The producer: loads every K step of every part of this workgroup into the ring."""
    tiles_m, tiles_n, tiles, steps = extent(p)
    OF_B: gl.constexpr = p.b.block_type.nbytes // width(p.TILE_N, 0) * p.TILE_N
    BYTES: gl.constexpr = ring.GROUPS * p.a.block_type.nbytes + OF_B
    AHEAD: gl.constexpr = p.PDL == "a" or p.PDL == "b"
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    _, _, at, end, part, parts = work_of(tiles, steps, p.splits, p.SCHEDULER)
    if AHEAD:
        early = steps * 0
        if (at < end) | (part < parts):
            tile, begin, stop, _, _ = next_part(at, end, part, p.splits, steps, p.SCHEDULER)
            z, within = in_matrix(tile, tiles_m * tiles_n, p.BATCHING)
            tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, p.GROUP_M)
            early = gl.minimum(stop - begin, ring.STAGES)
            for slot in range(early):
                z_a, z_b, at_k = _step_of(p, z, (begin + slot) * p.TILE_K)
                mbarrier.expect(ring.full.index(slot), BYTES)
                if p.PDL == "a":
                    load_a(p, ring, slot, z_a, row_of(p, tile_m), at_k, True)
                else:
                    load_b(p, ring, slot, z_b, at_k, column_of(p, tile_n), True)
    if p.PDL != "none":
        gdc_wait()
    while (at < end) | (part < parts):
        tile, begin, stop, at, part = next_part(at, end, part, p.splits, steps, p.SCHEDULER)
        z, within = in_matrix(tile, tiles_m * tiles_n, p.BATCHING)
        tile_m, tile_n = tile_coordinates(within, tiles_m, tiles_n, p.GROUP_M)
        row = row_of(p, tile_m)
        col = column_of(p, tile_n)
        for k0 in range(begin * p.TILE_K, stop * p.TILE_K, p.TILE_K):
            z_a, z_b, at_k = _step_of(p, z, k0)
            mbarrier.wait(ring.empty.index(stage), phase)
            if AHEAD:
                missing = early <= 0  # neither was requested before the wait
                early -= 1
                mbarrier.expect(ring.full.index(stage), BYTES, missing)
            else:
                mbarrier.expect(ring.full.index(stage), BYTES)
            load_a(p, ring, stage, z_a, row, at_k, missing if p.PDL == "a" else True)
            load_b(p, ring, stage, z_b, at_k, col, missing if p.PDL == "b" else True)
            stage, phase = turned(stage, phase, ring.STAGES)
    if p.PDL != "none":
        gdc_launch_dependents()


@jit
def load_a(p, ring, slot, z, row, k0, wanted):
    """Request A's tiles of a step, one for each group, into a slot of the ring, if they are
    `wanted`."""
    ROWS: gl.constexpr = p.TILE_M // ring.GROUPS
    ready = ring.full.index(slot)
    for group in gl.static_range(ring.GROUPS):
        a_tile = ring.a_tiles.index(slot * ring.GROUPS + group)
        if ring.A_ROW:
            tma_load(p.a, place(z, row + group * ROWS, k0, p.BATCHING), ready, a_tile, wanted)
        else:
            tma_load(p.a, place(z, k0, row + group * ROWS, p.BATCHING), ready, a_tile, wanted)


@jit
def load_b(p, ring, slot, z, k0, col, wanted):
    """Request B's tile of a step, part by part, into a slot of the ring, if it is `wanted`."""
    load_columns(p, ring, p.b, ring.b_tiles, slot, z, k0, col, wanted)
    for i in gl.static_range(len(p.b_rest)):
        there = col + before(p.TILE_N, i + 1)
        load_columns(p, ring, p.b_rest[i], ring.rest_tiles[i], slot, z, k0, there, wanted)


@jit
def load_columns(p, ring, b, b_tiles, slot, z, k0, col, wanted):
    """Request B's columns from `col` on that one box of `b` has."""
    ready = ring.full.index(slot)
    if ring.B_ROW:
        tma_load(b, place(z, k0, col, p.BATCHING), ready, b_tiles.index(slot), wanted)
    else:
        tma_load(b, place(z, col, k0, p.BATCHING), ready, b_tiles.index(slot), wanted)
