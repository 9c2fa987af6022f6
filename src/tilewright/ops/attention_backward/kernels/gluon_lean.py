"""As `gluon_ws`, for sums of dK and dV of up to 320 columns, such as head dims 192 and 128: S and
dP of a step are not in registers at the same time (sm_90).

Idea. 64 keys of a group of warps have 320 columns of sums: 160 registers of a thread, where
`gluon_ws` has 128. Products leave 24 registers for everything else, so 56 of 240 remain: a tile of
64×64 sums, a left operand of 16, and 8. In a step of 64 queries these hold, one after the other,

    Sᵀ = K·Qᵀ    Pᵀ = exp(Sᵀ - LSE), rounded    dPᵀ = V·dOᵀ - delta, and dV += Pᵀ·dO
    dSᵀ = Pᵀ∘dPᵀ, to shared memory              a tile of dQ += dS·K, and dK += dSᵀ·Q

dS is of the rounded weights. It is read back for dK: what was written lies where dP was, and there
is no room for dQ beside it. What is not said here is as in `gluon_ws`.

Overlap. A group's exponentials have no product of their own beside them, so the groups must not
take them at the same time. They do not: of the three tiles of dQ of head dim 192 the first group
multiplies two and the second one, which therefore begins its next step earlier. Products of P and
dP, and of dQ and dK, follow one another without a wait between.

Data movement. Rows lie in tiles of 64 columns, or of 128 if these fill them. Q and dO have two
slots each, and each is free as soon as its last product is over. A group hands over its tiles of dQ
one behind the other, without waiting for the other group (`gluon_sums.add_tiles`).

What limits it. Shared memory, by its code. In turns at 192/128 an H200 reaches 528 to 546 TFLOP/s,
causal 443 to 472. More measurements, and what keeps products overlapping:
docs/notes/attention_backward-gluon_lean.md.
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
    hand_over,
    meet,
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
"""Keys of a warp group, queries of a step, and columns of a tile of dQ."""

GROUPS = gl.constexpr(2)
STAGES = gl.constexpr(2)
REGISTERS = gl.constexpr(240)
OTHERS_REGISTERS = gl.constexpr(24)


Work = bundle(
    "Work",
    "dk dv slopes dk_strides dv_strides k_full v_full group slopes_stride accumulate softcap scale"
    " q_tiles k_tiles v_tiles do_tiles log_tiles delta_tiles ds_tiles dq_tiles"
    " q_full q_empty do_full do_empty dq_full dq_empty"
    " b g j0 q_begin terms_begin kv_begin begin end n_q n_kv room shift low high bounds"
    " q k v do log_sums deltas heads padded dq_sums turns lines ascending"
    " HEAD_DIM HEAD_DIM_V MASK SOFTCAP ALIBI PACKEDQ PACKEDKV USEDQ USEDKV ORDERED",
)
"""What the warps of a workgroup have in common."""


@jit
def _fill(w):
    """The producer: loads K and V, then Q, dO, LSE and delta step by step."""
    K_TILES: gl.constexpr = w.k_tiles.shape[0] // GROUPS
    V_TILES: gl.constexpr = w.v_tiles.shape[0] // GROUPS
    K_WIDTH: gl.constexpr = w.k_tiles.shape[2]
    V_WIDTH: gl.constexpr = w.v_tiles.shape[2]
    q_b = 0 if w.PACKEDQ else w.b
    kv_b = 0 if w.PACKEDKV else w.b
    stage = 0
    phase = 1  # an unused slot counts as released
    if w.begin < w.end:
        mbarrier.expect(w.k_full.index(0), GROUPS * K_TILES * w.k.block_type.nbytes)
        for r in gl.static_range(GROUPS):
            for c in gl.static_range(K_TILES):
                at = (kv_b, w.g, w.kv_begin + w.j0 + r * ROWS, c * K_WIDTH)
                tma_load(w.k, at, w.k_full.index(0), w.k_tiles.index(r * K_TILES + c))
        mbarrier.expect(w.v_full.index(0), GROUPS * V_TILES * w.v.block_type.nbytes)
        for r in gl.static_range(GROUPS):
            for c in gl.static_range(V_TILES):
                at = (kv_b, w.g, w.kv_begin + w.j0 + r * ROWS, c * V_WIDTH)
                tma_load(w.v, at, w.v_full.index(0), w.v_tiles.index(r * V_TILES + c))
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
            full = w.do_full.index(stage)
            mbarrier.wait(w.do_empty.index(stage), phase)
            mbarrier.expect(full, V_TILES * w.do.block_type.nbytes + ROWS * 4)
            for c in gl.static_range(V_TILES):
                at = (q_b, h, w.q_begin + i0, c * V_WIDTH)
                tma_load(w.do, at, full, w.do_tiles.index(stage * V_TILES + c))
            tma_load(w.deltas, (line + i0,), full, w.delta_tiles.index(stage))
            stage, phase = turned(stage, phase, STAGES)


@jit
def _held(x):
    """`x`, of 16-bit elements, known before what follows: ptxas moves no computation behind a
    store, also if no workgroup ever stores."""
    return gl.inline_asm_elementwise(
        """{
        .reg .pred never;
        .reg .b32 depth;
        mov.u32 depth, %nctaid.z;
        setp.eq.u32 never, depth, 0;
        @never st.shared.v4.b32 [depth], {$4, $5, $6, $7};
        mov.b32 $0, $4;
        mov.b32 $1, $5;
        mov.b32 $2, $6;
        mov.b32 $3, $7;
        }""",
        "=r,=r,=r,=r,r,r,r,r", [x], x.dtype, is_pure=False, pack=8,
    )  # fmt: skip


@jit
def _dq_of(ds_tiles, k_tiles, zero, none, stage, NUMBER: gl.constexpr):
    """Tile NUMBER of dQ, started: 64 columns, of the keys of both groups."""
    K_TILES: gl.constexpr = k_tiles.shape[0] // GROUPS
    PARTS: gl.constexpr = k_tiles.shape[2] // ROWS  # tiles of dQ beside a tile of K
    dq = zero
    for r in gl.static_range(GROUPS):
        k_tile = k_tiles.index(none + r * K_TILES + NUMBER // PARTS)
        part = k_tile.slice(NUMBER % PARTS * ROWS, ROWS, dim=1)
        left = ds_tiles.index(stage * GROUPS + r).permute((1, 0))
        dq = warpgroup_mma(left, part, dq, use_acc=r > 0, is_async=True)
    return dq


@jit
def _step(
    w, dk_sums, dv_sums, zero, stage, phase, dq_phase, t, j0, slope,
    MASKED: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """The sums after block `t` of queries."""
    i0 = t * ROWS
    DTYPE: gl.constexpr = w.q_tiles.dtype
    K_TILES: gl.constexpr = w.k_tiles.shape[0] // GROUPS
    V_TILES: gl.constexpr = w.v_tiles.shape[0] // GROUPS
    PIECES: gl.constexpr = K_TILES * w.k_tiles.shape[2] // ROWS  # tiles of dQ
    FIRST: gl.constexpr = GROUP * ((PIECES + 1) // 2)  # of the group's
    END: gl.constexpr = PIECES if GROUP else (PIECES + 1) // 2
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, zero.type.layout)
    OF_DK: gl.constexpr = gl.DotOperandLayout(0, dk_sums[0].type.layout, 2)
    OF_DV: gl.constexpr = gl.DotOperandLayout(0, dv_sums[0].type.layout, 2)
    none = nothing(i0)
    own = stage * GROUPS + GROUP
    mbarrier.wait(w.q_full.index(stage), phase)
    if w.PACKEDQ or w.USEDQ:  # noqa: SIM102 - only the first is known when compiling
        if i0 + ROWS > w.n_q:
            for c in gl.static_range(K_TILES):
                clear(w.q_tiles.index(stage * K_TILES + c), w.n_q - i0)
    log_tile = w.log_tiles.index(stage)
    s = zero
    if not w.SOFTCAP:
        s = spread(log_tile.load(OF_COLUMNS), ROWS)
    for c in gl.static_range(K_TILES):
        part = w.q_tiles.index(stage * K_TILES + c).permute((1, 0))
        k_tile = w.k_tiles.index(none + GROUP * K_TILES + c)
        more = c > 0 or not w.SOFTCAP
        s = warpgroup_mma(k_tile, part, s, use_acc=more, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    p, through = weights_of(
        s, log_tile, i0, j0, w.n_kv, w.shift, w.bounds, w.scale, w.softcap, slope,
        w.MASK, MASKED, w.SOFTCAP, w.ALIBI,
    )  # fmt: skip
    p = _held(p.to(DTYPE))
    through = _held(through.to(DTYPE)) if w.SOFTCAP else p
    weights = gl.convert_layout(p, OF_DV, assert_trivial=True)
    mbarrier.wait(w.do_full.index(stage), phase)
    if w.PACKEDQ or w.USEDQ:  # noqa: SIM102 - only the first is known when compiling
        if i0 + ROWS > w.n_q:
            for c in gl.static_range(V_TILES):
                clear(w.do_tiles.index(stage * V_TILES + c), w.n_q - i0)
    dp = spread(w.delta_tiles.index(stage).load(OF_COLUMNS), ROWS)
    for c in gl.static_range(V_TILES):
        part = w.do_tiles.index(stage * V_TILES + c).permute((1, 0))
        dp = warpgroup_mma(w.v_tiles.index(none + GROUP * V_TILES + c), part, dp, is_async=True)
    dv_sums = add_products(dv_sums, weights, w.do_tiles, stage * V_TILES)
    dp = warpgroup_mma_wait(V_TILES, deps=(dp,))
    # In one of two buffers: when all groups meet, all have multiplied what was in the other.
    w.ds_tiles.index(own).store((through.to(gl.float32) * dp).to(DTYPE))
    fence_async_shared()
    meet(i0)
    dv_sums, weights = ended(dv_sums, weights, 0)
    mbarrier.arrive(w.do_empty.index(stage), count=1)
    mbarrier.wait(w.dq_empty.index(GROUP), dq_phase)
    dq = _dq_of(w.ds_tiles, w.k_tiles, zero, none, stage, FIRST)
    gradients = w.ds_tiles.index(own).load(OF_DK)
    dk_sums = add_products(dk_sums, gradients, w.q_tiles, stage * K_TILES)
    dq = warpgroup_mma_wait(K_TILES, deps=(dq,))
    hand_over(dq, w.dq_tiles, w.dq_full, GROUP)
    dk_sums, gradients = ended(dk_sums, gradients, 0)
    mbarrier.arrive(w.q_empty.index(stage), count=1)
    dq_phase ^= 1
    if FIRST + 1 < END:
        dq = _dq_of(w.ds_tiles, w.k_tiles, zero, none, stage, FIRST + 1)
        dq = warpgroup_mma_wait(0, deps=(dq,))
        mbarrier.wait(w.dq_empty.index(GROUP), dq_phase)
        hand_over(dq, w.dq_tiles, w.dq_full, GROUP)
        dq_phase ^= 1
    stage, phase = turned(stage, phase, STAGES)
    return dk_sums, dv_sums, stage, phase, dq_phase


@jit
def _multiply(w, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: its 64 keys of the tile."""
    K_TILES: gl.constexpr = w.k_tiles.shape[0] // GROUPS
    V_TILES: gl.constexpr = w.v_tiles.shape[0] // GROUPS
    K_WIDTH: gl.constexpr = w.k_tiles.shape[2]
    V_WIDTH: gl.constexpr = w.v_tiles.shape[2]
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    OF_DK: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K_WIDTH, 16])
    OF_DV: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V_WIDTH, 16])
    zero = gl.zeros((ROWS, ROWS), gl.float32, OF_S)
    dk_sums = no_sums(ROWS, K_WIDTH, K_TILES, OF_DK)
    dv_sums = no_sums(ROWS, V_WIDTH, V_TILES, OF_DV)
    j0 = w.j0 + GROUP * ROWS
    if w.begin < w.end:
        mbarrier.wait(w.k_full.index(0), 0)
        mbarrier.wait(w.v_full.index(0), 0)
        if w.PACKEDKV or w.USEDKV:  # noqa: SIM102 - only the first is known when compiling
            if j0 + ROWS > w.n_kv:
                for c in gl.static_range(K_TILES):
                    clear(w.k_tiles.index(GROUP * K_TILES + c), w.n_kv - j0)
                for c in gl.static_range(V_TILES):
                    clear(w.v_tiles.index(GROUP * V_TILES + c), w.n_kv - j0)
    stage = 0
    phase = 0
    dq_phase = 1  # nothing is being added yet
    for n in range(w.group):
        slope = 0.0
        if w.ALIBI:
            slope = slope_of(gl.load(w.slopes + w.b * w.slopes_stride + w.g * w.group + n))
        for t in range(w.begin, w.low):
            dk_sums, dv_sums, stage, phase, dq_phase = _step(
                w, dk_sums, dv_sums, zero, stage, phase, dq_phase, t, j0, slope, True, GROUP
            )
        for t in range(w.low, w.high):
            dk_sums, dv_sums, stage, phase, dq_phase = _step(
                w, dk_sums, dv_sums, zero, stage, phase, dq_phase, t, j0, slope, False, GROUP
            )
        if w.MASK == "window":
            for t in range(w.high, w.end):
                dk_sums, dv_sums, stage, phase, dq_phase = _step(
                    w, dk_sums, dv_sums, zero, stage, phase, dq_phase, t, j0, slope, True, GROUP
                )
    for c in gl.static_range(K_TILES):
        write_rows(w, w.dk, w.dk_strides, dk_sums[c], w.scale, j0, c * K_WIDTH, w.HEAD_DIM)
    for c in gl.static_range(V_TILES):
        write_rows(w, w.dv, w.dv_strides, dv_sums[c], 1.0, j0, c * V_WIDTH, w.HEAD_DIM_V)


