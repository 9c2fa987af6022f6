"""As `gluon_ws`, for head dims up to 256: one group of warps has the weights and dV, the other has
their gradients and dK (sm_90).

Idea. Sums of dK and dV of 64 keys and 256 columns are 128 registers each of a thread of one group
of warps. So a workgroup owns 64 keys, and its two groups have different parts in a step of 64
queries:

    first group                             second group
    Sᵀ = K·Qᵀ, Pᵀ = exp(Sᵀ - LSE) ──Pᵀ──▶   dPᵀ = V·dOᵀ - delta, dSᵀ = Pᵀ∘dPᵀ
    dV += Pᵀ·dO                   ◀──dS──   dK += dSᵀ·Q
    dQ = dS·K, a half of the columns        dQ = dS·K, the other half

Pᵀ and dSᵀ are left operands from registers, and go to the other group through shared memory. The
groups compute equally much, and each has products to do while the other takes exponentials or waits
for what it is sent. dS is of the rounded weights. What is not said here is as in `gluon_ws`.

Data movement. Rows lie in tiles of 64 columns, or of 128 if these fill them. Q has two slots, dO
one, P and dS have one each: a group writes its own only when it has heard of the other's that was
made from the one before. A group hands over its tiles of dQ one behind the other, without waiting
for the other group (`gluon_sums.add_tiles`).

What limits it. Shared memory, by its code. At head dim 256 an H200 reaches 429 to 457 TFLOP/s,
causal 404 to 435. More measurements, and an older form:
docs/notes/attention_backward-gluon_roles.md.
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
    add_products,
    add_tiles,
    ended,
    halves,
    hand_over,
    no_sums,
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
"""Keys of a workgroup, queries of a step, and columns of a tile of dQ."""

GROUPS = gl.constexpr(2)
STAGES = gl.constexpr(2)
REGISTERS = gl.constexpr(240)
OTHERS_REGISTERS = gl.constexpr(24)


@jit
def _fill(data, steps, PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr):
    """The producer: loads K and V, then Q, dO, LSE and delta step by step."""
    (
        q, k, v, do, log_sums, deltas, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles,
        k_full, v_full, q_full, q_empty, do_full, do_empty, heads, group, padded,
    ) = data  # fmt: skip
    K_TILES: gl.constexpr = k_tiles.shape[0]
    V_TILES: gl.constexpr = v_tiles.shape[0]
    K_WIDTH: gl.constexpr = k_tiles.shape[2]
    V_WIDTH: gl.constexpr = v_tiles.shape[2]
    b, g, j0, q_begin, terms_begin, kv_begin, begin, end = steps
    q_b = 0 if PACKEDQ else b
    kv_b = 0 if PACKEDKV else b
    stage = 0
    phase = 1  # an unused slot counts as released
    do_phase = 1
    if begin < end:
        mbarrier.expect(k_full.index(0), K_TILES * k.block_type.nbytes)
        for c in gl.static_range(K_TILES):
            at = (kv_b, g, kv_begin + j0, c * K_WIDTH)
            tma_load(k, at, k_full.index(0), k_tiles.index(c))
        mbarrier.expect(v_full.index(0), V_TILES * v.block_type.nbytes)
        for c in gl.static_range(V_TILES):
            at = (kv_b, g, kv_begin + j0, c * V_WIDTH)
            tma_load(v, at, v_full.index(0), v_tiles.index(c))
    for n in range(group):
        h = g * group + n
        line = (q_b * heads + h) * padded + terms_begin
        for t in range(begin, end):
            i0 = t * ROWS
            full = q_full.index(stage)
            mbarrier.wait(q_empty.index(stage), phase)
            mbarrier.expect(full, K_TILES * q.block_type.nbytes + ROWS * 4)
            for c in gl.static_range(K_TILES):
                at = (q_b, h, q_begin + i0, c * K_WIDTH)
                tma_load(q, at, full, q_tiles.index(stage * K_TILES + c))
            tma_load(log_sums, (line + i0,), full, log_tiles.index(stage))
            mbarrier.wait(do_empty.index(0), do_phase)
            mbarrier.expect(do_full.index(0), V_TILES * do.block_type.nbytes + ROWS * 4)
            for c in gl.static_range(V_TILES):
                at = (q_b, h, q_begin + i0, c * V_WIDTH)
                tma_load(do, at, do_full.index(0), do_tiles.index(c))
            tma_load(deltas, (line + i0,), do_full.index(0), delta_tiles.index(0))
            stage, phase = turned(stage, phase, STAGES)
            do_phase ^= 1


@jit
def _cleared(tiles, first, COUNT: gl.constexpr, rows):
    """COUNT tiles from `first` on, with zeros in place of others' rows."""
    if rows < ROWS:
        for c in gl.static_range(COUNT):
            clear(tiles.index(first + c), rows)


