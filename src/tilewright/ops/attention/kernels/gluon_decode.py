"""Decoding over a cache of keys and values, in Gluon, with the warps' roles written out (sm_90).

Idea. With one query, or a few, attention takes as long as its keys and values take to come from
memory. So the query heads that share a head of keys are the rows of one tile, and each key and
value is read once for all of them; splits of the keys fill the device where sequences and heads do
not. Two warps ask the copy engine, one for keys and one for values, as far ahead as shared memory
has room; a group of four warps multiplies. The tile has 64 rows, wgmma's least, most of them
without a query: the matrix units wait for memory all the same.

Data movement. K and V have a ring of STAGES blocks each. A block of a paged cache comes in boxes of
as many rows as a page and a block have in common, at least eight; each box lies at its rows' place
in the block's tile, so what is multiplied looks as if it had come at once. Boxes are 128 bytes
wide, the widest that is swizzled. Entries of the page table are read 32 at once, one by each lane,
and one such load ahead. Boxes whose rows lie wholly behind the last key are not asked for; a block
that the last key cuts is announced to its barrier with fewer bytes. Two workgroups fit on an SM if
their rings leave room (3 stages of 64 keys at head dim 128): one multiplies while the other waits
for its reductions.

Edges. Scores behind the last key are masked. Values there are set to zero in shared memory, since
they may be NaN.

A cache of fp8 under 16-bit queries is widened on its way to the products: a block is read from its
slot into registers, which releases the slot, converted, and stored to a tile of Q's dtype. K and V
have such a tile each. The scale of K is multiplied into that of the scores, and the scale of V into
the last division.

Splits. A split without keys writes a logarithm of -inf, and zeros. The kernel that combines splits
may start once all workgroups have what they read (`combine`).

Not here: pages of fewer than 8 rows, queries in fp8, scales of blocks, left padding: `basic` has
them.

What limits it. Memory: an H200 reads caches of 537 MB and more at 0.94 to 1.10 of a large copy's
rate; small caches lose the time of launches and first loads. Measurements:
docs/notes/attention-gluon_decode.md.
"""

from tilewright.ops.attention.kernels.gluon_rows import (
    ROWS,
    clear,
    lines_of,
    load_rows,
    part_of,
    write_rows,
)
from tilewright.ops.attention.kernels.gluon_scores import LN2, base2, changed, weights_of
from tilewright.ops.attention.kernels.gluon_tiles import ONE_WARP
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gdc_launch_dependents,
    gl,
    jit,
    mbarrier,
    thread_barrier,
    tma_load,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import barriers, turned
from tilewright.ops.device.lengths import bounded

PRODUCER_REGISTERS = gl.constexpr(40)
WIDE_PRODUCER_REGISTERS = gl.constexpr(72)
"""With sums of 256 columns in the consumer, which has what is left."""
LINE = gl.constexpr(128)
"""Bytes of a box's rows at most."""
LOOKED_UP = gl.constexpr(32)
"""Entries of a page table that are read at once, one by each lane."""


Blocks = bundle("Blocks", "source tiles full empty")
"""Blocks of K or of V in shared memory, with their barriers, and the descriptor of where they come
from."""

Work = bundle(
    "Work",
    "q o lse partial_o partial_lse k_scale v_scale q_strides o_strides scale_strides"
    " q_tile keys values k_wide v_wide"
    " q_offsets kv_offsets q_used kv_used page_table page_list page_starts pages page_entries heads"
    " kv_heads group q_len kv_len total_q total_kv rows new_kv splits split_len left right"
    " bottom_right softcap scale"
    " TILE_KV HEAD_DIM_V MASK PAGE LINES SPLIT STAGES LSE SOFTCAP PACKEDQ PACKEDKV USEDQ"
    " USEDKV PAGETABLE PAGELIST APPEND SCALED",
)
"""What the warps of a workgroup have in common."""


