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
from tilewright.ops.attention.kernels.gluon_tiles import (
    clear,
    ring,
    turned,
)
from tilewright.ops.attention.kernels.lengths import keys_of, queries_of
from tilewright.ops.attention_backward.kernels.gluon_steps import (
    nothing,
    spread,
    steps_of,
    tile_of,
    weights_of,
)
from tilewright.ops.attention_backward.kernels.gluon_sums import (
    add_blocks,
    by_threads,
    meet,
    tiles_like,
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

ROWS = gl.constexpr(64)
"""Keys of a warp group."""

STAGES = gl.constexpr(2)
"""Slots for blocks of queries, and for gradients of their scores."""

REGISTERS = gl.constexpr(240)
OTHERS_REGISTERS = gl.constexpr(24)


@jit
def _fill(
    data, biases, steps, STEP: gl.constexpr, GROUPS: gl.constexpr, BIAS: gl.constexpr,
    PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr,
):  # fmt: skip
    """The producer: loads K and V, then Q, dO, LSE, delta and the bias step by step."""
    (
        q, k, v, do, log_sums, deltas, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles,
        k_full, v_full, q_full, do_full, empty, heads, group, padded,
    ) = data  # fmt: skip
    b, g, j0, q_begin, terms_begin, kv_begin, begin, end = steps
    q_b = 0 if PACKEDQ else b
    kv_b = 0 if PACKEDKV else b
    TERMS: gl.constexpr = 0 if BIAS else STEP * 4  # of rows, which come with Q, or with the bias
    stage = 0
    phase = 1  # an unused slot counts as released
    if begin < end:
        mbarrier.expect(k_full.index(0), GROUPS * k.block_type.nbytes)
        for r in gl.static_range(GROUPS):
            row = kv_begin + j0 + r * ROWS
            tma_load(k, (kv_b, g, row, 0), k_full.index(0), k_tiles.index(r))
        mbarrier.expect(v_full.index(0), GROUPS * v.block_type.nbytes)
        for r in gl.static_range(GROUPS):
            row = kv_begin + j0 + r * ROWS
            tma_load(v, (kv_b, g, row, 0), v_full.index(0), v_tiles.index(r))
    for n in range(group):
        h = g * group + n
        line = (q_b * heads + h) * padded + terms_begin
        for t in range(begin, end):
            i0 = t * STEP
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(q_full.index(stage), q.block_type.nbytes + TERMS)
            tma_load(q, (q_b, h, q_begin + i0, 0), q_full.index(stage), q_tiles.index(stage))
            if not BIAS:
                tma_load(log_sums, (line + i0,), q_full.index(stage), log_tiles.index(stage))
            mbarrier.expect(do_full.index(stage), do.block_type.nbytes + STEP * 4)
            tma_load(do, (q_b, h, q_begin + i0, 0), do_full.index(stage), do_tiles.index(stage))
            tma_load(deltas, (line + i0,), do_full.index(stage), delta_tiles.index(stage))
            if BIAS:
                (
                    bias, bias_batch, bias_heads, bias_tiles, bias_full, bias_empty, row_tops,
                    top_tiles,
                ) = biases  # fmt: skip
                mbarrier.wait(bias_empty.index(0), stage ^ 1)
                mbarrier.expect(bias_full.index(0), GROUPS * bias.block_type.nbytes + 2 * STEP * 4)
                tma_load(log_sums, (line + i0,), bias_full.index(0), log_tiles.index(0))
                tma_load(row_tops, (line + i0,), bias_full.index(0), top_tiles.index(0))
                bias_b = gl.minimum(b, bias_batch - 1)
                bias_h = gl.minimum(h, bias_heads - 1)
                for r in gl.static_range(GROUPS):
                    at = (bias_b, bias_h, i0, j0 + r * ROWS)
                    tma_load(bias, at, bias_full.index(0), bias_tiles.index(r))
            stage, phase = turned(stage, phase, STAGES)


@jit
def _step(
    tiles, biases, dk_sums, dv_sums, zero, zero_q, stage, phase, i0, j0, n_q, n_kv, shift, bounds,
    scale, softcap, slope,
    MASK: gl.constexpr, MASKED: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr,
    RAGGED: gl.constexpr, GROUPS: gl.constexpr, GROUP: gl.constexpr,
    BY_ROWS: gl.constexpr, BIAS: gl.constexpr, DBIAS: gl.constexpr,
):  # fmt: skip
    """The sums after one block of queries."""
    (
        q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles, ds_tiles, dq_tiles,
        q_full, do_full, empty, dq_full, dq_empty,
    ) = tiles  # fmt: skip
    DTYPE: gl.constexpr = q_tiles.dtype
    STEP: gl.constexpr = zero.shape[1]
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, zero.type.layout)
    OF_DK: gl.constexpr = gl.DotOperandLayout(0, dk_sums.type.layout, 2)
    OF_DV: gl.constexpr = gl.DotOperandLayout(0, dv_sums.type.layout, 2)
    none = nothing(i0)
    q_tile = q_tiles.index(stage)
    do_tile = do_tiles.index(stage)
    mbarrier.wait(q_full.index(stage), phase)
    if RAGGED:  # noqa: SIM102 - only the first is known when compiling
        if i0 + STEP > n_q:
            clear(q_tile, n_q - i0)
    log_tile = log_tiles.index(0 if BIAS else stage)
    start = zero
    if not (SOFTCAP or BIAS):
        start = spread(log_tile.load(OF_COLUMNS), ROWS)
    s = warpgroup_mma(
        k_tiles.index(none + GROUP),
        q_tile.permute((1, 0)),
        start,
        use_acc=not (SOFTCAP or BIAS),
        is_async=True,
    )
    mbarrier.wait(do_full.index(stage), phase)
    if RAGGED:  # noqa: SIM102 - only the first is known when compiling
        if i0 + STEP > n_q:
            clear(do_tile, n_q - i0)
    start = spread(delta_tiles.index(stage).load(OF_COLUMNS), ROWS)
    dp = warpgroup_mma(v_tiles.index(none + GROUP), do_tile.permute((1, 0)), start, is_async=True)
    bias_tile = None
    top_tile = None
    if BIAS:
        _, _, _, bias_tiles, bias_full, bias_empty, _, top_tiles = biases
        top_tile = top_tiles.index(0)
        bias_tile = bias_tiles.index(GROUP)
        mbarrier.wait(bias_full.index(0), stage)
        if RAGGED:  # noqa: SIM102 - only the first is known when compiling
            if i0 + STEP > n_q:
                clear(bias_tile, n_q - i0)
    s = warpgroup_mma_wait(1, deps=(s,))
    p, through = weights_of(
        s, log_tile, i0, j0, n_kv, shift, bounds, scale, softcap, slope,
        MASK, MASKED, SOFTCAP, ALIBI, bias_tile, top_tile,
    )  # fmt: skip
    weights = gl.convert_layout(p.to(DTYPE), OF_DV, assert_trivial=True)
    if BIAS:
        mbarrier.arrive(bias_empty.index(0), count=1)
    # Started before the wait for dP: else ptxas moves the exponentials behind that.
    dv_sums = warpgroup_mma(weights, do_tile, dv_sums, is_async=True)
    dp = warpgroup_mma_wait(1, deps=(dp,))
    ds = (through * dp).to(DTYPE)
    # In one of two buffers: when all groups meet, all have multiplied what was in the other.
    ds_tile = ds_tiles.index(stage * GROUPS + GROUP)
    if DBIAS:
        ds_tile.permute((1, 0)).store(ds)
    else:
        ds_tile.store(ds)
    fence_async_shared()
    gradients = gl.convert_layout(ds, OF_DK, assert_trivial=True)
    meet(i0)
    dq = zero_q
    for r in gl.static_range(GROUPS):
        left = ds_tiles.index(stage * GROUPS + r)
        if not DBIAS:
            left = left.permute((1, 0))
        part = k_tiles.index(none + r)
        if BY_ROWS:
            left = left.slice(GROUP * ROWS, ROWS)
        else:
            part = part.slice(GROUP * ROWS, ROWS, dim=1)
        dq = warpgroup_mma(left, part, dq, use_acc=r > 0, is_async=True)
    dv_sums, weights = warpgroup_mma_wait(GROUPS, deps=(dv_sums, weights))
    dk_sums = warpgroup_mma(gradients, q_tile, dk_sums, is_async=True)
    dq = warpgroup_mma_wait(1, deps=(dq,))
    mbarrier.wait(dq_empty.index(0), stage ^ 1)  # nothing is being added at first
    dq_tiles.index(GROUP).store(by_threads(dq))
    fence_async_shared()
    mbarrier.arrive(dq_full.index(0), count=1)
    dk_sums, gradients = warpgroup_mma_wait(0, deps=(dk_sums, gradients))
    mbarrier.arrive(empty.index(stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
    return dk_sums, dv_sums, stage, phase


@jit
def _multiply(
    data, tiles, biases, steps, sizes, bounds,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, STEP: gl.constexpr,
    MASK: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, PACKEDQ: gl.constexpr,
    PACKEDKV: gl.constexpr, USEDQ: gl.constexpr, USEDKV: gl.constexpr, GROUPS: gl.constexpr,
    GROUP: gl.constexpr, BY_ROWS: gl.constexpr, BIAS: gl.constexpr, DBIAS: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: its 64 keys of the tile."""
    (
        dk, dv, slopes, dk_strides, dv_strides, k_full, v_full, group, slopes_stride, accumulate,
        softcap, scale,
    ) = data  # fmt: skip
    _, k_tiles, v_tiles, _, _, _, _, _, _, _, _, _, _ = tiles
    b, g, tile_begin, _, _, kv_begin, begin, end = steps
    n_q, n_kv, room, shift, low, high = sizes
    RAGGED: gl.constexpr = PACKEDQ or USEDQ
    K_COLUMNS: gl.constexpr = k_tiles.shape[2]
    V_COLUMNS: gl.constexpr = v_tiles.shape[2]
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    OF_DK: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K_COLUMNS, 16])
    OF_DV: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_COLUMNS, 16])
    OF_DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    zero = gl.zeros((ROWS, STEP), gl.float32, OF_S)
    zero_q = gl.zeros((ROWS, ROWS), gl.float32, OF_DQ)
    dk_sums = gl.zeros((ROWS, K_COLUMNS), gl.float32, OF_DK)
    dv_sums = gl.zeros((ROWS, V_COLUMNS), gl.float32, OF_DV)
    j0 = tile_begin + GROUP * ROWS
    if begin < end:
        mbarrier.wait(k_full.index(0), 0)
        mbarrier.wait(v_full.index(0), 0)
        if PACKEDKV or USEDKV:  # noqa: SIM102 - only the first is known when compiling
            if j0 + ROWS > n_kv:
                clear(k_tiles.index(GROUP), n_kv - j0)
                clear(v_tiles.index(GROUP), n_kv - j0)
    stage = 0
    phase = 0
    for n in range(group):
        slope = 0.0
        if ALIBI:
            slope = slope_of(gl.load(slopes + b * slopes_stride + g * group + n))
        for t in range(begin, low):
            dk_sums, dv_sums, stage, phase = _step(
                tiles, biases, dk_sums, dv_sums, zero, zero_q, stage, phase, t * STEP, j0, n_q,
                n_kv, shift, bounds, scale, softcap, slope,
                MASK, True, SOFTCAP, ALIBI, RAGGED, GROUPS, GROUP, BY_ROWS, BIAS,
                DBIAS,
            )  # fmt: skip
        for t in range(low, high):
            dk_sums, dv_sums, stage, phase = _step(
                tiles, biases, dk_sums, dv_sums, zero, zero_q, stage, phase, t * STEP, j0, n_q,
                n_kv, shift, bounds, scale, softcap, slope,
                MASK, False, SOFTCAP, ALIBI, RAGGED, GROUPS, GROUP, BY_ROWS, BIAS,
                DBIAS,
            )  # fmt: skip
        if MASK == "window":
            for t in range(high, end):
                dk_sums, dv_sums, stage, phase = _step(
                    tiles, biases, dk_sums, dv_sums, zero, zero_q, stage, phase, t * STEP, j0, n_q,
                    n_kv, shift, bounds, scale, softcap, slope,
                    MASK, True, SOFTCAP, ALIBI, RAGGED, GROUPS, GROUP, BY_ROWS, BIAS,
                    DBIAS,
                )  # fmt: skip
    kv_b = 0 if PACKEDKV else b
    write_rows(
        dk, dk_strides, dk_sums, scale, kv_b, g, kv_begin, j0, n_kv, room, accumulate, 0, HEAD_DIM,
    )  # fmt: skip
    write_rows(
        dv, dv_strides, dv_sums, 1.0, kv_b, g, kv_begin, j0, n_kv, room, accumulate, 0, HEAD_DIM_V,
    )  # fmt: skip


@jit
def gradients_gluon_ws(
    q, k, v, do, log_sums, row_tops, deltas, dq_sums, turns, order, dk, dv, slopes, bias, ds,
    q_offsets, kv_offsets, q_used, kv_used, dk_strides, dv_strides, bias_batch, bias_heads, batch,
    heads, kv_heads, group, q_len, kv_len, total_q, total_kv, padded, kv_section, slopes_stride,
    accumulate, left, right, first, bottom_right, softcap, scale,
    TILE: gl.constexpr, STEP: gl.constexpr, HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr,
    MASK: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, BIAS: gl.constexpr,
    DBIAS: gl.constexpr,
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
    q_tiles = tiles_like(q, STAGES)
    do_tiles = tiles_like(do, STAGES)
    k_tiles = tiles_like(k, GROUPS)
    v_tiles = tiles_like(v, GROUPS)
    stored = ()
    if DBIAS:
        ds_tiles = tiles_like(ds, 2 * GROUPS)
        stored = (ds, ds_tiles)
    else:
        OF_DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, STEP], q.dtype)
        ds_tiles = gl.allocate_shared_memory(q.dtype, [2 * GROUPS, ROWS, STEP], OF_DS)
    dq_tiles = tiles_like(dq_sums, GROUPS)
    LOGS: gl.constexpr = 1 if BIAS else STAGES  # under a bias they come with it
    log_tiles = gl.allocate_shared_memory(gl.float32, [LOGS, STEP], log_sums.layout)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, STEP], log_sums.layout)
    k_full, _ = ring(1, 1)
    v_full, _ = ring(1, 1)
    q_full, empty = ring(STAGES, GROUPS)
    do_full, _ = ring(STAGES, GROUPS)
    dq_empty, dq_full = ring(1, GROUPS)
    biases = ()
    if BIAS:
        bias_tiles = tiles_like(bias, GROUPS)
        bias_full, bias_empty = ring(1, GROUPS)
        top_tiles = gl.allocate_shared_memory(gl.float32, [1, STEP], log_sums.layout)
        biases = (
            bias, bias_batch, bias_heads, bias_tiles, bias_full, bias_empty, row_tops, top_tiles,
        )  # fmt: skip
    fence_async_shared()  # the copy engine sees the barriers too
    bounds = (left, right, first, bottom_right)
    steps = (b, g, j0, q_begin, terms_begin, kv_begin, begin, end)
    sizes = (n_q, n_kv, room, shift, low, high)
    own = (
        dk, dv, slopes, dk_strides, dv_strides, k_full, v_full, group, slopes_stride, accumulate,
        softcap, scale,
    )  # fmt: skip
    tiles = (
        q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles, ds_tiles, dq_tiles,
        q_full, do_full, empty, dq_full, dq_empty,
    )  # fmt: skip
    filled = (
        q, k, v, do, log_sums, deltas, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles,
        k_full, v_full, q_full, do_full, empty, heads, group, padded,
    )  # fmt: skip
    added = (dq_sums, turns, dq_tiles, dq_full, dq_empty, heads, group, padded, ascending)
    # Constants are written out for each group: in a tuple Triton 3.6 turns them into tensors.
    gl.warp_specialize(
        [
            (_multiply, (
                own, tiles, biases, steps, sizes, bounds, HEAD_DIM, HEAD_DIM_V, STEP, MASK, SOFTCAP,
                ALIBI, PACKEDQ, PACKEDKV, USEDQ, USEDKV, GROUPS, 0, BY_ROWS, BIAS, DBIAS,
            )),
            (_multiply, (
                own, tiles, biases, steps, sizes, bounds, HEAD_DIM, HEAD_DIM_V, STEP, MASK, SOFTCAP,
                ALIBI, PACKEDQ, PACKEDKV, USEDQ, USEDKV, GROUPS, 1, BY_ROWS, BIAS, DBIAS,
            )),
            (_fill, (filled, biases, steps, STEP, GROUPS, BIAS, PACKEDQ, PACKEDKV)),
            (add_blocks, (
                added, stored, steps, sizes, bounds, TILE, STEP, MASK, GROUPS, GROUPS, PACKEDQ,
                ORDERED, DBIAS,
            )),
        ],
        [4, 1, 1],
        [REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS],
    )  # fmt: skip