@jit
def _dq_of(ds_tile, k_tiles, zero, none, FIRST: gl.constexpr, COUNT: gl.constexpr):
    """COUNT tiles of dQ of 64 columns, from FIRST on, started: as one product if they lie beside a
    tile of K."""
    PARTS: gl.constexpr = k_tiles.shape[2] // ROWS
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * ROWS, 16])
    left = ds_tile.permute((1, 0))
    found = ()
    if COUNT == PARTS and FIRST % PARTS == 0 and PARTS == 2:
        zero = gl.zeros((ROWS, 2 * ROWS), gl.float32, WIDE)
        part = k_tiles.index(none + FIRST // PARTS)
        found += (warpgroup_mma(left, part, zero, use_acc=False, is_async=True),)
    else:
        for n in gl.static_range(FIRST, FIRST + COUNT):
            part = k_tiles.index(none + n // PARTS).slice(n % PARTS * ROWS, ROWS, dim=1)
            found += (warpgroup_mma(left, part, zero, use_acc=False, is_async=True),)
    return found


@jit
def _hand_over(dq, dq_tiles, dq_full, dq_empty, phase, LATER: gl.constexpr, GROUP: gl.constexpr):
    """Let tiles of dQ be added, one behind the other. LATER: how many products were started after
    them. Returns the next tile's phase."""
    for n in gl.static_range(len(dq)):
        sums = warpgroup_mma_wait(LATER + len(dq) - 1 - n, deps=(dq[n],))
        tiles = (sums,)
        if sums.shape[1] > ROWS:
            tiles = halves(sums)
        for c in gl.static_range(len(tiles)):
            mbarrier.wait(dq_empty.index(GROUP), phase)
            hand_over(tiles[c], dq_tiles, dq_full, GROUP)
            phase ^= 1
    return phase


@jit
def _weigh(
    tiles, sums, zero, stage, phase, turn, dq_phase, i0, j0, n_q, n_kv, shift, bounds, scale,
    softcap, slope,
    MASK: gl.constexpr, MASKED: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr,
    RAGGED: gl.constexpr,
):  # fmt: skip
    """A step of the first group: the sums of dV after one block of queries.

    turn: the phase of what each step uses once. dq_phase: of the tile of dQ that is added."""
    (
        q_tiles, k_tiles, _, do_tiles, log_tiles, _, p_tile, ds_tile, dq_tiles,
        q_full, q_empty, do_full, do_empty, p_full, ds_full, dq_full, dq_empty,
    ) = tiles  # fmt: skip
    K_TILES: gl.constexpr = k_tiles.shape[0]
    V_TILES: gl.constexpr = do_tiles.shape[0]
    COUNT: gl.constexpr = (K_TILES * k_tiles.shape[2] // ROWS + 1) // 2  # tiles of dQ
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, zero.type.layout)
    OF_DV: gl.constexpr = gl.DotOperandLayout(0, sums[0].type.layout, 2)
    none = nothing(i0)
    mbarrier.wait(q_full.index(stage), phase)
    if RAGGED:
        _cleared(q_tiles, stage * K_TILES, K_TILES, n_q - i0)
    log_tile = log_tiles.index(stage)
    s = zero
    if not SOFTCAP:
        s = spread(log_tile.load(OF_COLUMNS), ROWS)
    for c in gl.static_range(K_TILES):
        part = q_tiles.index(stage * K_TILES + c).permute((1, 0))
        more = c > 0 or not SOFTCAP
        s = warpgroup_mma(k_tiles.index(none + c), part, s, use_acc=more, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    p, through = weights_of(
        s, log_tile, i0, j0, n_kv, shift, bounds, scale, softcap, slope,
        MASK, MASKED, SOFTCAP, ALIBI,
    )  # fmt: skip
    mbarrier.arrive(q_empty.index(stage), count=1)
    p_tile.index(0).store(through.to(p_tile.dtype))
    mbarrier.arrive(p_full.index(0), count=1)
    weights = gl.convert_layout(p.to(p_tile.dtype), OF_DV, assert_trivial=True)
    mbarrier.wait(do_full.index(0), turn)
    if RAGGED:
        _cleared(do_tiles, 0, V_TILES, n_q - i0)
    sums = add_products(sums, weights, do_tiles, 0)
    mbarrier.wait(ds_full.index(0), turn)
    dq = _dq_of(ds_tile.index(0), k_tiles, zero, none, 0, COUNT)
    sums, weights = ended(sums, weights, len(dq))
    mbarrier.arrive(do_empty.index(0), count=1)
    dq_phase = _hand_over(dq, dq_tiles, dq_full, dq_empty, dq_phase, 0, 0)
    stage, phase = turned(stage, phase, STAGES)
    return sums, stage, phase, turn ^ 1, dq_phase


@jit
def _differentiate(
    tiles, sums, zero, stage, phase, turn, dq_phase, i0, n_q, RAGGED: gl.constexpr
):  # fmt: skip
    """A step of the second group: the sums of dK after one block of queries."""
    (
        q_tiles, k_tiles, v_tiles, do_tiles, _, delta_tiles, p_tile, ds_tile, dq_tiles,
        q_full, q_empty, do_full, do_empty, p_full, ds_full, dq_full, dq_empty,
    ) = tiles  # fmt: skip
    DTYPE: gl.constexpr = q_tiles.dtype
    K_TILES: gl.constexpr = k_tiles.shape[0]
    V_TILES: gl.constexpr = v_tiles.shape[0]
    PIECES: gl.constexpr = K_TILES * k_tiles.shape[2] // ROWS  # tiles of dQ
    FIRST: gl.constexpr = (PIECES + 1) // 2
    OF_S: gl.constexpr = zero.type.layout
    OF_DK: gl.constexpr = gl.DotOperandLayout(0, sums[0].type.layout, 2)
    none = nothing(i0)
    mbarrier.wait(do_full.index(0), turn)
    if RAGGED:
        _cleared(do_tiles, 0, V_TILES, n_q - i0)
    dp = spread(delta_tiles.index(0).load(gl.SliceLayout(0, OF_S)), ROWS)
    for c in gl.static_range(V_TILES):
        part = do_tiles.index(c).permute((1, 0))
        dp = warpgroup_mma(v_tiles.index(none + c), part, dp, is_async=True)
    mbarrier.wait(q_full.index(stage), phase)
    if RAGGED:
        _cleared(q_tiles, stage * K_TILES, K_TILES, n_q - i0)
    mbarrier.wait(p_full.index(0), turn)
    p = p_tile.index(0).load(OF_S).to(gl.float32)
    dp = warpgroup_mma_wait(0, deps=(dp,))
    ds = (p * dp).to(DTYPE)
    ds_tile.index(0).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_full.index(0), count=1)
    mbarrier.arrive(do_empty.index(0), count=1)
    dq = _dq_of(ds_tile.index(0), k_tiles, zero, none, FIRST, PIECES - FIRST)
    gradients = gl.convert_layout(ds, OF_DK, assert_trivial=True)
    sums = add_products(sums, gradients, q_tiles, stage * K_TILES)
    dq_phase = _hand_over(dq, dq_tiles, dq_full, dq_empty, dq_phase, K_TILES, 1)
    sums, gradients = ended(sums, gradients, 0)
    mbarrier.arrive(q_empty.index(stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
    return sums, stage, phase, turn ^ 1, dq_phase


@jit
def _first_group(
    data, tiles, steps, sizes, bounds, HEAD_DIM_V: gl.constexpr, MASK: gl.constexpr,
    SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr,
    USEDQ: gl.constexpr, USEDKV: gl.constexpr,
):  # fmt: skip
    """A consumer: weights and dV."""
    dv, slopes, dv_strides, k_full, group, slopes_stride, accumulate, softcap, scale = data
    _, k_tiles, _, do_tiles, _, _, _, _, _, _, _, _, _, _, _, _, _ = tiles
    b, g, j0, _, _, kv_begin, begin, end = steps
    n_q, n_kv, room, shift, low, high = sizes
    RAGGED: gl.constexpr = PACKEDQ or USEDQ
    V_TILES: gl.constexpr = do_tiles.shape[0]
    WIDTH: gl.constexpr = do_tiles.shape[2]
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    OF_DV: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    zero = gl.zeros((ROWS, ROWS), gl.float32, OF_S)
    sums = no_sums(ROWS, WIDTH, V_TILES, OF_DV)
    if begin < end:
        mbarrier.wait(k_full.index(0), 0)
        if PACKEDKV or USEDKV:
            _cleared(k_tiles, 0, k_tiles.shape[0], n_kv - j0)
    stage = 0
    phase = 0
    turn = 0
    dq_phase = 1  # nothing is being added yet
    for n in range(group):
        slope = 0.0
        if ALIBI:
            slope = slope_of(gl.load(slopes + b * slopes_stride + g * group + n))
        for t in range(begin, low):
            sums, stage, phase, turn, dq_phase = _weigh(
                tiles, sums, zero, stage, phase, turn, dq_phase, t * ROWS, j0, n_q, n_kv, shift,
                bounds, scale, softcap, slope, MASK, True, SOFTCAP, ALIBI, RAGGED,
            )  # fmt: skip
        for t in range(low, high):
            sums, stage, phase, turn, dq_phase = _weigh(
                tiles, sums, zero, stage, phase, turn, dq_phase, t * ROWS, j0, n_q, n_kv, shift,
                bounds, scale, softcap, slope, MASK, False, SOFTCAP, ALIBI, RAGGED,
            )  # fmt: skip
        if MASK == "window":
            for t in range(high, end):
                sums, stage, phase, turn, dq_phase = _weigh(
                    tiles, sums, zero, stage, phase, turn, dq_phase, t * ROWS, j0, n_q, n_kv,
                    shift, bounds, scale, softcap, slope, MASK, True, SOFTCAP, ALIBI, RAGGED,
                )  # fmt: skip
    kv_b = 0 if PACKEDKV else b
    for c in gl.static_range(V_TILES):
        write_rows(
            dv, dv_strides, sums[c], 1.0, kv_b, g, kv_begin, j0, n_kv, room, accumulate,
            c * WIDTH, HEAD_DIM_V,
        )  # fmt: skip


@jit
def _second_group(
    data, tiles, steps, sizes, HEAD_DIM: gl.constexpr, PACKEDQ: gl.constexpr,
    PACKEDKV: gl.constexpr, USEDQ: gl.constexpr, USEDKV: gl.constexpr,
):  # fmt: skip
    """A consumer: gradients of weights, and dK."""
    dk, dk_strides, k_full, v_full, group, accumulate, scale = data
    _, k_tiles, v_tiles, _, _, _, _, _, _, _, _, _, _, _, _, _, _ = tiles
    b, g, j0, _, _, kv_begin, begin, end = steps
    n_q, n_kv, room, _, _, _ = sizes
    K_TILES: gl.constexpr = k_tiles.shape[0]
    WIDTH: gl.constexpr = k_tiles.shape[2]
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    OF_DK: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    zero = gl.zeros((ROWS, ROWS), gl.float32, OF_S)
    sums = no_sums(ROWS, WIDTH, K_TILES, OF_DK)
    if begin < end:
        mbarrier.wait(v_full.index(0), 0)
        mbarrier.wait(k_full.index(0), 0)
        if PACKEDKV or USEDKV:
            _cleared(v_tiles, 0, v_tiles.shape[0], n_kv - j0)
            _cleared(k_tiles, 0, K_TILES, n_kv - j0)
    stage = 0
    phase = 0
    turn = 0
    dq_phase = 1  # nothing is being added yet
    for _ in range(group):
        for t in range(begin, end):
            sums, stage, phase, turn, dq_phase = _differentiate(
                tiles, sums, zero, stage, phase, turn, dq_phase, t * ROWS, n_q, PACKEDQ or USEDQ
            )  # fmt: skip
    kv_b = 0 if PACKEDKV else b
    for c in gl.static_range(K_TILES):
        write_rows(
            dk, dk_strides, sums[c], scale, kv_b, g, kv_begin, j0, n_kv, room, accumulate,
            c * WIDTH, HEAD_DIM,
        )  # fmt: skip


@jit
def gradients_gluon_roles(
    q, k, v, do, log_sums, deltas, dq_sums, turns, order, dk, dv, slopes, q_offsets, kv_offsets,
    q_used, kv_used, dk_strides, dv_strides, batch, heads, kv_heads, group, q_len, kv_len, total_q,
    total_kv, padded, kv_section, slopes_stride, accumulate, left, right, first, bottom_right,
    softcap, scale,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, MASK: gl.constexpr, SOFTCAP: gl.constexpr,
    ALIBI: gl.constexpr, PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDQ: gl.constexpr,
    USEDKV: gl.constexpr, PAD: gl.constexpr, ORDERED: gl.constexpr, BY_LENGTH: gl.constexpr,
):  # fmt: skip
    """dK and dV of 64 keys; what they add to dQ."""
    K_WIDTH: gl.constexpr = k.block_type.shape[-1]
    V_WIDTH: gl.constexpr = v.block_type.shape[-1]
    K_TILES: gl.constexpr = (HEAD_DIM + K_WIDTH - 1) // K_WIDTH
    V_TILES: gl.constexpr = (HEAD_DIM_V + V_WIDTH - 1) // V_WIDTH
    b, g, j0, ascending = tile_of(
        order, batch, kv_heads, kv_len, total_kv, kv_offsets, kv_section,
        ROWS, PACKEDKV, BY_LENGTH, ORDERED, MASK,
    )  # fmt: skip
    q_begin, n_q = queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    kv_begin, n_kv = keys_of(b, kv_len, total_kv, 0, kv_offsets, kv_used, PACKEDKV, USEDKV, False)
    _, room = keys_of(b, kv_len, total_kv, 0, kv_offsets, kv_used, PACKEDKV, False, False)
    terms_begin = 0
    if PACKEDQ:
        terms_begin = (q_begin // PAD + b) * PAD
    shift = bottom_right * (n_kv - n_q)
    begin, low, high, end = steps_of(j0, n_q, n_kv, shift, left, right, first, ROWS, ROWS, MASK)
    q_tiles = tiles_like(q, STAGES * K_TILES)
    do_tiles = tiles_like(do, V_TILES)
    k_tiles = tiles_like(k, K_TILES)
    v_tiles = tiles_like(v, V_TILES)
    OF_P: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], q.dtype)
    p_tile = gl.allocate_shared_memory(q.dtype, [1, ROWS, ROWS], OF_P)
    ds_tile = gl.allocate_shared_memory(q.dtype, [1, ROWS, ROWS], OF_P)
    dq_tiles = tiles_like(dq_sums, GROUPS)
    log_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], log_sums.layout)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [1, ROWS], log_sums.layout)
    k_full, _ = ring(1, 1)
    v_full, _ = ring(1, 1)
    q_full, q_empty = ring(STAGES, GROUPS)
    do_full, do_empty = ring(1, GROUPS)
    p_full, _ = ring(1, 1)
    ds_full, _ = ring(1, 1)
    dq_full, dq_empty = ring(GROUPS, 1)
    fence_async_shared()  # the copy engine sees the barriers too
    bounds = (left, right, first, bottom_right)
    steps = (b, g, j0, q_begin, terms_begin, kv_begin, begin, end)
    sizes = (n_q, n_kv, room, shift, low, high)
    of_first = (
        dv, slopes, dv_strides, k_full, group, slopes_stride, accumulate, softcap, scale,
    )  # fmt: skip
    of_second = (dk, dk_strides, k_full, v_full, group, accumulate, scale)
    tiles = (
        q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles, p_tile, ds_tile, dq_tiles,
        q_full, q_empty, do_full, do_empty, p_full, ds_full, dq_full, dq_empty,
    )  # fmt: skip
    filled = (
        q, k, v, do, log_sums, deltas, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles,
        k_full, v_full, q_full, q_empty, do_full, do_empty, heads, group, padded,
    )  # fmt: skip
    lines = heads if PACKEDQ else batch * heads
    added = (
        dq_sums, turns, dq_tiles, dq_full, dq_empty, heads, lines, group, padded, ascending,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (_first_group, (
                of_first, tiles, steps, sizes, bounds, HEAD_DIM_V, MASK, SOFTCAP, ALIBI,
                PACKEDQ, PACKEDKV, USEDQ, USEDKV,
            )),
            (_second_group, (
                of_second, tiles, steps, sizes, HEAD_DIM, PACKEDQ, PACKEDKV, USEDQ, USEDKV,
            )),
            (_fill, (filled, steps, PACKEDQ, PACKEDKV)),
            (add_tiles, (
                added, steps, sizes, bounds, ROWS, ROWS, MASK, GROUPS, 0, K_TILES * K_WIDTH // ROWS,
                PACKEDQ, ORDERED,
            )),
            (add_tiles, (
                added, steps, sizes, bounds, ROWS, ROWS, MASK, GROUPS, 1, K_TILES * K_WIDTH // ROWS,
                PACKEDQ, ORDERED,
            )),
        ],
        [4, 1, 1, 1],
        [REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS],
    )  # fmt: skip
