"""How sums leave, in Gluon for sm_90: blocks of dQ, which workgroups add to sums in memory, and
rows of dK and dV; and lists of tiles of sums."""

from tilewright.ops.attention_backward.kernels.gluon_steps import step_at, turn_of, walked
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    tma_add,
    tma_store,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@jit
def meet(token):
    """Wait until all warps that multiply are here."""
    return gl.inline_asm_elementwise(
        "bar.sync 8, 256; mov.b32 $0, $1;", "=r,r", [token], gl.int32, is_pure=False, pack=1
    )


@jit
def _done(token):
    """Wait until the sums that this thread has the copy engine add are in memory."""
    return gl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.b32 $0, $1;",
        "=r,r", [token], gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@jit
def _wait_for(turns, over, before):
    """Wait until so many turns of a block are over; `over` of them were when last read."""
    while over < before:
        over = gl.atomic_add(turns, 0, sem="acquire")


@jit
def _pass_on(turns, t, begin, end, more, apart):
    """End this turn of block `t`, and return how many turns of the next block are over: of the same
    head, or, if there is one `more`, the first of the next, `apart` blocks on.

    They are read while the sums of this block are on their way: mostly the turn has come by then,
    and neither the read nor its order (the release behind it is a fence for it too) is waited for.
    """
    later = gl.where(t + 1 < end, 1, apart + begin - t)
    over = gl.load(turns + later, mask=(t + 1 < end) | more, other=0, volatile=True)
    _done(t)
    gl.atomic_add(turns, 1, sem="release")
    return over


@jit
def add_blocks(w, TILE: gl.constexpr, STEP: gl.constexpr, GROUPS: gl.constexpr):
    """The warp that adds blocks of dQ to the sums in memory, a tile of each group.
    ORDERED: each block's in turns, of which `turns` counts those that are over. The first writes,
    so sums need not be zero before; a block without turns is nothing.
    DBIAS: it also writes the gradients of scores, [queries, keys], from the slot that groups filled
    before they handed dQ over; they fill it again after they heard that dQ was read."""
    left, right, first, _ = w.bounds
    q_b = 0 if w.PACKEDQ else w.b
    phase = 0
    over = 0
    for m in range(w.group):
        line = (q_b * w.heads + w.g * w.group + m) * w.padded + w.terms_begin
        begin, _, _, end, way = walked(w, m, TILE)
        for x in range(begin, end):
            t = step_at(w, x, way)
            block = line // STEP + t
            if w.ORDERED:
                before = turn_of(
                    t, w.j0, w.ascending, w.n_kv, w.shift, left, right, first, TILE, STEP, w.MASK
                )  # fmt: skip
                _wait_for(w.turns + block, over, before)
            mbarrier.wait(w.dq_full.index(0), phase)
            for r in gl.static_range(GROUPS):
                row = (block * GROUPS + r) * w.dq_tiles.shape[1]
                if w.ORDERED:
                    if before == 0:
                        tma_store(w.dq_sums, (row, 0), w.dq_tiles.index(r))
                    else:
                        tma_add(w.dq_sums, (row, 0), w.dq_tiles.index(r))
                else:
                    tma_add(w.dq_sums, (row, 0), w.dq_tiles.index(r))
            if w.DBIAS:
                for r in gl.static_range(GROUPS):
                    at = (w.b, w.g * w.group + m, t * STEP, w.j0 + r * w.ds_tiles.shape[2])
                    tma_store(w.ds, at, w.ds_tiles.index(phase * GROUPS + r))
            tma_store_wait(0)
            mbarrier.arrive(w.dq_empty.index(0), count=1)
            phase ^= 1
            if w.ORDERED:
                over = _pass_on(
                    w.turns + block, t, w.begin, w.end, m + 1 < w.group, w.padded // STEP
                )


