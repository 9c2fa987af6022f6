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
from tilewright.ops.attention.kernels.gluon_tiles import clear
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
"""Keys of a workgroup, queries of a step, and columns of a tile of dQ."""

GROUPS = gl.constexpr(2)
STAGES = gl.constexpr(2)
REGISTERS = gl.constexpr(240)
OTHERS_REGISTERS = gl.constexpr(24)


Work = bundle(
    "Work",
    "dv slopes dv_strides k_full group slopes_stride accumulate softcap scale dk dk_strides"
    " v_full"
    " q_tiles k_tiles v_tiles do_tiles log_tiles delta_tiles p_tile ds_tile dq_tiles q_full"
    " q_empty do_full do_empty p_full ds_full dq_full dq_empty"
    " b g j0 q_begin terms_begin kv_begin begin end n_q n_kv room shift low high bounds"
    " q k v do log_sums deltas heads padded dq_sums turns lines ascending"
    " HEAD_DIM HEAD_DIM_V MASK SOFTCAP ALIBI PACKEDQ PACKEDKV USEDQ USEDKV ORDERED",
)
"""What the warps of a workgroup have in common."""


@jit
def _fill(w):
    """The producer: loads K and V, then Q, dO, LSE and delta step by step."""
    K_TILES: gl.constexpr = w.k_tiles.shape[0]
    V_TILES: gl.constexpr = w.v_tiles.shape[0]
    K_WIDTH: gl.constexpr = w.k_tiles.shape[2]
    V_WIDTH: gl.constexpr = w.v_tiles.shape[2]
    q_b = 0 if w.PACKEDQ else w.b
    kv_b = 0 if w.PACKEDKV else w.b
    stage = 0
    phase = 1  # an unused slot counts as released
    do_phase = 1
    if w.begin < w.end:
        mbarrier.expect(w.k_full.index(0), K_TILES * w.k.block_type.nbytes)
        for c in gl.static_range(K_TILES):
            at = (kv_b, w.g, w.kv_begin + w.j0, c * K_WIDTH)
            tma_load(w.k, at, w.k_full.index(0), w.k_tiles.index(c))
        mbarrier.expect(w.v_full.index(0), V_TILES * w.v.block_type.nbytes)
        for c in gl.static_range(V_TILES):
            at = (kv_b, w.g, w.kv_begin + w.j0, c * V_WIDTH)
            tma_load(w.v, at, w.v_full.index(0), w.v_tiles.index(c))
    for n in range(w.group):
        h = w.g * w.group + n
        line = (q_b * w.heads + h) * w.padded + w.terms_begin
        for t in range(w.begin, w.end):
            i0 = t * ROWS
            full = w.q_full.index(stage)
            mbarrier.wait(w.q_empty.index(stage), phase)
            mbarrier.expect(full, K_TILES * w.q.block_type.nbytes + ROWS * 4)
            for c in gl.static_range(K_TILES):
                at = (q_b, h, w.q_begin + i0, c * K_WIDTH)
                tma_load(w.q, at, full, w.q_tiles.index(stage * K_TILES + c))
            tma_load(w.log_sums, (line + i0,), full, w.log_tiles.index(stage))
            mbarrier.wait(w.do_empty.index(0), do_phase)
            mbarrier.expect(w.do_full.index(0), V_TILES * w.do.block_type.nbytes + ROWS * 4)
            for c in gl.static_range(V_TILES):
                at = (q_b, h, w.q_begin + i0, c * V_WIDTH)
                tma_load(w.do, at, w.do_full.index(0), w.do_tiles.index(c))
            tma_load(w.deltas, (line + i0,), w.do_full.index(0), w.delta_tiles.index(0))
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
def _weigh(w, sums, zero, stage, phase, turn, dq_phase, t, slope, MASKED: gl.constexpr):
    """A step of the first group: the sums of dV after block `t` of queries.

    turn: the phase of what each step uses once. dq_phase: of the tile of dQ that is added."""
    i0 = t * ROWS
    K_TILES: gl.constexpr = w.k_tiles.shape[0]
    V_TILES: gl.constexpr = w.do_tiles.shape[0]
    COUNT: gl.constexpr = (K_TILES * w.k_tiles.shape[2] // ROWS + 1) // 2  # tiles of dQ
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, zero.type.layout)
    OF_DV: gl.constexpr = gl.DotOperandLayout(0, sums[0].type.layout, 2)
    none = nothing(i0)
    mbarrier.wait(w.q_full.index(stage), phase)
    if w.PACKEDQ or w.USEDQ:
        _cleared(w.q_tiles, stage * K_TILES, K_TILES, w.n_q - i0)
    log_tile = w.log_tiles.index(stage)
    s = zero
    if not w.SOFTCAP:
        s = spread(log_tile.load(OF_COLUMNS), ROWS)
    for c in gl.static_range(K_TILES):
        part = w.q_tiles.index(stage * K_TILES + c).permute((1, 0))
        more = c > 0 or not w.SOFTCAP
        s = warpgroup_mma(w.k_tiles.index(none + c), part, s, use_acc=more, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    p, through = weights_of(
        s, log_tile, i0, w.j0, w.n_kv, w.shift, w.bounds, w.scale, w.softcap, slope,
        w.MASK, MASKED, w.SOFTCAP, w.ALIBI,
    )  # fmt: skip
    mbarrier.arrive(w.q_empty.index(stage), count=1)
    w.p_tile.index(0).store(through.to(w.p_tile.dtype))
    mbarrier.arrive(w.p_full.index(0), count=1)
    weights = gl.convert_layout(p.to(w.p_tile.dtype), OF_DV, assert_trivial=True)
    mbarrier.wait(w.do_full.index(0), turn)
    if w.PACKEDQ or w.USEDQ:
        _cleared(w.do_tiles, 0, V_TILES, w.n_q - i0)
    sums = add_products(sums, weights, w.do_tiles, 0)
    mbarrier.wait(w.ds_full.index(0), turn)
    dq = _dq_of(w.ds_tile.index(0), w.k_tiles, zero, none, 0, COUNT)
    sums, weights = ended(sums, weights, len(dq))
    mbarrier.arrive(w.do_empty.index(0), count=1)
    dq_phase = _hand_over(dq, w.dq_tiles, w.dq_full, w.dq_empty, dq_phase, 0, 0)
    stage, phase = turned(stage, phase, STAGES)
    return sums, stage, phase, turn ^ 1, dq_phase


@jit
def _differentiate(w, sums, zero, stage, phase, turn, dq_phase, t):
    """A step of the second group: the sums of dK after block `t` of queries."""
    i0 = t * ROWS
    DTYPE: gl.constexpr = w.q_tiles.dtype
    K_TILES: gl.constexpr = w.k_tiles.shape[0]
    V_TILES: gl.constexpr = w.v_tiles.shape[0]
    PIECES: gl.constexpr = K_TILES * w.k_tiles.shape[2] // ROWS  # tiles of dQ
    FIRST: gl.constexpr = (PIECES + 1) // 2
    OF_S: gl.constexpr = zero.type.layout
    OF_DK: gl.constexpr = gl.DotOperandLayout(0, sums[0].type.layout, 2)
    none = nothing(i0)
    mbarrier.wait(w.do_full.index(0), turn)
    if w.PACKEDQ or w.USEDQ:
        _cleared(w.do_tiles, 0, V_TILES, w.n_q - i0)
    dp = spread(w.delta_tiles.index(0).load(gl.SliceLayout(0, OF_S)), ROWS)
    for c in gl.static_range(V_TILES):
        part = w.do_tiles.index(c).permute((1, 0))
        dp = warpgroup_mma(w.v_tiles.index(none + c), part, dp, is_async=True)
    mbarrier.wait(w.q_full.index(stage), phase)
    if w.PACKEDQ or w.USEDQ:
        _cleared(w.q_tiles, stage * K_TILES, K_TILES, w.n_q - i0)
    mbarrier.wait(w.p_full.index(0), turn)
    p = w.p_tile.index(0).load(OF_S).to(gl.float32)
    dp = warpgroup_mma_wait(0, deps=(dp,))
    ds = (p * dp).to(DTYPE)
    w.ds_tile.index(0).store(ds)
    fence_async_shared()
    mbarrier.arrive(w.ds_full.index(0), count=1)
    mbarrier.arrive(w.do_empty.index(0), count=1)
    dq = _dq_of(w.ds_tile.index(0), w.k_tiles, zero, none, FIRST, PIECES - FIRST)
    gradients = gl.convert_layout(ds, OF_DK, assert_trivial=True)
    sums = add_products(sums, gradients, w.q_tiles, stage * K_TILES)
    dq_phase = _hand_over(dq, w.dq_tiles, w.dq_full, w.dq_empty, dq_phase, K_TILES, 1)
    sums, gradients = ended(sums, gradients, 0)
    mbarrier.arrive(w.q_empty.index(stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
    return sums, stage, phase, turn ^ 1, dq_phase


@jit
def _first_group(w):
    """A consumer: weights and dV."""
    V_TILES: gl.constexpr = w.do_tiles.shape[0]
    WIDTH: gl.constexpr = w.do_tiles.shape[2]
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    OF_DV: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    zero = gl.zeros((ROWS, ROWS), gl.float32, OF_S)
    sums = no_sums(ROWS, WIDTH, V_TILES, OF_DV)
    if w.begin < w.end:
        mbarrier.wait(w.k_full.index(0), 0)
        if w.PACKEDKV or w.USEDKV:
            _cleared(w.k_tiles, 0, w.k_tiles.shape[0], w.n_kv - w.j0)
    stage = 0
    phase = 0
    turn = 0
    dq_phase = 1  # nothing is being added yet
    for n in range(w.group):
        slope = 0.0
        if w.ALIBI:
            slope = slope_of(gl.load(w.slopes + w.b * w.slopes_stride + w.g * w.group + n))
        for t in range(w.begin, w.low):
            sums, stage, phase, turn, dq_phase = _weigh(
                w, sums, zero, stage, phase, turn, dq_phase, t, slope, True
            )
        for t in range(w.low, w.high):
            sums, stage, phase, turn, dq_phase = _weigh(
                w, sums, zero, stage, phase, turn, dq_phase, t, slope, False
            )
        if w.MASK == "window":
            for t in range(w.high, w.end):
                sums, stage, phase, turn, dq_phase = _weigh(
                    w, sums, zero, stage, phase, turn, dq_phase, t, slope, True
                )
    for c in gl.static_range(V_TILES):
        write_rows(w, w.dv, w.dv_strides, sums[c], 1.0, w.j0, c * WIDTH, w.HEAD_DIM_V)


@jit
def _second_group(w):
    """A consumer: gradients of weights, and dK."""
    K_TILES: gl.constexpr = w.k_tiles.shape[0]
    WIDTH: gl.constexpr = w.k_tiles.shape[2]
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    OF_DK: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    zero = gl.zeros((ROWS, ROWS), gl.float32, OF_S)
    sums = no_sums(ROWS, WIDTH, K_TILES, OF_DK)
    if w.begin < w.end:
        mbarrier.wait(w.v_full.index(0), 0)
        mbarrier.wait(w.k_full.index(0), 0)
        if w.PACKEDKV or w.USEDKV:
            _cleared(w.v_tiles, 0, w.v_tiles.shape[0], w.n_kv - w.j0)
            _cleared(w.k_tiles, 0, K_TILES, w.n_kv - w.j0)
    stage = 0
    phase = 0
    turn = 0
    dq_phase = 1  # nothing is being added yet
    for _ in range(w.group):
        for t in range(w.begin, w.end):
            sums, stage, phase, turn, dq_phase = _differentiate(
                w, sums, zero, stage, phase, turn, dq_phase, t
            )
    for c in gl.static_range(K_TILES):
        write_rows(w, w.dk, w.dk_strides, sums[c], w.scale, w.j0, c * WIDTH, w.HEAD_DIM)


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
    q_tiles = tiles_of(q, STAGES * K_TILES)
    do_tiles = tiles_of(do, V_TILES)
    k_tiles = tiles_of(k, K_TILES)
    v_tiles = tiles_of(v, V_TILES)
    OF_P: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], q.dtype)
    p_tile = gl.allocate_shared_memory(q.dtype, [1, ROWS, ROWS], OF_P)
    ds_tile = gl.allocate_shared_memory(q.dtype, [1, ROWS, ROWS], OF_P)
    dq_tiles = tiles_of(dq_sums, GROUPS)
    log_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], log_sums.layout)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [1, ROWS], log_sums.layout)
    k_full, _ = barriers(1, 1)
    v_full, _ = barriers(1, 1)
    q_full, q_empty = barriers(STAGES, GROUPS)
    do_full, do_empty = barriers(1, GROUPS)
    p_full, _ = barriers(1, 1)
    ds_full, _ = barriers(1, 1)
    dq_full, dq_empty = barriers(GROUPS, 1)
    fence_async_shared()  # the copy engine sees the barriers too
    bounds = (left, right, first, bottom_right)
    lines = heads if PACKEDQ else batch * heads
    w = Work(
        dv, slopes, dv_strides, k_full, group, slopes_stride, accumulate, softcap, scale, dk,
        dk_strides, v_full, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles, p_tile,
        ds_tile, dq_tiles, q_full, q_empty, do_full, do_empty, p_full, ds_full, dq_full, dq_empty,
        b, g, j0, q_begin, terms_begin, kv_begin, begin, end, n_q, n_kv, room, shift, low, high,
        bounds, q, k, v, do, log_sums, deltas, heads, padded, dq_sums, turns, lines, ascending,
        HEAD_DIM, HEAD_DIM_V, MASK, SOFTCAP, ALIBI, PACKEDQ, PACKEDKV, USEDQ, USEDKV, ORDERED,
    )  # fmt: skip
    PIECES: gl.constexpr = K_TILES * K_WIDTH // ROWS
    gl.warp_specialize(
        [
            (_first_group, (w,)), (_second_group, (w,)), (_fill, (w,)),
            (add_tiles, (w, ROWS, ROWS, GROUPS, 0, PIECES)),
            (add_tiles, (w, ROWS, ROWS, GROUPS, 1, PIECES)),
        ],
        [4, 1, 1, 1],
        [REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS],
    )  # fmt: skip
