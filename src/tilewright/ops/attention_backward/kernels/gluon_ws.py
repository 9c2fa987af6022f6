"""dK, dV and what is added to dQ, in one pass over the scores, in Gluon: one warp loads, one adds,
the others multiply (sm_90).

Idea. The order of FlashAttention-3 (Shah et al., NeurIPS 2024, arXiv:2407.08608). A workgroup owns
128 keys, 64 for each of two groups of four warps, and walks the queries that see them in blocks of
STEP, for one after the other of the heads that share the keys. In a step a group computes, for its
keys,

    Sᵀ  = K·Qᵀ            dPᵀ = V·dOᵀ - delta
    Pᵀ  = exp(Sᵀ - LSE)   dSᵀ = Pᵀ∘dPᵀ
    dV += Pᵀ·dO           dK += dSᵀ·Q          dQ += dS·K

Sums of dK and dV stay in registers, and so do Pᵀ and dSᵀ as left operands of their products: the
layout of wgmma's sums is that of its left operand. dSᵀ also goes to shared memory, because dQ sums
over the keys of both groups. Each group then multiplies a half of the block of dQ: of its queries,
or, at head dim 128, of its columns. Products of S and dP are added to minus LSE (divided by the
scale) and to minus delta.

Data movement. K and V are loaded once; a warp requests the copies of Q, dO and their rows' terms
(see `around`) into a ring of two slots. Another warp has the copy engine add the block of dQ to
fp32 sums in memory, in whatever order workgroups come to it, or in turns (ORDERED). A tile of these
sums lies in memory as threads hold it; `around` makes dQ of them. dK and dV leave straight from
registers.

Bias. A step's tile of it, [queries, keys], has one slot, and is read transposed, by ldmatrix, while
dP is multiplied. Then the two numbers that `logarithms` has for a row are taken from the scores.
For the bias's own gradient (DBIAS) dS lies in shared memory as [queries, keys], and the warp that
adds dQ has the copy engine store it; `bias_sums` adds up what shares a bias.

Order. Tiles that most queries see start first; if they add in turns, last, but for the last heads
(see `turn_of`). Of sequences that have lengths of their own, the longest start first (see `order`).

Edges. The copy engine fills rows outside an array with zeros. Rows of the next sequence, or of
nobody, are set to zero in shared memory, because a weight of zero times NaN is NaN. Terms of rows
behind a sequence give weights of zero, so queries need no mask of their own.

What limits it. Shared memory, by its code, and registers, which decide the tiles. An H200 reaches
443 to 622 TFLOP/s at head dim 128 without a mask. More measurements:
docs/notes/attention_backward-gluon_ws.md.
"""

from tilewright.ops.attention.kernels.gluon_scores import slope_of
from tilewright.ops.attention.kernels.gluon_tiles import clear
from tilewright.ops.attention.kernels.lengths import keys_of, queries_of
from tilewright.ops.attention_backward.kernels.gluon_steps import (
    nothing,
    spread,
    step_at,
    steps_of,
    tile_of,
    walked,
    weights_of,
)
from tilewright.ops.attention_backward.kernels.gluon_sums import (
    add_blocks,
    by_threads,
    meet,
    write_rows,
)
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    tma_load,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import barriers, tiles_of, turned

ROWS = gl.constexpr(64)
"""Keys of a warp group."""

STAGES = gl.constexpr(2)
"""Slots for blocks of queries, and for gradients of their scores."""

REGISTERS = gl.constexpr(240)
OTHERS_REGISTERS = gl.constexpr(24)


Work = bundle(
    "Work",
    "dk dv slopes dk_strides dv_strides k_full v_full group slopes_stride accumulate softcap"
    " scale"
    " q_tiles k_tiles v_tiles do_tiles log_tiles delta_tiles ds_tiles dq_tiles q_full do_full"
    " empty dq_full dq_empty"
    " bias bias_batch bias_heads bias_tiles bias_full bias_empty row_tops top_tiles"
    " b g j0 q_begin terms_begin kv_begin begin end n_q n_kv room shift low high bounds"
    " q k v do log_sums deltas heads padded dq_sums turns ascending ds"
    " HEAD_DIM HEAD_DIM_V STEP MASK SOFTCAP ALIBI PACKEDQ PACKEDKV USEDQ USEDKV GROUPS BY_ROWS"
    " BIAS DBIAS ORDERED"
    " lists BLOCKS",
)
"""What the warps of a workgroup have in common."""


