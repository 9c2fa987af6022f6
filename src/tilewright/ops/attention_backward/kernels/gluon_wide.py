"""As `gluon_ws`, for head dims over 128: groups of warps share the columns of the sums (sm_90).

Idea. Sums of dK and dV of 64 keys and 256 columns are 256 registers of a thread of one group of
warps. So a workgroup owns 64 keys, and each of its two groups has half of the columns: tiles of 64,
by turns of dK and dV (192/128: two of dK; one of dK and two of dV). A group computes S and dP for
all keys and half of the 64 queries of a step. Weights and gradients then meet in shared memory, for
dV and dK sum over all queries. What is not said here is as in `gluon_ws`.

Data movement. Q has two slots, dO one, and each group hands over its tiles of dQ one behind the
other, for want of shared memory. Rows lie in tiles of 64 columns, as 192 is no power of two; or of
128, if all are of 256.

What limits it. By its code: shared memory. A step at head dim 256 takes 2,560 cycles of an SM's
matrix units, and its operands, fills and stores are about 500 kB, which shared memory moves in
3,900.

Measured on an H200, bf16: at head dim 256 367 TFLOP/s for 4k rows and 390 for 8k, causal 349 and
373, cuDNN's time over this kernel's 0.95, 1.07, 0.95 and 0.92; at 192/128 322 and 330, causal 285
and 308, which is 1.06, 1.07, 0.67 and 0.65.

Compiled (Triton 3.6, ptxas for sm_90a): 8 bytes are spilled without a mask. The simulation
(`tests/simulate`) ran it.
"""

from tilewright.ops.attention.kernels.gluon_scores import LOG2E
from tilewright.ops.attention.kernels.gluon_tiles import (
    clear,
    keys_of,
    queries_of,
    ring,
    turned,
)
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
    constexpr_function,
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


