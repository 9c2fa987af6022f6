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
    place_of,
    span_of,
    write_rows,
)
from tilewright.ops.attention.kernels.gluon_scores import LN2, base2
from tilewright.ops.attention.kernels.gluon_tiles import ring, turned
from tilewright.ops.attention.kernels.lengths import keys_of, page_at, pages_of, queries_of
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


@jit
def _page(step, half, b, n_kv, listed, pages, PAGE: gl.constexpr):
    """(batch or page, row there) of half a block; of the last one that has keys, if it has none.
    listed: where the sequence's pages begin. pages: that the pool has."""
    row = step * KEYS + half * HALF
    outer = b
    if PAGE > 0:
        row = gl.maximum(gl.minimum(row, (n_kv - 1) // HALF * HALF), 0)
        outer = page_at(listed, row // PAGE, pages)
        row = row % PAGE
    return outer, row


@jit
def _fill(
    data,
    SPLIT: gl.constexpr, PAGE: gl.constexpr, PAGETABLE: gl.constexpr, PAGELIST: gl.constexpr,
    PACKEDQ: gl.constexpr, USEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDKV: gl.constexpr,
    APPEND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The producer: asks for the blocks."""
    (
        k, v, main, rest, full, empty, q_offsets, kv_offsets, q_used, kv_used, page_table,
        page_list, page_starts, pages, page_entries, group, q_len, kv_len, total_q, total_kv,
        new_kv, splits, split_len,
    ) = data  # fmt: skip
    tile, _, split, b = place_of(q_len, group, 1, splits, SPLIT)
    _, n_q = queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    listed, room = pages_of(
        b, page_table, page_list, page_starts, page_entries, kv_len, PAGE, PAGETABLE, PAGELIST
    )  # fmt: skip
    start, n_kv = keys_of(
        b, room, total_kv, new_kv, kv_offsets, kv_used, PACKEDKV, USEDKV, APPEND
    )  # fmt: skip
    begin, end = span_of(tile, split, n_q, 0, n_kv, group, splits, split_len, KEYS, SPLIT)
    BYTES: gl.constexpr = 2 * (2 * v.block_type.nbytes + k.block_type.nbytes)
    stage = 0
    phase = 1  # an unused slot counts as released
    if begin < end:
        outer_0, row_0 = _page(begin, 0, b, n_kv, listed, pages, PAGE)
        outer_1, row_1 = _page(begin, 1, b, n_kv, listed, pages, PAGE)
        if PACKEDKV:
            outer_0 = 0
            outer_1 = 0
        for step in range(begin, end):
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, BYTES)
            tma_load(v, (outer_0, start + row_0, 0), bar, main.index(stage * 4))
            tma_load(v, (outer_0, start + row_0, COLUMNS), bar, main.index(stage * 4 + 1))
            tma_load(k, (outer_0, start + row_0, 2 * COLUMNS), bar, rest.index(stage * 2))
            tma_load(v, (outer_1, start + row_1, 0), bar, main.index(stage * 4 + 2))
            tma_load(v, (outer_1, start + row_1, COLUMNS), bar, main.index(stage * 4 + 3))
            tma_load(k, (outer_1, start + row_1, 2 * COLUMNS), bar, rest.index(stage * 2 + 1))
            # Behind the last block the pages of the last keys are looked up again.
            outer_0, row_0 = _page(step + 1, 0, b, n_kv, listed, pages, PAGE)
            outer_1, row_1 = _page(step + 1, 1, b, n_kv, listed, pages, PAGE)
            if PACKEDKV:
                outer_0 = 0
                outer_1 = 0
            stage, phase = turned(stage, phase, STAGES)
    if SPLIT:
        gdc_launch_dependents()


@jit
def _step(
    q_main, q_rest, main, rest, shared, full, empty, zero, acc, most, total, stage, phase, col,
    n_kv, last, factor, GROUP: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One block of keys. MASKED: some rows do not see all of it."""
    news, other_news, weights, other_weights = shared
    OF_S: gl.constexpr = zero.type.layout
    OF_O: gl.constexpr = acc.type.layout
    OF_ROWS: gl.constexpr = most.type.layout
    mbarrier.wait(full.index(stage), phase)
    at = stage * 4 + GROUP * 2
    s = warpgroup_mma(
        q_main.index(0), main.index(at).permute((1, 0)), zero, use_acc=False, is_async=True
    )
    s = warpgroup_mma(q_main.index(1), main.index(at + 1).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(q_rest, rest.index(stage * 2 + GROUP).permute((1, 0)), s, is_async=True)
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
    own_values = main.index(stage * 4 + GROUP + 2 * GROUP)
    other_values = main.index(stage * 4 + GROUP + 2 * (1 - GROUP))
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
    mbarrier.arrive(empty.index(stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
    return acc, new, total, stage, phase


@jit
def _attend(
    data, shared, bounds,
    GROUP: gl.constexpr, MASK: gl.constexpr, SPLIT: gl.constexpr, LSE: gl.constexpr,
    PACKEDQ: gl.constexpr, USEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDKV: gl.constexpr,
    PAGE: gl.constexpr, PAGETABLE: gl.constexpr, PAGELIST: gl.constexpr, APPEND: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: 32 keys of each block, and 256 columns of O."""
    (
        q, o, lse, partial_o, partial_lse, q_strides, o_strides, q_main, q_rest, main, rest,
        full, empty, q_offsets, kv_offsets, q_used, kv_used, page_starts, page_entries, heads,
        q_len, kv_len, total_q, total_kv, rows, new_kv, splits, split_len, scale,
    ) = data  # fmt: skip
    right, bottom_right = bounds
    # Each group writes to allocations of its own. So the compiler sees that no group reads what it
    # writes, and adds no barriers.
    news, other_news, _, _ = shared
    REST: gl.constexpr = q_rest.shape[1]
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    OF_O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, OF_S)
    tile, _, split, b = place_of(q_len, heads, 1, splits, SPLIT)
    q_begin, n_q = queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    _, room = pages_of(
        b, page_starts, page_starts, page_starts, page_entries, kv_len, PAGE, PAGETABLE, PAGELIST
    )  # fmt: skip
    _, n_kv = keys_of(b, room, total_kv, new_kv, kv_offsets, kv_used, PACKEDKV, USEDKV, APPEND)
    begin, end = span_of(tile, split, n_q, 0, n_kv, heads, splits, split_len, KEYS, SPLIT)
    q_b = 0 if PACKEDQ else b

    FIRST: gl.constexpr = GROUP * COLUMNS
    q += q_b * q_strides[0]
    load_rows(q, q_strides, q_begin, n_q, tile, heads, FIRST, q_main.index(GROUP), COLUMNS)
    if GROUP == 0:
        load_rows(q, q_strides, q_begin, n_q, tile, heads, 2 * COLUMNS, q_rest, REST)
    fence_async_shared()
    _meet(tile)
    thread_barrier()  # the compiler does not see `_meet`, and would add one to each step

    r = tile * ROWS + gl.arange(0, ROWS, OF_ROWS)
    i = r // heads
    last = gl.full((ROWS,), 0, gl.int32, OF_ROWS) + n_kv - 1
    if MASK != "none":
        last = gl.minimum(last, i + bottom_right * (n_kv - n_q) + right)
    factor = base2(scale)
    zero = gl.zeros((ROWS, HALF), gl.float32, OF_S)
    acc = gl.zeros((ROWS, COLUMNS), gl.float32, OF_O)
    most = gl.full((ROWS,), float("-inf"), gl.float32, OF_ROWS)
    total = gl.zeros((ROWS,), gl.float32, OF_ROWS)
    stage = 0
    phase = 0
    # All rows see the blocks before this one whole.
    whole = n_kv
    if MASK != "none":
        whole = gl.minimum(whole, tile * ROWS // heads + bottom_right * (n_kv - n_q) + right + 1)
    whole = gl.maximum(gl.minimum(gl.maximum(whole, 0) // KEYS, end), begin)
    for step in range(begin, whole):
        acc, most, total, stage, phase = _step(
            q_main, q_rest, main, rest, shared, full, empty, zero, acc, most, total, stage, phase,
            step * KEYS, n_kv, last, factor, GROUP, False, STAGES,
        )  # fmt: skip
    for step in range(whole, end):
        acc, most, total, stage, phase = _step(
            q_main, q_rest, main, rest, shared, full, empty, zero, acc, most, total, stage, phase,
            step * KEYS, n_kv, last, factor, GROUP, True, STAGES,
        )  # fmt: skip

    news.store(total)
    _meet(tile)
    total += other_news.load(OF_ROWS)
    share = 1.0 / gl.where(total == 0.0, 1.0, total)
    share = gl.convert_layout(share, gl.SliceLayout(1, OF_O), assert_trivial=True)
    if GROUP == 0:
        line = lines_of(r, b, 0, q_begin, heads, heads, q_len, total_q, PACKEDQ)
        log = (most + gl.log2(total)) * LN2
        if SPLIT:
            at = gl.to_tensor(split).to(gl.int64) * rows + line
            gl.store(partial_lse + at, log, mask=i < n_q)
        elif LSE:
            gl.store(lse + line, log, mask=i < n_q)
    write_rows(
        acc * gl.expand_dims(share, 1), o, partial_o, o_strides, q_b, b, 0, split, q_begin, n_q,
        tile, heads, heads, q_len, total_q, rows, FIRST, 2 * COLUMNS, SPLIT, PACKEDQ,
    )  # fmt: skip


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
    full, empty = ring(STAGES, 2)
    fence_async_shared()  # the copy engine sees the barriers too

    attending = (
        q, o, lse, partial_o, partial_lse, q_strides, o_strides, q_main, q_rest, main, rest,
        full, empty, q_offsets, kv_offsets, q_used, kv_used, page_starts, page_entries, heads,
        q_len, kv_len, total_q, total_kv, rows, new_kv, splits, split_len, scale,
    )  # fmt: skip
    filling = (
        k, v, main, rest, full, empty, q_offsets, kv_offsets, q_used, kv_used, page_table,
        page_list, page_starts, pages, page_entries, heads, q_len, kv_len, total_q, total_kv,
        new_kv, splits, split_len,
    )  # fmt: skip
    bounds = (right, bottom_right)
    gl.warp_specialize(
        [
            (_attend, (
                attending, (news_0, news_1, weights_0, weights_1), bounds, 0, MASK, SPLIT, LSE,
                PACKEDQ, USEDQ, PACKEDKV, USEDKV, PAGE, PAGETABLE, PAGELIST, APPEND, STAGES,
            )),
            (_attend, (
                attending, (news_1, news_0, weights_1, weights_0), bounds, 1, MASK, SPLIT, LSE,
                PACKEDQ, USEDQ, PACKEDKV, USEDKV, PAGE, PAGETABLE, PAGELIST, APPEND, STAGES,
            )),
            (_fill, (
                filling, SPLIT, PAGE, PAGETABLE, PAGELIST, PACKEDQ, USEDQ, PACKEDKV, USEDKV, APPEND,
                STAGES,
            )),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip
