"""Latent attention's decode, in Gluon, with the warps' roles written out (sm_90).

Idea. All query heads share one row of 576 elements for each token: it is the key, and its first 512
elements are the value. So the heads of a few queries are the rows of one tile of 64, and each
element that comes from memory is multiplied 64 times as key and 64 times as value. O has 64 × 512
sums, more than the registers of one warp group; two groups hold 256 columns each. This is the
division of FlashMLA (DeepSeek, github.com/deepseek-ai/FlashMLA).

A step is a block of 64 keys. Each group multiplies Q by 32 of them, so no product is done twice.
Then the groups tell each other the rows' maxima, and their halves of the weights, through shared
memory; both keep the same maxima. Each multiplies all 64 weights by its own columns of the values:
first its own half, which it has in registers, and behind a barrier the other's. So that barrier
passes under products. Sums are multiplied only where a maximum grew (`gluon_guess.rescaled`). Two
barriers a step join the 256 threads: behind the maxima, and behind the weights. One copy of each is
enough: a group passes the next step's first barrier only when its products with the weights have
ended. The groups' copies are allocations of their own: of one, the compiler would add barriers
between what a group writes and what it reads.

Data movement. A third partition, one warp, asks the copy engine for blocks. A block lies in shared
memory as 32 keys × 256 elements, four times, and 32 keys × 64, twice: the pieces that one product
reads are tiles of their own. With Q (72 KB) there is room for two blocks: while one is multiplied
the next arrives. A block is released when both groups have multiplied by its values. Behind the
last request the kernel that combines splits may start (`combine`).

Edges. The last block is cut by the number of keys. Scores behind it are masked, and values behind
it are set to zero in shared memory, since they may be NaN. A half block that lies wholly behind the
last key is not asked for from the page table, whose entry there is garbage: the last half with keys
is copied again. A split without keys writes a logarithm of -inf, and zeros.

What limits it. Products, maxima and weights follow each other within a step. An H200 reaches 446 to
515 TFLOP/s with 128 heads and 128 sequences, and 3.2 to 3.8 TB/s with 64 heads. More measurements,
and what is to be tried: docs/notes/attention-gluon_latent.md.
"""

from tilewright.ops.attention.kernels.gluon_guess import rescaled
from tilewright.ops.attention.kernels.gluon_pieces import pieces
from tilewright.ops.attention.kernels.gluon_rows import (
    ROWS,
    clear,
    lines_of,
    load_rows,
    part_of,
    write_rows,
)
from tilewright.ops.attention.kernels.gluon_scores import LN2, base2
from tilewright.ops.attention.kernels.lengths import page_at
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

KEYS = gl.constexpr(64)
HALF = gl.constexpr(32)
"""Keys that one group multiplies Q by, and that one copy moves."""
COLUMNS = gl.constexpr(256)
"""Columns of O that one group holds."""
CONSUMER_REGISTERS = gl.constexpr(240)
PRODUCER_REGISTERS = gl.constexpr(32)


@jit
def _meet(token):
    """Wait until both groups are here. What was written to shared memory before is seen after."""
    return gl.inline_asm_elementwise(
        "bar.sync 8, 256; mov.b32 $0, $1;", "=r,r", [token], gl.int32, is_pure=False, pack=1
    )


Work = bundle(
    "Work",
    "k v q o lse partial_o partial_lse q_strides o_strides q_main q_rest main rest full empty"
    " q_offsets kv_offsets q_used kv_used page_table page_list page_starts pages page_entries heads"
    " kv_heads group q_len kv_len total_q total_kv rows new_kv splits split_len scale"
    " news_1 news_0 weights_1 weights_0 left right bottom_right"
    " TILE_KV HEAD_DIM_V MASK PAGE SPLIT STAGES LSE PACKEDQ PACKEDKV USEDQ USEDKV PAGETABLE"
    " PAGELIST APPEND",
)
"""What the warps of a workgroup have in common."""