@jit
def _fill(w):
    """The producer: loads K and V, then Q, dO, LSE, delta and the bias step by step."""
    q_b = 0 if w.PACKEDQ else w.b
    kv_b = 0 if w.PACKEDKV else w.b
    # Rows' terms come with Q, or with the bias.
    TERMS: gl.constexpr = 0 if w.BIAS else w.STEP * 4
    stage = 0
    phase = 1  # an unused slot counts as released
    if w.begin < w.end:
        mbarrier.expect(w.k_full.index(0), w.GROUPS * w.k.block_type.nbytes)
        for r in gl.static_range(w.GROUPS):
            row = w.kv_begin + w.j0 + r * ROWS
            tma_load(w.k, (kv_b, w.g, row, 0), w.k_full.index(0), w.k_tiles.index(r))
        mbarrier.expect(w.v_full.index(0), w.GROUPS * w.v.block_type.nbytes)
        for r in gl.static_range(w.GROUPS):
            row = w.kv_begin + w.j0 + r * ROWS
            tma_load(w.v, (kv_b, w.g, row, 0), w.v_full.index(0), w.v_tiles.index(r))
    for n in range(w.group):
        h = w.g * w.group + n
        line = (q_b * w.heads + h) * w.padded + w.terms_begin
        begin, _, _, end, way = walked(w, n, w.GROUPS * ROWS)
        for x in range(begin, end):
            i0 = step_at(w, x, way) * w.STEP
            at = (q_b, h, w.q_begin + i0, 0)
            mbarrier.wait(w.empty.index(stage), phase)
            mbarrier.expect(w.q_full.index(stage), w.q.block_type.nbytes + TERMS)
            tma_load(w.q, at, w.q_full.index(stage), w.q_tiles.index(stage))
            if not w.BIAS:
                tma_load(w.log_sums, (line + i0,), w.q_full.index(stage), w.log_tiles.index(stage))
            mbarrier.expect(w.do_full.index(stage), w.do.block_type.nbytes + w.STEP * 4)
            tma_load(w.do, at, w.do_full.index(stage), w.do_tiles.index(stage))
            tma_load(w.deltas, (line + i0,), w.do_full.index(stage), w.delta_tiles.index(stage))
            if w.BIAS:
                mbarrier.wait(w.bias_empty.index(0), stage ^ 1)
                SIZE: gl.constexpr = w.GROUPS * w.bias.block_type.nbytes + 2 * w.STEP * 4
                mbarrier.expect(w.bias_full.index(0), SIZE)
                tma_load(w.log_sums, (line + i0,), w.bias_full.index(0), w.log_tiles.index(0))
                tma_load(w.row_tops, (line + i0,), w.bias_full.index(0), w.top_tiles.index(0))
                bias_b = gl.minimum(w.b, w.bias_batch - 1)
                bias_h = gl.minimum(h, w.bias_heads - 1)
                for r in gl.static_range(w.GROUPS):
                    at = (bias_b, bias_h, i0, w.j0 + r * ROWS)
                    tma_load(w.bias, at, w.bias_full.index(0), w.bias_tiles.index(r))
            stage, phase = turned(stage, phase, STAGES)