@jit
def _entries(w, part, step):
    """The pages of LOOKED_UP boxes from block `step` on; 0 behind the last key."""
    at = step * w.TILE_KV + w.LINES * gl.arange(0, LOOKED_UP, ONE_WARP)
    return bounded(gl.load(part.listed + at // w.PAGE, mask=at < part.n_kv, other=0), w.pages - 1)


@jit
def _ask(w, part, blocks, stage, entries, first, step):
    """Ask for one block of K or V. The pages of its boxes are entries `first`…"""
    DIM: gl.constexpr = blocks.tiles.shape[2]
    BOXES: gl.constexpr = w.TILE_KV // w.LINES
    BYTES: gl.constexpr = blocks.tiles.dtype.primitive_bitwidth // 8
    WIDTH: gl.constexpr = min(LINE // BYTES, DIM)
    tile = blocks.tiles.index(stage)
    bar = blocks.full.index(stage)
    rows = part.n_kv - step * w.TILE_KV
    for count in gl.static_range(1, BOXES + 1):
        whole = rows > (count - 1) * w.LINES
        if count < BOXES:
            whole = whole & (rows <= count * w.LINES)
        mbarrier.expect(bar, count * w.LINES * DIM * BYTES, pred=whole)
    for box in gl.static_range(BOXES):
        if rows > box * w.LINES:
            row = step * w.TILE_KV + box * w.LINES
            outer = 0 if w.PACKEDKV else part.b
            if w.PAGE > 0:
                which = gl.arange(0, LOOKED_UP, ONE_WARP) == first + box
                outer = gl.sum(gl.where(which, entries, 0), 0)
                row = row % w.PAGE
            for c in gl.static_range(0, DIM, WIDTH):
                piece = tile.slice(box * w.LINES, w.LINES).slice(c, WIDTH, 1)
                tma_load(blocks.source, (outer, part.g, part.kv_begin + row, c), bar, piece)


@jit
def _fill(blocks, w):
    """A producer: asks for blocks of K, or of V."""
    part = part_of(w)
    BOXES: gl.constexpr = w.TILE_KV // w.LINES
    STEPS: gl.constexpr = LOOKED_UP // BOXES
    ahead = 0
    if w.PAGE > 0:
        ahead = _entries(w, part, part.begin)
    entries = ahead
    stage = 0
    phase = 1  # an unused slot counts as released
    for group_begin in range(part.begin, part.end, STEPS):
        if w.PAGE > 0:
            entries = ahead
            ahead = _entries(w, part, group_begin + STEPS)
        for step in range(group_begin, gl.minimum(group_begin + STEPS, part.end)):
            mbarrier.wait(blocks.empty.index(stage), phase)
            _ask(w, part, blocks, stage, entries, (step - group_begin) * BOXES, step)
            stage, phase = turned(stage, phase, w.STAGES)


@jit
def _widened(tile, wide, empty, rows, CUT: gl.constexpr):
    """Convert a block of fp8 for the product, and release it. CUT: its rows from `rows` on are
    zero."""
    ACROSS: gl.constexpr = min(32, tile.shape[1] // 16)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    value = tile.load(LAYOUT).to(wide.dtype)
    mbarrier.arrive(empty, count=1)
    if CUT:
        j = gl.arange(0, tile.shape[0], gl.SliceLayout(1, LAYOUT))
        value = gl.where(gl.expand_dims(j < rows, 1), value, gl.zeros_like(value))
    wide.store(value)
    fence_async_shared()
    thread_barrier()


@jit
def _step(
    w, zero, acc, most, total, stage, phase, col, n_kv, lowest, last, scale, MASKED: gl.constexpr
):  # fmt: skip
    """One block of keys. MASKED: some rows do not see all of it."""
    OF_S: gl.constexpr = zero.type.layout
    OF_O: gl.constexpr = acc.type.layout
    DTYPE: gl.constexpr = w.q_tile.dtype
    OF_P: gl.constexpr = gl.DotOperandLayout(0, OF_O, 2)
    WIDENED: gl.constexpr = w.keys.tiles.dtype != DTYPE
    mbarrier.wait(w.keys.full.index(stage), phase)
    k_tile = w.keys.tiles.index(stage)
    if WIDENED:
        _widened(k_tile, w.k_wide, w.keys.empty.index(stage), 0, False)
        k_tile = w.k_wide
    s = warpgroup_mma(w.q_tile, k_tile.permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    if not WIDENED:
        mbarrier.arrive(w.keys.empty.index(stage), count=1)
    if w.SOFTCAP:
        s = changed(s, 0, 0, 0, scale, w.softcap, 0.0, True, False)
    if MASKED:
        j = col + gl.arange(0, w.TILE_KV, gl.SliceLayout(0, OF_S))
        seen = gl.expand_dims(j, 0) <= gl.expand_dims(last, 1)
        if w.MASK == "window":
            seen = seen & (gl.expand_dims(j, 0) >= gl.expand_dims(lowest, 1))
        s = gl.where(seen, s, float("-inf"))
    p, most, total, again = weights_of(s, most, total, base2(scale), w.SOFTCAP, MASKED)
    weights = gl.convert_layout(p.to(DTYPE), OF_P, assert_trivial=True)
    again = gl.convert_layout(again, gl.SliceLayout(1, OF_O), assert_trivial=True)
    acc = acc * gl.expand_dims(again, 1)
    mbarrier.wait(w.values.full.index(stage), phase)
    v_tile = w.values.tiles.index(stage)
    if WIDENED:
        _widened(v_tile, w.v_wide, w.values.empty.index(stage), n_kv - col, MASKED)
        v_tile = w.v_wide
    elif MASKED:  # noqa: SIM102 - only the first is known when compiling
        if col + w.TILE_KV > n_kv:
            clear(v_tile, n_kv - col)
            fence_async_shared()
            thread_barrier()
    acc = warpgroup_mma(weights, v_tile, acc, is_async=True)
    acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
    if not WIDENED:
        mbarrier.arrive(w.values.empty.index(stage), count=1)
    stage, phase = turned(stage, phase, w.STAGES)
    return acc, most, total, stage, phase


@jit
def _attend(w):
    """The consumer: the rows of this workgroup's tile."""
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.TILE_KV, 16])
    OF_O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.HEAD_DIM_V, 16])
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, OF_S)
    part = part_of(w)
    n_kv = part.n_kv
    q_b = 0 if w.PACKEDQ else part.b
    q = w.q + (q_b * w.q_strides[0] + (part.g * w.group).to(gl.int64) * w.q_strides[2])
    load_rows(w, part, q, 0, w.q_tile)
    fence_async_shared()
    thread_barrier()

    r = part.tile * ROWS + gl.arange(0, ROWS, OF_ROWS)
    shift = w.bottom_right * (n_kv - part.n_q)
    lowest = r // w.group + shift - w.left
    last = gl.full((ROWS,), 0, gl.int32, OF_ROWS) + n_kv - 1
    whole = n_kv
    if w.MASK != "none":
        last = gl.minimum(last, r // w.group + shift + w.right)
        whole = gl.minimum(whole, part.tile * ROWS // w.group + shift + w.right + 1)
    # All rows see the blocks before this one whole; under a window, all blocks have a mask.
    whole = gl.maximum(gl.minimum(gl.maximum(whole, 0) // w.TILE_KV, part.end), part.begin)
    if w.MASK == "window":
        whole = part.begin
    scale = w.scale
    if w.SCALED:
        strides = w.scale_strides
        scale = scale * gl.load(w.k_scale + part.b * strides[0] + part.g * strides[1])
    zero = gl.zeros((ROWS, w.TILE_KV), gl.float32, OF_S)
    acc = gl.zeros((ROWS, w.HEAD_DIM_V), gl.float32, OF_O)
    most = gl.full((ROWS,), float("-inf"), gl.float32, OF_ROWS)
    total = gl.zeros((ROWS,), gl.float32, OF_ROWS)
    stage = 0
    phase = 0
    if w.MASK != "window":
        for step in range(part.begin, whole):
            acc, most, total, stage, phase = _step(
                w, zero, acc, most, total, stage, phase, step * w.TILE_KV, n_kv, lowest, last,
                scale, False,
            )  # fmt: skip
    for step in range(whole, part.end):
        acc, most, total, stage, phase = _step(
            w, zero, acc, most, total, stage, phase, step * w.TILE_KV, n_kv, lowest, last, scale,
            True,
        )  # fmt: skip

    if w.SPLIT:
        gdc_launch_dependents()  # all that this workgroup reads has come
    if w.SPLIT or w.LSE:
        line = lines_of(w, part, r)
        log = (most + gl.log2(total)) * LN2
        if w.SPLIT:
            at = gl.to_tensor(part.split).to(gl.int64) * w.rows + line
            gl.store(w.partial_lse + at, log, mask=r // w.group < part.n_q)
        else:
            gl.store(w.lse + line, log, mask=r // w.group < part.n_q)
    share = 1.0 / gl.where(total == 0.0, 1.0, total)
    if w.SCALED:
        share = share * gl.load(w.v_scale + part.b * strides[0] + part.g * strides[1])
    share = gl.convert_layout(share, gl.SliceLayout(1, OF_O), assert_trivial=True)
    write_rows(w, part, acc * gl.expand_dims(share, 1), 0)


@jit
def _tiles(DTYPE: gl.constexpr, COUNT: gl.constexpr, LINES: gl.constexpr, DIM: gl.constexpr):
    """Shared memory for COUNT tiles."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([LINES, DIM], DTYPE)
    return gl.allocate_shared_memory(DTYPE, [COUNT, LINES, DIM], LAYOUT)


@jit
def attention_gluon_decode(
    q, k, v, o, lse, partial_o, partial_lse, q_offsets, kv_offsets, q_used, kv_used, page_table,
    page_list, page_starts, k_scale, v_scale, q_strides, o_strides, kv_scale_strides, heads,
    kv_heads, group, q_len, kv_len, total_q, total_kv, rows, pages, page_entries, new_kv, splits,
    split_len, left, right, bottom_right, softcap, scale,
    TILE_KV: gl.constexpr, HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, MASK: gl.constexpr,
    PAGE: gl.constexpr, SPLIT: gl.constexpr, STAGES: gl.constexpr, LSE: gl.constexpr,
    SOFTCAP: gl.constexpr, PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDQ: gl.constexpr,
    USEDKV: gl.constexpr, PAGETABLE: gl.constexpr, PAGELIST: gl.constexpr, TSCALE: gl.constexpr,
    HSCALE: gl.constexpr, APPEND: gl.constexpr, LINES: gl.constexpr,
):  # fmt: skip
    """O of 64 rows (see `gluon_rows`). There is a workgroup for each tile of rows, split, head of
    keys and sequence.

    k, v: descriptors, (page or sequence, head, row, element), of boxes of LINES rows.
    """
    DTYPE: gl.constexpr = q.dtype.element_ty
    q_tile = _tiles(DTYPE, 1, ROWS, HEAD_DIM).index(0)
    k_tiles = _tiles(k.dtype, STAGES, TILE_KV, HEAD_DIM)
    v_tiles = _tiles(v.dtype, STAGES, TILE_KV, HEAD_DIM_V)
    k_wide = q_tile
    v_wide = q_tile
    if k.dtype != DTYPE:
        k_wide = _tiles(DTYPE, 1, TILE_KV, HEAD_DIM).index(0)
        v_wide = _tiles(DTYPE, 1, TILE_KV, HEAD_DIM_V).index(0)
    k_full, k_empty = barriers(STAGES, 1)
    v_full, v_empty = barriers(STAGES, 1)
    fence_async_shared()  # the copy engine sees the barriers too
    keys = Blocks(k, k_tiles, k_full, k_empty)
    values = Blocks(v, v_tiles, v_full, v_empty)
    w = Work(
        q, o, lse, partial_o, partial_lse, k_scale, v_scale, q_strides, o_strides,
        kv_scale_strides, q_tile, keys, values, k_wide, v_wide,
        q_offsets, kv_offsets, q_used, kv_used, page_table, page_list, page_starts, pages,
        page_entries, heads, kv_heads, group, q_len, kv_len, total_q, total_kv, rows, new_kv,
        splits, split_len, left, right, bottom_right, softcap, scale,
        TILE_KV, HEAD_DIM_V, MASK, PAGE, LINES, SPLIT, STAGES, LSE, SOFTCAP, PACKEDQ, PACKEDKV,
        USEDQ, USEDKV, PAGETABLE, PAGELIST, APPEND, TSCALE or HSCALE,
    )  # fmt: skip
    REGISTERS: gl.constexpr = WIDE_PRODUCER_REGISTERS if HEAD_DIM_V > 128 else PRODUCER_REGISTERS
    gl.warp_specialize(
        [(_attend, (w,)), (_fill, (keys, w)), (_fill, (values, w))],
        [1, 1],
        [REGISTERS, REGISTERS],
    )