@jit
def _page(w, part, step, half):
    """(batch or page, row there) of half a block; of the last one that has keys, if it has none."""
    row = step * KEYS + half * HALF
    outer = part.b
    if w.PAGE > 0:
        row = gl.maximum(gl.minimum(row, (part.n_kv - 1) // HALF * HALF), 0)
        outer = page_at(part.listed, row // w.PAGE, w.pages)
        row = row % w.PAGE
    if w.PACKEDKV:
        outer = 0
    return outer, row


@jit
def _fill(w):
    """The producer: asks for the blocks."""
    part = part_of(w)
    start = part.kv_begin
    BYTES: gl.constexpr = 2 * (2 * w.v.block_type.nbytes + w.k.block_type.nbytes)
    stage = 0
    phase = 1  # an unused slot counts as released
    if part.begin < part.end:
        outer_0, row_0 = _page(w, part, part.begin, 0)
        outer_1, row_1 = _page(w, part, part.begin, 1)
        for step in range(part.begin, part.end):
            mbarrier.wait(w.empty.index(stage), phase)
            bar = w.full.index(stage)
            mbarrier.expect(bar, BYTES)
            tma_load(w.v, (outer_0, start + row_0, 0), bar, w.main.index(stage * 4))
            tma_load(w.v, (outer_0, start + row_0, COLUMNS), bar, w.main.index(stage * 4 + 1))
            tma_load(w.k, (outer_0, start + row_0, 2 * COLUMNS), bar, w.rest.index(stage * 2))
            tma_load(w.v, (outer_1, start + row_1, 0), bar, w.main.index(stage * 4 + 2))
            tma_load(w.v, (outer_1, start + row_1, COLUMNS), bar, w.main.index(stage * 4 + 3))
            tma_load(w.k, (outer_1, start + row_1, 2 * COLUMNS), bar, w.rest.index(stage * 2 + 1))
            # Behind the last block the pages of the last keys are looked up again.
            outer_0, row_0 = _page(w, part, step + 1, 0)
            outer_1, row_1 = _page(w, part, step + 1, 1)
            stage, phase = turned(stage, phase, w.STAGES)
    if w.SPLIT:
        gdc_launch_dependents()


@jit
def _step(
    w, shared, zero, acc, most, total, stage, phase, col, n_kv, last, factor, GROUP: gl.constexpr,
    MASKED: gl.constexpr,
):  # fmt: skip
    """One block of keys. MASKED: some rows do not see all of it."""
    news, other_news, weights, other_weights = shared
    OF_S: gl.constexpr = zero.type.layout
    OF_O: gl.constexpr = acc.type.layout
    OF_ROWS: gl.constexpr = most.type.layout
    mbarrier.wait(w.full.index(stage), phase)
    at = stage * 4 + GROUP * 2
    s = warpgroup_mma(
        w.q_main.index(0), w.main.index(at).permute((1, 0)), zero, use_acc=False, is_async=True
    )
    s = warpgroup_mma(w.q_main.index(1), w.main.index(at + 1).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(w.q_rest, w.rest.index(stage * 2 + GROUP).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    if MASKED:
        j = col + GROUP * HALF + gl.arange(0, HALF, gl.SliceLayout(0, OF_S))
        seen = gl.expand_dims(j, 0) <= gl.expand_dims(last, 1)
        s = gl.where(seen, s, float("-inf"))
    mine = gl.max(s, 1) * factor
    news.store(mine)
    _meet(stage)

    new = gl.maximum(gl.maximum(most, mine), other_news.load(OF_ROWS))
    base = new
    if MASKED:
        base = gl.where(new == float("-inf"), 0.0, new)
    below = gl.full_like(s, 0.0) - gl.expand_dims(base, 1)
    p = gl.exp2(gl.fma(s, gl.full_like(s, factor), below))
    again = gl.exp2(most - base)
    total = total * again + gl.sum(p, 1)
    acc = rescaled(acc, pieces(gl.full_like(s, 0.0) + gl.expand_dims(again, 1))[0])
    p = p.to(weights.dtype)
    weights.store(p)
    own = gl.convert_layout(p, gl.DotOperandLayout(0, OF_O, 2), assert_trivial=True)
    own_values = w.main.index(stage * 4 + GROUP + 2 * GROUP)
    other_values = w.main.index(stage * 4 + GROUP + 2 * (1 - GROUP))
    if MASKED:  # noqa: SIM102 - only the first is known when compiling
        if col + KEYS > n_kv:
            clear(own_values, n_kv - col - GROUP * HALF)
            clear(other_values, n_kv - col - (1 - GROUP) * HALF)
    fence_async_shared()
    if MASKED:
        _meet(stage)  # the group's own values are whole
        acc = warpgroup_mma(own, own_values, acc, is_async=True)
    else:
        acc = warpgroup_mma(own, own_values, acc, is_async=True)
        _meet(stage)
    acc = warpgroup_mma(other_weights, other_values, acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc, own))[0]
    mbarrier.arrive(w.empty.index(stage), count=1)
    stage, phase = turned(stage, phase, w.STAGES)
    return acc, new, total, stage, phase


@jit
def _attend(w, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: 32 keys of each block, and 256 columns of O."""
    # Each group writes to allocations of its own. So the compiler sees that no group reads what it
    # writes, and adds no barriers.
    if GROUP == 0:
        shared = (w.news_0, w.news_1, w.weights_0, w.weights_1)
    else:
        shared = (w.news_1, w.news_0, w.weights_1, w.weights_0)
    news, other_news, _, _ = shared
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    OF_O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, OF_S)
    part = part_of(w)
    n_q = part.n_q
    n_kv = part.n_kv
    q_b = 0 if w.PACKEDQ else part.b

    FIRST: gl.constexpr = GROUP * COLUMNS
    q = w.q + q_b * w.q_strides[0]
    load_rows(w, part, q, FIRST, w.q_main.index(GROUP))
    if GROUP == 0:
        load_rows(w, part, q, 2 * COLUMNS, w.q_rest)
    fence_async_shared()
    _meet(part.tile)
    thread_barrier()  # the compiler does not see `_meet`, and would add one to each step

    r = part.tile * ROWS + gl.arange(0, ROWS, OF_ROWS)
    i = r // w.heads
    last = gl.full((ROWS,), 0, gl.int32, OF_ROWS) + n_kv - 1
    if w.MASK != "none":
        last = gl.minimum(last, i + w.bottom_right * (n_kv - n_q) + w.right)
    factor = base2(w.scale)
    zero = gl.zeros((ROWS, HALF), gl.float32, OF_S)
    acc = gl.zeros((ROWS, COLUMNS), gl.float32, OF_O)
    most = gl.full((ROWS,), float("-inf"), gl.float32, OF_ROWS)
    total = gl.zeros((ROWS,), gl.float32, OF_ROWS)
    stage = 0
    phase = 0
    # All rows see the blocks before this one whole.
    whole = n_kv
    if w.MASK != "none":
        first = part.tile * ROWS // w.heads
        whole = gl.minimum(whole, first + w.bottom_right * (n_kv - n_q) + w.right + 1)
    whole = gl.maximum(gl.minimum(gl.maximum(whole, 0) // KEYS, part.end), part.begin)
    for step in range(part.begin, whole):
        acc, most, total, stage, phase = _step(
            w, shared, zero, acc, most, total, stage, phase, step * KEYS, n_kv, last, factor,
            GROUP, False,
        )  # fmt: skip
    for step in range(whole, part.end):
        acc, most, total, stage, phase = _step(
            w, shared, zero, acc, most, total, stage, phase, step * KEYS, n_kv, last, factor,
            GROUP, True,
        )  # fmt: skip

    news.store(total)
    _meet(part.tile)
    total += other_news.load(OF_ROWS)
    share = 1.0 / gl.where(total == 0.0, 1.0, total)
    share = gl.convert_layout(share, gl.SliceLayout(1, OF_O), assert_trivial=True)
    if GROUP == 0:
        line = lines_of(w, part, r)
        log = (most + gl.log2(total)) * LN2
        if w.SPLIT:
            at = gl.to_tensor(part.split).to(gl.int64) * w.rows + line
            gl.store(w.partial_lse + at, log, mask=i < n_q)
        elif w.LSE:
            gl.store(w.lse + line, log, mask=i < n_q)
    write_rows(w, part, acc * gl.expand_dims(share, 1), FIRST)


@jit
def attention_gluon_latent(
    q, k, v, o, lse, partial_o, partial_lse, q_offsets, kv_offsets, q_used, kv_used, page_table,
    page_list, page_starts, q_strides, o_strides, heads, q_len, kv_len, total_q, total_kv, rows,
    pages, page_entries, new_kv, splits, split_len, right, bottom_right, scale,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, MASK: gl.constexpr, PAGE: gl.constexpr,
    SPLIT: gl.constexpr, STAGES: gl.constexpr, LSE: gl.constexpr, PACKEDQ: gl.constexpr,
    PACKEDKV: gl.constexpr, USEDQ: gl.constexpr, USEDKV: gl.constexpr, PAGETABLE: gl.constexpr,
    PAGELIST: gl.constexpr, APPEND: gl.constexpr,
):  # fmt: skip
    """O of 64 rows, which are the heads of neighbouring queries. There is a workgroup for
    each tile, split and sequence.

    k, v: descriptors of the same rows, (page or sequence, row, element): v's copies move 32 rows of
        256 elements, k's the elements behind the values.
    """
    REST: gl.constexpr = HEAD_DIM - HEAD_DIM_V
    DTYPE: gl.constexpr = v.dtype
    WIDE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], DTYPE)
    NARROW: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, REST], DTYPE)
    OF_P: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, HALF], DTYPE)
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    q_main = gl.allocate_shared_memory(DTYPE, [2, ROWS, COLUMNS], WIDE)
    q_rest = gl.allocate_shared_memory(DTYPE, [ROWS, REST], NARROW)
    main = gl.allocate_shared_memory(DTYPE, [STAGES * 4, HALF, COLUMNS], WIDE)
    rest = gl.allocate_shared_memory(DTYPE, [STAGES * 2, HALF, REST], NARROW)
    weights_0 = gl.allocate_shared_memory(DTYPE, [ROWS, HALF], OF_P)
    weights_1 = gl.allocate_shared_memory(DTYPE, [ROWS, HALF], OF_P)
    news_0 = gl.allocate_shared_memory(gl.float32, [ROWS], FLAT)
    news_1 = gl.allocate_shared_memory(gl.float32, [ROWS], FLAT)
    full, empty = barriers(STAGES, 2)
    fence_async_shared()  # the copy engine sees the barriers too
    w = Work(
        k, v, q, o, lse, partial_o, partial_lse, q_strides, o_strides, q_main, q_rest, main, rest,
        full, empty, q_offsets, kv_offsets, q_used, kv_used, page_table, page_list, page_starts,
        pages, page_entries, heads, 1, heads, q_len, kv_len, total_q, total_kv, rows, new_kv,
        splits, split_len, scale, news_1, news_0, weights_1, weights_0, 0, right, bottom_right,
        KEYS, HEAD_DIM_V, MASK, PAGE, SPLIT, STAGES, LSE, PACKEDQ, PACKEDKV, USEDQ, USEDKV,
        PAGETABLE, PAGELIST, APPEND,
    )  # fmt: skip
    gl.warp_specialize(
        [(_attend, (w, 0)), (_attend, (w, 1)), (_fill, (w,))],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