@jit
def gradients_gluon_lean(
    q, k, v, do, log_sums, deltas, dq_sums, turns, order, dk, dv, slopes, q_offsets, kv_offsets,
    q_used, kv_used, dk_strides, dv_strides, batch, heads, kv_heads, group, q_len, kv_len, total_q,
    total_kv, padded, kv_section, slopes_stride, accumulate, left, right, first, bottom_right,
    softcap, scale,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, MASK: gl.constexpr, SOFTCAP: gl.constexpr,
    ALIBI: gl.constexpr, PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDQ: gl.constexpr,
    USEDKV: gl.constexpr, PAD: gl.constexpr, ORDERED: gl.constexpr, BY_LENGTH: gl.constexpr,
):  # fmt: skip
    """dK and dV of 128 keys; what they add to dQ."""
    TILE: gl.constexpr = GROUPS * ROWS
    K_WIDTH: gl.constexpr = k.block_type.shape[-1]
    V_WIDTH: gl.constexpr = v.block_type.shape[-1]
    K_TILES: gl.constexpr = (HEAD_DIM + K_WIDTH - 1) // K_WIDTH
    V_TILES: gl.constexpr = (HEAD_DIM_V + V_WIDTH - 1) // V_WIDTH
    b, g, j0, ascending = tile_of(
        order, batch, kv_heads, kv_len, total_kv, kv_offsets, kv_section,
        TILE, PACKEDKV, BY_LENGTH, ORDERED, MASK,
    )  # fmt: skip
    q_begin, n_q = queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    kv_begin, n_kv = keys_of(b, kv_len, total_kv, 0, kv_offsets, kv_used, PACKEDKV, USEDKV, False)
    _, room = keys_of(b, kv_len, total_kv, 0, kv_offsets, kv_used, PACKEDKV, False, False)
    terms_begin = 0
    if PACKEDQ:
        terms_begin = (q_begin // PAD + b) * PAD
    shift = bottom_right * (n_kv - n_q)
    begin, low, high, end = steps_of(j0, n_q, n_kv, shift, left, right, first, TILE, ROWS, MASK)
    q_tiles = tiles_of(q, STAGES * K_TILES)
    do_tiles = tiles_of(do, STAGES * V_TILES)
    k_tiles = tiles_of(k, GROUPS * K_TILES)
    v_tiles = tiles_of(v, GROUPS * V_TILES)
    OF_DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], q.dtype)
    ds_tiles = gl.allocate_shared_memory(q.dtype, [2 * GROUPS, ROWS, ROWS], OF_DS)
    dq_tiles = tiles_of(dq_sums, GROUPS)
    log_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], log_sums.layout)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], log_sums.layout)
    k_full, _ = barriers(1, 1)
    v_full, _ = barriers(1, 1)
    q_full, q_empty = barriers(STAGES, GROUPS)
    do_full, do_empty = barriers(STAGES, GROUPS)
    dq_full, dq_empty = barriers(GROUPS, 1)
    fence_async_shared()  # the copy engine sees the barriers too
    bounds = (left, right, first, bottom_right)
    lines = heads if PACKEDQ else batch * heads
    w = Work(
        dk, dv, slopes, dk_strides, dv_strides, k_full, v_full, group, slopes_stride, accumulate,
        softcap, scale, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles, ds_tiles,
        dq_tiles, q_full, q_empty, do_full, do_empty, dq_full, dq_empty, b, g, j0, q_begin,
        terms_begin, kv_begin, begin, end, n_q, n_kv, room, shift, low, high, bounds, q, k, v, do,
        log_sums, deltas, heads, padded, dq_sums, turns, lines, ascending, HEAD_DIM, HEAD_DIM_V,
        MASK, SOFTCAP, ALIBI, PACKEDQ, PACKEDKV, USEDQ, USEDKV, ORDERED,
    )  # fmt: skip
    PIECES: gl.constexpr = K_TILES * K_WIDTH // ROWS
    gl.warp_specialize(
        [
            (_multiply, (w, 0)), (_multiply, (w, 1)), (_fill, (w,)),
            (add_tiles, (w, TILE, ROWS, GROUPS, 0, PIECES)),
            (add_tiles, (w, TILE, ROWS, GROUPS, 1, PIECES)),
        ],
        [4, 1, 1, 1],
        [REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS],
    )  # fmt: skip