@jit
def add_tiles(
    w, TILE: gl.constexpr, STEP: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr,
    PIECES: gl.constexpr,
):  # fmt: skip
    """As `add_blocks`, of one group alone, which hands over its tiles without waiting for the
    other: each has a warp that adds, barriers and turns of its own.

    One warp added for both before. In turns it waits until a block's sums are in memory, and the
    groups waited for it: at head dim 256 a step took 1.3 to 1.5 times as long as without turns."""
    SHARE: gl.constexpr = (PIECES + GROUPS - 1) // GROUPS
    FIRST: gl.constexpr = GROUP * SHARE
    left, right, first, _ = w.bounds
    q_b = 0 if w.PACKEDQ else w.b
    phase = 0
    over = 0
    turns = w.turns
    if w.ORDERED:
        turns += GROUP * w.lines * (w.padded // STEP)
    for m in range(w.group):
        line = (q_b * w.heads + w.g * w.group + m) * w.padded + w.terms_begin
        for t in range(w.begin, w.end):
            block = line // STEP + t
            if w.ORDERED:
                before = turn_of(
                    t, w.j0, w.ascending, w.n_kv, w.shift, left, right, first, TILE, STEP, w.MASK
                )  # fmt: skip
                _wait_for(turns + block, over, before)
            for n in gl.static_range(FIRST, min(FIRST + SHARE, PIECES)):
                row = (block * PIECES + n) * w.dq_tiles.shape[1]
                mbarrier.wait(w.dq_full.index(GROUP), phase)
                if w.ORDERED:
                    if before == 0:
                        tma_store(w.dq_sums, (row, 0), w.dq_tiles.index(GROUP))
                    else:
                        tma_add(w.dq_sums, (row, 0), w.dq_tiles.index(GROUP))
                else:
                    tma_add(w.dq_sums, (row, 0), w.dq_tiles.index(GROUP))
                tma_store_wait(0)
                mbarrier.arrive(w.dq_empty.index(GROUP), count=1)
                phase ^= 1
            if w.ORDERED:
                over = _pass_on(turns + block, t, w.begin, w.end, m + 1 < w.group, w.padded // STEP)


@jit
def halves(sums):
    """The two tiles [64, 64] that are beside each other in [64, 128]."""
    one, two = sums.reshape([64, 2, 64]).permute((0, 2, 1)).split()
    return one, two


@jit
def no_sums(ROWS: gl.constexpr, WIDTH: gl.constexpr, COUNT: gl.constexpr, LAYOUT: gl.constexpr):
    """COUNT tiles of sums, still zero."""
    found = ()
    for _ in gl.static_range(COUNT):
        found += (gl.zeros((ROWS, WIDTH), gl.float32, LAYOUT),)
    return found


@jit
def add_products(sums, left, tiles, first):
    """sums + left·tiles, started, of the tiles from `first` on."""
    found = ()
    for c in gl.static_range(len(sums)):
        found += (warpgroup_mma(left, tiles.index(first + c), sums[c], is_async=True),)
    return found


@jit
def ended(sums, left, LATER: gl.constexpr):
    """Sums, and the left operand of their products, when these are over. LATER: how many products
    were started after them."""
    found = ()
    for c in gl.static_range(len(sums)):
        one, left = warpgroup_mma_wait(LATER, deps=(sums[c], left))
        found += (one,)
    return found, left


@jit
def by_threads(sums):
    """A tile of sums [64, 64] as [128, 32], so that what a thread holds of two rows, eight apart,
    and two columns are neighbours: it writes them to shared memory at once, and eight threads write
    to all banks. `around` turns it back."""
    parts = sums.reshape([4, 2, 8, 8, 4, 2])
    return parts.permute((3, 0, 2, 4, 1, 5)).reshape([128, 32])


@jit
def hand_over(dq, dq_tiles, dq_full, GROUP: gl.constexpr):
    """Let a tile of dQ be added."""
    dq_tiles.index(GROUP).store(by_threads(dq))
    fence_async_shared()
    mbarrier.arrive(dq_full.index(GROUP), count=1)


@jit
def write_rows(w, x, strides, sums, weight, j0, first, DIM: gl.constexpr):
    """Write columns `first`… of rows of dK or dV: those of the sequence; zeros where the sequence
    has room and no key. If `accumulate` is not 0, add them to what is there."""
    OF: gl.constexpr = sums.type.layout
    b = 0 if w.PACKEDKV else w.b
    j = j0 + gl.arange(0, sums.shape[0], gl.SliceLayout(1, OF))
    d = first + gl.arange(0, sums.shape[1], gl.SliceLayout(0, OF))
    out = gl.where(gl.expand_dims(j < w.n_kv, 1), sums * weight, 0.0)
    # What the arguments promise does not reach the partitions, and pairs are stored together.
    start = x + gl.multiple_of(b * strides[0] + w.g.to(gl.int64) * strides[2], 8)
    rows = gl.multiple_of((w.kv_begin + j).to(gl.int64) * strides[1], 8)
    at = gl.expand_dims(rows, 1) + gl.expand_dims(d, 0)
    inside = gl.expand_dims(j < w.room, 1) & gl.expand_dims(d < DIM, 0)
    to = gl.multiple_of(start, 16) + at
    if w.accumulate != 0:
        out += gl.load(to, mask=inside, other=0.0).to(gl.float32)
    gl.store(to, out.to(x.dtype.element_ty), mask=inside)