@constexpr_function
def begin_k(k_tiles, group):
    """The first of the group's tiles of dK and dQ, which are all up to the next group's."""
    return (0, (k_tiles + 1) // 2, k_tiles)[group]


@constexpr_function
def begin_v(k_tiles, v_tiles, group):
    """The first of the group's tiles of dV: so that groups have equally many of dK and dV."""
    first = (k_tiles + v_tiles) // 2 - (k_tiles + 1) // 2
    return (0, min(v_tiles, max(0, first)), v_tiles)[group]


@jit
def _fill(data, steps, PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr):
    """The producer: loads K and V, then Q, dO, LSE and delta step by step."""
    (
        q, k, v, do, log_sums, deltas, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles,
        kv_full, q_full, q_empty, do_full, do_empty, heads, group, padded,
    ) = data  # fmt: skip
    K_TILES: gl.constexpr = k_tiles.shape[0]
    V_TILES: gl.constexpr = v_tiles.shape[0]
    WIDTH: gl.constexpr = k_tiles.shape[2]
    b, g, j0, q_begin, terms_begin, kv_begin, begin, end = steps
    q_b = 0 if PACKEDQ else b
    kv_b = 0 if PACKEDKV else b
    stage = 0
    phase = 1  # an unused slot counts as released
    do_phase = 1
    if begin < end:
        mbarrier.expect(kv_full.index(0), (K_TILES + V_TILES) * k.block_type.nbytes)
        for c in gl.static_range(K_TILES):
            at = (kv_b, g, kv_begin + j0, c * WIDTH)
            tma_load(k, at, kv_full.index(0), k_tiles.index(c))
        for c in gl.static_range(V_TILES):
            at = (kv_b, g, kv_begin + j0, c * WIDTH)
            tma_load(v, at, kv_full.index(0), v_tiles.index(c))
    for n in range(group):
        h = g * group + n
        line = (q_b * heads + h) * padded + terms_begin
        for t in range(begin, end):
            i0 = t * ROWS
            full = q_full.index(stage)
            mbarrier.wait(q_empty.index(stage), phase)
            mbarrier.expect(full, K_TILES * q.block_type.nbytes + ROWS * 4)
            for c in gl.static_range(K_TILES):
                at = (q_b, h, q_begin + i0, c * WIDTH)
                tma_load(q, at, full, q_tiles.index(stage * K_TILES + c))
            tma_load(log_sums, (line + i0,), full, log_tiles.index(stage))
            mbarrier.wait(do_empty.index(0), do_phase)
            mbarrier.expect(do_full.index(0), V_TILES * do.block_type.nbytes + ROWS * 4)
            for c in gl.static_range(V_TILES):
                at = (q_b, h, q_begin + i0, c * WIDTH)
                tma_load(do, at, do_full.index(0), do_tiles.index(c))
            tma_load(deltas, (line + i0,), do_full.index(0), delta_tiles.index(0))
            stage, phase = turned(stage, phase, STAGES)
            do_phase ^= 1


@jit
def _add_products(sums, left, tiles, first):
    """sums + left·tiles, started, of the tiles from `first` on."""
    found = ()
    for c in gl.static_range(len(sums)):
        found += (warpgroup_mma(left, tiles.index(first + c), sums[c], is_async=True),)
    return found


@jit
def _hand_over(dq, dq_tiles, dq_full, dq_empty, phase, GROUP: gl.constexpr):
    """Let a tile of dQ be added; it has the group's slot when the one before has been read."""
    mbarrier.wait(dq_empty.index(0), phase)
    dq_tiles.index(GROUP).store(by_threads(dq))
    fence_async_shared()
    mbarrier.arrive(dq_full.index(0), count=1)


@jit
def _step(
    tiles, dk_sums, dv_sums, zero, zero_q, stage, phase, do_phase, dq_phase, i0, j0, n_q, n_kv,
    shift, bounds, scale, softcap, slope,
    MASK: gl.constexpr, MASKED: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr,
    RAGGED: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """The sums after one block of queries."""
    (
        q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles, p_tiles, ds_tiles, dq_tiles,
        q_full, q_empty, do_full, do_empty, dq_full, dq_empty,
    ) = tiles  # fmt: skip
    DTYPE: gl.constexpr = q_tiles.dtype
    K_TILES: gl.constexpr = k_tiles.shape[0]
    V_TILES: gl.constexpr = v_tiles.shape[0]
    FIRST_K: gl.constexpr = begin_k(K_TILES, GROUP)
    END_K: gl.constexpr = begin_k(K_TILES, GROUP + 1)
    FIRST_V: gl.constexpr = begin_v(K_TILES, V_TILES, GROUP)
    PARTS: gl.constexpr = k_tiles.shape[2] // ROWS  # tiles of dQ beside a tile of K
    PASSES: gl.constexpr = (K_TILES * PARTS + 1) // 2
    OWN: gl.constexpr = GROUP * (ROWS // GROUPS)
    OWN_ROWS: gl.constexpr = ROWS // GROUPS
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, zero.type.layout)
    q_first = stage * K_TILES
    none = nothing(i0)
    mbarrier.wait(q_full.index(stage), phase)
    if RAGGED:  # noqa: SIM102 - only the first is known when compiling
        if i0 + ROWS > n_q:
            for c in gl.static_range(K_TILES):
                clear(q_tiles.index(q_first + c), n_q - i0)
    log_tile = log_tiles.index(stage).slice(OWN, OWN_ROWS)
    s = zero
    if not SOFTCAP:
        s = spread(log_tile.load(OF_COLUMNS), ROWS)
    for c in gl.static_range(K_TILES):
        part = q_tiles.index(q_first + c).slice(OWN, OWN_ROWS).permute((1, 0))
        more = c > 0 or not SOFTCAP
        s = warpgroup_mma(k_tiles.index(none + c), part, s, use_acc=more, is_async=True)
    mbarrier.wait(do_full.index(0), do_phase)
    if RAGGED:  # noqa: SIM102 - only the first is known when compiling
        if i0 + ROWS > n_q:
            for c in gl.static_range(V_TILES):
                clear(do_tiles.index(c), n_q - i0)
    dp = spread(delta_tiles.index(0).slice(OWN, OWN_ROWS).load(OF_COLUMNS), ROWS)
    for c in gl.static_range(V_TILES):
        part = do_tiles.index(c).slice(OWN, OWN_ROWS).permute((1, 0))
        dp = warpgroup_mma(v_tiles.index(none + c), part, dp, is_async=True)
    s = warpgroup_mma_wait(V_TILES, deps=(s,))
    p, through = weights_of(
        s, log_tile, i0 + OWN, j0, n_kv, shift, bounds, scale, softcap, slope,
        MASK, MASKED, SOFTCAP, ALIBI,
    )  # fmt: skip
    dp = warpgroup_mma_wait(0, deps=(dp,))
    ds = through * dp
    # In two pairs of tiles by turns: when the groups meet, both have multiplied the other pair.
    p_tile = p_tiles.index(stage)
    ds_tile = ds_tiles.index(stage)
    p_tile.slice(OWN, OWN_ROWS).store(p.to(DTYPE).permute((1, 0)))
    ds_tile.slice(OWN, OWN_ROWS).store(ds.to(DTYPE).permute((1, 0)))
    fence_async_shared()
    meet(i0)
    dv_sums = _add_products(dv_sums, p_tile.permute((1, 0)), do_tiles, FIRST_V)
    part = k_tiles.index(FIRST_K).slice(0, ROWS, dim=1)
    dq = warpgroup_mma(ds_tile, part, zero_q, use_acc=False, is_async=True)
    dk_sums = _add_products(dk_sums, ds_tile.permute((1, 0)), q_tiles, q_first + FIRST_K)
    dq = warpgroup_mma_wait(END_K - FIRST_K, deps=(dq,))
    mbarrier.arrive(do_empty.index(0), count=1)
    _hand_over(dq, dq_tiles, dq_full, dq_empty, dq_phase, GROUP)
    for n in gl.static_range(1, PASSES):
        if n < (END_K - FIRST_K) * PARTS:
            part = k_tiles.index(FIRST_K + n // PARTS).slice(n % PARTS * ROWS, ROWS, dim=1)
            dq = warpgroup_mma(ds_tile, part, zero_q, use_acc=False, is_async=True)
            dq = warpgroup_mma_wait(0, deps=(dq,))
            _hand_over(dq, dq_tiles, dq_full, dq_empty, dq_phase ^ (n & 1), GROUP)
        else:
            mbarrier.wait(dq_empty.index(0), dq_phase ^ (n & 1))
            mbarrier.arrive(dq_full.index(0), count=1)
    dk_sums = _ended(dk_sums)
    dv_sums = _ended(dv_sums)
    mbarrier.arrive(q_empty.index(stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
    return dk_sums, dv_sums, stage, phase, do_phase ^ 1, dq_phase ^ (PASSES & 1)


@jit
def _ended(sums):
    """Sums of which all products are waited for."""
    found = ()
    for c in gl.static_range(len(sums)):
        found += (warpgroup_mma_wait(0, deps=(sums[c],)),)
    return found


@jit
def _zeros(LAYOUT: gl.constexpr, WIDTH: gl.constexpr, COUNT: gl.constexpr):
    """COUNT tiles of sums."""
    found = ()
    for _ in gl.static_range(COUNT):
        found += (gl.zeros((ROWS, WIDTH), gl.float32, LAYOUT),)
    return found


@jit
def _multiply(
    data, tiles, steps, sizes, bounds,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, MASK: gl.constexpr, SOFTCAP: gl.constexpr,
    ALIBI: gl.constexpr, PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDQ: gl.constexpr,
    USEDKV: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: its columns of the sums."""
    (
        dk, dv, slopes, dk_strides, dv_strides, kv_full, group, slopes_stride, accumulate, softcap,
        scale,
    ) = data  # fmt: skip
    _, k_tiles, v_tiles, _, _, _, _, _, _, _, _, _, _, _, _ = tiles
    b, g, j0, _, _, kv_begin, begin, end = steps
    n_q, n_kv, room, shift, low, high = sizes
    RAGGED: gl.constexpr = PACKEDQ or USEDQ
    K_TILES: gl.constexpr = k_tiles.shape[0]
    V_TILES: gl.constexpr = v_tiles.shape[0]
    FIRST_K: gl.constexpr = begin_k(K_TILES, GROUP)
    FIRST_V: gl.constexpr = begin_v(K_TILES, V_TILES, GROUP)
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS // GROUPS, 16])
    WIDTH: gl.constexpr = k_tiles.shape[2]
    OF_SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    OF_DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    zero = gl.zeros((ROWS, ROWS // GROUPS), gl.float32, OF_S)
    zero_q = gl.zeros((ROWS, ROWS), gl.float32, OF_DQ)
    dk_sums = _zeros(OF_SUMS, WIDTH, begin_k(K_TILES, GROUP + 1) - FIRST_K)
    dv_sums = _zeros(OF_SUMS, WIDTH, begin_v(K_TILES, V_TILES, GROUP + 1) - FIRST_V)
    if begin < end:
        mbarrier.wait(kv_full.index(0), 0)
        if PACKEDKV or USEDKV:  # noqa: SIM102 - only the first is known when compiling
            if j0 + ROWS > n_kv:
                for c in gl.static_range(K_TILES):
                    clear(k_tiles.index(c), n_kv - j0)
                for c in gl.static_range(V_TILES):
                    clear(v_tiles.index(c), n_kv - j0)
    stage = 0
    phase = 0
    do_phase = 0
    dq_phase = 1  # nothing is being added yet
    for n in range(group):
        slope = 0.0
        if ALIBI:
            slope = gl.load(slopes + b * slopes_stride + g * group + n) * LOG2E
        for t in range(begin, low):
            dk_sums, dv_sums, stage, phase, do_phase, dq_phase = _step(
                tiles, dk_sums, dv_sums, zero, zero_q, stage, phase, do_phase, dq_phase, t * ROWS,
                j0, n_q, n_kv, shift, bounds, scale, softcap, slope,
                MASK, True, SOFTCAP, ALIBI, RAGGED, GROUP,
            )  # fmt: skip
        for t in range(low, high):
            dk_sums, dv_sums, stage, phase, do_phase, dq_phase = _step(
                tiles, dk_sums, dv_sums, zero, zero_q, stage, phase, do_phase, dq_phase, t * ROWS,
                j0, n_q, n_kv, shift, bounds, scale, softcap, slope,
                MASK, False, SOFTCAP, ALIBI, RAGGED, GROUP,
            )  # fmt: skip
        if MASK == "window":
            for t in range(high, end):
                dk_sums, dv_sums, stage, phase, do_phase, dq_phase = _step(
                    tiles, dk_sums, dv_sums, zero, zero_q, stage, phase, do_phase, dq_phase,
                    t * ROWS, j0, n_q, n_kv, shift, bounds, scale, softcap, slope,
                    MASK, True, SOFTCAP, ALIBI, RAGGED, GROUP,
                )  # fmt: skip
    kv_b = 0 if PACKEDKV else b
    for c in gl.static_range(len(dk_sums)):
        write_rows(
            dk, dk_strides, dk_sums[c], scale, kv_b, g, kv_begin, j0, n_kv, room, accumulate,
            (FIRST_K + c) * WIDTH, HEAD_DIM,
        )  # fmt: skip
    for c in gl.static_range(len(dv_sums)):
        write_rows(
            dv, dv_strides, dv_sums[c], 1.0, kv_b, g, kv_begin, j0, n_kv, room, accumulate,
            (FIRST_V + c) * WIDTH, HEAD_DIM_V,
        )  # fmt: skip


@jit
def gradients_gluon_wide(
    q, k, v, do, log_sums, deltas, dq_sums, turns, order, dk, dv, slopes, q_offsets, kv_offsets,
    q_used, kv_used, dk_strides, dv_strides, batch, heads, kv_heads, group, q_len, kv_len, total_kv,
    padded, kv_section, slopes_stride, accumulate, left, right, first, bottom_right, softcap, scale,
    HEAD_DIM: gl.constexpr, HEAD_DIM_V: gl.constexpr, MASK: gl.constexpr, SOFTCAP: gl.constexpr,
    ALIBI: gl.constexpr, PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDQ: gl.constexpr,
    USEDKV: gl.constexpr, PAD: gl.constexpr, ORDERED: gl.constexpr, BY_LENGTH: gl.constexpr,
):  # fmt: skip
    """dK and dV of 64 keys; what they add to dQ."""
    WIDTH: gl.constexpr = k.block_type.shape[-1]
    K_TILES: gl.constexpr = (HEAD_DIM + WIDTH - 1) // WIDTH
    V_TILES: gl.constexpr = (HEAD_DIM_V + WIDTH - 1) // WIDTH
    b, g, j0 = tile_of(
        order, batch, kv_heads, kv_len, total_kv, kv_offsets, kv_section,
        ROWS, PACKEDKV, BY_LENGTH, ORDERED,
    )  # fmt: skip
    q_begin, n_q = queries_of(b, q_len, q_offsets, q_used, PACKEDQ, USEDQ)
    kv_begin, n_kv = keys_of(b, kv_len, 0, kv_offsets, kv_used, PACKEDKV, USEDKV, False)
    _, room = keys_of(b, kv_len, 0, kv_offsets, kv_used, PACKEDKV, False, False)
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
    p_tiles = gl.allocate_shared_memory(q.dtype, [2, ROWS, ROWS], OF_P)
    ds_tiles = gl.allocate_shared_memory(q.dtype, [2, ROWS, ROWS], OF_P)
    dq_tiles = tiles_like(dq_sums, GROUPS)
    log_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], log_sums.layout)
    delta_tiles = gl.allocate_shared_memory(gl.float32, [1, ROWS], log_sums.layout)
    kv_full, _ = ring(1, 1)
    q_full, q_empty = ring(STAGES, GROUPS)
    do_full, do_empty = ring(1, GROUPS)
    dq_empty, dq_full = ring(1, GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    bounds = (left, right, first, bottom_right)
    steps = (b, g, j0, q_begin, terms_begin, kv_begin, begin, end)
    sizes = (n_q, n_kv, room, shift, low, high)
    own = (
        dk, dv, slopes, dk_strides, dv_strides, kv_full, group, slopes_stride, accumulate, softcap,
        scale,
    )  # fmt: skip
    tiles = (
        q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles, p_tiles, ds_tiles, dq_tiles,
        q_full, q_empty, do_full, do_empty, dq_full, dq_empty,
    )  # fmt: skip
    filled = (
        q, k, v, do, log_sums, deltas, q_tiles, k_tiles, v_tiles, do_tiles, log_tiles, delta_tiles,
        kv_full, q_full, q_empty, do_full, do_empty, heads, group, padded,
    )  # fmt: skip
    added = (dq_sums, turns, dq_tiles, dq_full, dq_empty, heads, group, padded)
    # Constants are written out for each group: in a tuple Triton 3.6 turns them into tensors.
    gl.warp_specialize(
        [
            (_multiply, (
                own, tiles, steps, sizes, bounds, HEAD_DIM, HEAD_DIM_V, MASK, SOFTCAP, ALIBI,
                PACKEDQ, PACKEDKV, USEDQ, USEDKV, 0,
            )),
            (_multiply, (
                own, tiles, steps, sizes, bounds, HEAD_DIM, HEAD_DIM_V, MASK, SOFTCAP, ALIBI,
                PACKEDQ, PACKEDKV, USEDQ, USEDKV, 1,
            )),
            (_fill, (filled, steps, PACKEDQ, PACKEDKV)),
            (add_blocks, (
                added, steps, sizes, bounds, ROWS, ROWS, MASK, GROUPS, K_TILES * WIDTH // ROWS,
                PACKEDQ, ORDERED,
            )),
        ],
        [4, 1, 1],
        [REGISTERS, OTHERS_REGISTERS, OTHERS_REGISTERS],
    )  # fmt: skip