@jit
def _step(
    w, dk_sums, dv_sums, zero, zero_q, stage, phase, t, j0, slope, MASKED: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """The sums after block `t` of queries."""
    i0 = t * w.STEP
    DTYPE: gl.constexpr = w.q_tiles.dtype
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, zero.type.layout)
    OF_DK: gl.constexpr = gl.DotOperandLayout(0, dk_sums.type.layout, 2)
    OF_DV: gl.constexpr = gl.DotOperandLayout(0, dv_sums.type.layout, 2)
    none = nothing(i0)
    q_tile = w.q_tiles.index(stage)
    do_tile = w.do_tiles.index(stage)
    mbarrier.wait(w.q_full.index(stage), phase)
    if w.PACKEDQ or w.USEDQ:  # noqa: SIM102 - only the first is known when compiling
        if i0 + w.STEP > w.n_q:
            clear(q_tile, w.n_q - i0)
    log_tile = w.log_tiles.index(0 if w.BIAS else stage)
    start = zero
    if not (w.SOFTCAP or w.BIAS):
        start = spread(log_tile.load(OF_COLUMNS), ROWS)
    s = warpgroup_mma(
        w.k_tiles.index(none + GROUP),
        q_tile.permute((1, 0)),
        start,
        use_acc=not (w.SOFTCAP or w.BIAS),
        is_async=True,
    )
    mbarrier.wait(w.do_full.index(stage), phase)
    if w.PACKEDQ or w.USEDQ:  # noqa: SIM102 - only the first is known when compiling
        if i0 + w.STEP > w.n_q:
            clear(do_tile, w.n_q - i0)
    start = spread(w.delta_tiles.index(stage).load(OF_COLUMNS), ROWS)
    dp = warpgroup_mma(w.v_tiles.index(none + GROUP), do_tile.permute((1, 0)), start, is_async=True)
    bias_tile = None
    top_tile = None
    if w.BIAS:
        top_tile = w.top_tiles.index(0)
        bias_tile = w.bias_tiles.index(GROUP)
        mbarrier.wait(w.bias_full.index(0), stage)
        if w.PACKEDQ or w.USEDQ:  # noqa: SIM102 - only the first is known when compiling
            if i0 + w.STEP > w.n_q:
                clear(bias_tile, w.n_q - i0)
    s = warpgroup_mma_wait(1, deps=(s,))
    p, through = weights_of(
        s, log_tile, i0, j0, w.n_kv, w.shift, w.bounds, w.scale, w.softcap, slope,
        w.MASK, MASKED, w.SOFTCAP, w.ALIBI, bias_tile, top_tile,
    )  # fmt: skip
    weights = gl.convert_layout(p.to(DTYPE), OF_DV, assert_trivial=True)
    if w.BIAS:
        mbarrier.arrive(w.bias_empty.index(0), count=1)
    # Started before the wait for dP: else ptxas moves the exponentials behind that.
    dv_sums = warpgroup_mma(weights, do_tile, dv_sums, is_async=True)
    dp = warpgroup_mma_wait(1, deps=(dp,))
    ds = (through * dp).to(DTYPE)
    # In one of two buffers: when all groups meet, all have multiplied what was in the other.
    ds_tile = w.ds_tiles.index(stage * w.GROUPS + GROUP)
    if w.DBIAS:
        ds_tile.permute((1, 0)).store(ds)
    else:
        ds_tile.store(ds)
    fence_async_shared()
    gradients = gl.convert_layout(ds, OF_DK, assert_trivial=True)
    meet(i0)
    dq = zero_q
    for r in gl.static_range(w.GROUPS):
        left = w.ds_tiles.index(stage * w.GROUPS + r)
        if not w.DBIAS:
            left = left.permute((1, 0))
        part = w.k_tiles.index(none + r)
        if w.BY_ROWS:
            left = left.slice(GROUP * ROWS, ROWS)
        else:
            part = part.slice(GROUP * ROWS, ROWS, dim=1)
        dq = warpgroup_mma(left, part, dq, use_acc=r > 0, is_async=True)
    dv_sums, weights = warpgroup_mma_wait(w.GROUPS, deps=(dv_sums, weights))
    dk_sums = warpgroup_mma(gradients, q_tile, dk_sums, is_async=True)
    dq = warpgroup_mma_wait(1, deps=(dq,))
    mbarrier.wait(w.dq_empty.index(0), stage ^ 1)  # nothing is being added at first
    w.dq_tiles.index(GROUP).store(by_threads(dq))
    fence_async_shared()
    mbarrier.arrive(w.dq_full.index(0), count=1)
    dk_sums, gradients = warpgroup_mma_wait(0, deps=(dk_sums, gradients))
    mbarrier.arrive(w.empty.index(stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
    return dk_sums, dv_sums, stage, phase


@jit
def _multiply(w, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: its 64 keys of the tile."""
    K_COLUMNS: gl.constexpr = w.k_tiles.shape[2]
    V_COLUMNS: gl.constexpr = w.v_tiles.shape[2]
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.STEP, 16])
    OF_DK: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K_COLUMNS, 16])
    OF_DV: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_COLUMNS, 16])
    OF_DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    zero = gl.zeros((ROWS, w.STEP), gl.float32, OF_S)
    zero_q = gl.zeros((ROWS, ROWS), gl.float32, OF_DQ)
    dk_sums = gl.zeros((ROWS, K_COLUMNS), gl.float32, OF_DK)
    dv_sums = gl.zeros((ROWS, V_COLUMNS), gl.float32, OF_DV)
    j0 = w.j0 + GROUP * ROWS
    if w.begin < w.end:
        mbarrier.wait(w.k_full.index(0), 0)
        mbarrier.wait(w.v_full.index(0), 0)
        if w.PACKEDKV or w.USEDKV:  # noqa: SIM102 - only the first is known when compiling
            if j0 + ROWS > w.n_kv:
                clear(w.k_tiles.index(GROUP), w.n_kv - j0)
                clear(w.v_tiles.index(GROUP), w.n_kv - j0)
    stage = 0
    phase = 0
    for n in range(w.group):
        slope = 0.0
        if w.ALIBI:
            slope = slope_of(gl.load(w.slopes + w.b * w.slopes_stride + w.g * w.group + n))
        begin, low, high, end, way = walked(w, n, w.GROUPS * ROWS)
        for x in range(begin, low):
            t = step_at(w, x, way)
            dk_sums, dv_sums, stage, phase = _step(
                w, dk_sums, dv_sums, zero, zero_q, stage, phase, t, j0, slope, True, GROUP
            )
        for x in range(low, high):
            t = step_at(w, x, way)
            dk_sums, dv_sums, stage, phase = _step(
                w, dk_sums, dv_sums, zero, zero_q, stage, phase, t, j0, slope, False, GROUP
            )
        if w.MASK == "window" and not w.BLOCKS:
            for t in range(high, end):
                dk_sums, dv_sums, stage, phase = _step(
                    w, dk_sums, dv_sums, zero, zero_q, stage, phase, t, j0, slope, True, GROUP
                )
    write_rows(w, w.dk, w.dk_strides, dk_sums, w.scale, j0, 0, w.HEAD_DIM)
    write_rows(w, w.dv, w.dv_strides, dv_sums, 1.0, j0, 0, w.HEAD_DIM_V)


@jit
def gradients_gluon_ws(
    q, k, v, do, log_sums, row_tops, deltas, dq_sums, turns, order, dk, dv, slopes, bias, ds,
    q_offsets, kv_offsets, q_used, kv_used, dk_strides, dv_strides, bias_batch, bias_heads, batch,
    heads, kv_heads, group, q_len, kv_len, total_q, total_kv, padded, kv_section, slopes_stride,
    accumulate, query_list, query_counts, block_size, block_heads, left, right, first, bottom_right,
    softcap, scale,
    TILE: gl.constexpr, STEP: gl.constexpr, HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr,
    MASK: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr,
    DBIAS: gl.constexpr, BLOCKS: gl.constexpr,
    PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDQ: gl.constexpr, USEDKV: gl.constexpr,
    PAD: gl.constexpr, ORDERED: gl.constexpr, BY_LENGTH: gl.constexpr,
):  # fmt: skip
    """dK and dV of a tile of keys; what it adds to dQ."""
    GROUPS: gl.constexpr = TILE // ROWS
    BY_ROWS: gl.constexpr = STEP // ROWS == GROUPS
    b, g, j0, ascending = tile_of(
        order, batch, kv_heads, kv_len, total_kv, kv_offsets, kv_section,
        TILE, PACKEDKV, BY_LENGTH, ORDERED, MASK,
    )  # fmt: skip
    if BIAS and not BY_LENGTH:  # noqa: SIM102 - only the first is known when compiling
        if bias_batch == 1:  # its sequences are neighbours: what one reads of it, L2 has for all
            line = b * kv_heads + g
            b = line % batch
            g = line // batch
    q_begin, n_q = queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    kv_begin, n_kv = keys_of(b, kv_len, total_kv, 0, kv_offsets, kv_used, PACKEDKV, USEDKV, False)
    _, room = keys_of(b, kv_len, total_kv, 0, kv_offsets, kv_used, PACKEDKV, False, False)
    terms_begin = 0
    if PACKEDQ:
        terms_begin = (q_begin // PAD + b) * PAD
    shift = bottom_right * (n_kv - n_q)
    begin, low, high, end = steps_of(
        j0, n_q, n_kv, shift, left, right, first, TILE, STEP, MASK
    )  # fmt: skip
    lists = None
    if BLOCKS:  # K and V are loaded for the keys that there are, and steps are those of lists
        begin = 0
        end = gl.where(j0 < n_kv, 1, 0)
        lists = (query_list, query_counts, q_len, kv_len, block_size, block_heads)
    q_tiles = tiles_of(q, STAGES)
    do_tiles = tiles_of(do, STAGES)
    k_tiles = tiles_of(k, GROUPS)
    v_tiles = tiles_of(v, GROUPS)
    if DBIAS:
        ds_tiles = tiles_of(ds, 2 * GROUPS)
    else:
        OF_DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, STEP], q.dtype)
        ds_tiles = gl.allocate_shared_memory(q.dtype, [2 * GROUPS, ROWS, STEP], OF_DS)
    dq_tiles = tiles_of(dq_sums, GROUPS)
    LOGS: gl.constexpr = 1 if BIAS else STAGES  # under a bias they come with it
    log_tiles = gl.allocate_shared_memory(gl.float32, [LOGS, STEP], log_sums.layout)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, STEP], log_sums.layout)
    k_full, _ = barriers(1, 1)
    v_full, _ = barriers(1, 1)
    q_full, empty = barriers(STAGES, GROUPS)
    do_full, _ = barriers(STAGES, GROUPS)
    dq_empty, dq_full = barriers(1, GROUPS)
    bias_tiles = None
    bias_full = None
    bias_empty = None
    top_tiles = None
    if BIAS:
        bias_tiles = tiles_of(bias, GROUPS)
        bias_full, bias_empty = barriers(1, GROUPS)
        top_tiles = gl.allocate_shared_memory(gl.float32, [1, STEP], log_sums.layout)
    fence_async_shared()  # the copy engine sees the barriers too
    bounds = (left, right, first, bottom_right)
    w = Work(
        dk, dv, slopes, dk_strides, dv_strides, k_full, v_full, group, slopes_stride, accumulate,
        softcap, scale, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles, ds_tiles,
        dq_tiles, q_full, do_full, empty, dq_full, dq_empty, bias, bias_batch, bias_heads,
        bias_tiles, bias_full, bias_empty, row_tops, top_tiles, b, g, j0, q_begin, terms_begin,
        kv_begin, begin, end, n_q, n_kv, room, shift, low, high, bounds, q, k, v, do, log_sums,
        deltas, heads, padded, dq_sums, turns, ascending, ds, HEAD_DIM, HEAD_DIM_V, STEP, MASK,
        SOFTCAP, ALIBI, PACKEDQ, PACKEDKV, USEDQ, USEDKV, GROUPS, BY_ROWS, BIAS, DBIAS, ORDERED,
        lists, BLOCKS,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_multiply, (w, 0)),
            (_multiply, (w, 1)),
            (_fill, (w,)),
            (add_blocks, (w, TILE, STEP, GROUPS)),
        ],
        [4, 1, 1],
        [REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS],
    )
