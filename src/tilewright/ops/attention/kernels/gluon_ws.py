"""Attention with warp roles written out, in Gluon: one warp loads, the others multiply (sm_90).

Idea. The order of FlashAttention-3 (see `gluon_tiles` for the paper), with a guessed maximum
(`gluon_guess`). One to three groups of four warps each have 64 rows of a tile of Q, and walk the
tile's keys in blocks. In a step a group starts Q·Kᵀ of one block, then P·V of the block before, and
takes the exponentials of the first while the second may still run. P stays in registers: the sums
of Q·Kᵀ lie in the layout of wgmma's left operand. Groups may also take turns (TURNS): a group
starts its products when the group before it has started its own, so one takes exponentials while
another multiplies.

Data movement. A fifth, ninth or thirteenth warp only requests copies; it also takes tiles (see
`gluon_tiles`), and tells the groups about them through shared memory. Q's barrier guards that
message as well. A ring of STAGES slots has the keys of a block and the values of the block before,
behind one barrier, and continues from tile to tile. Q has two slots where there is room (Q_STAGES):
a group then begins its next tile while the others still end theirs.

Masks. Blocks are walked from the last to the first. One loop has all kinds of blocks, and branches
around the mask; the first block, which has the sequence's end, stands before the loop, and takes
its maxima before its exponentials. With a bias each group has one slot for its rows of a block.
Under a mask of blocks the steps are those of a list, and the loading warp hands the first key of
each to the others with its slot.

Edges. The copy engine fills rows outside an array with zeros. If sequences have their own lengths,
a block may hold rows of the next sequence, or of nobody: their scores are masked, and V's rows are
set to zero in shared memory, because a weight of zero times NaN is NaN. There is always at least
one block, masked altogether if a row sees nothing. O leaves through shared memory by the copy
engine; where a tile reaches beyond its sequence, by pointers. fp32 O leaves from registers.

Head dims. Q and K are computed in multiples of 64 columns (of 192 in three pieces), V and O in 64,
128 or 256. At 256, and at 192/128, O leaves through Q's memory, and the next Q waits for it.

fp8. wgmma reads 8-bit operands along the summed dimension alone, so values lie by columns in
memory. Keys are copied in another order, so that weights stand in the threads that wgmma wants them
in (see `gluon_scores.keys`). wgmma adds 8-bit products with about 14 bits, so after 2,048 keys sums
are set aside in shared memory.

What limits it. Registers decide the tiles. bf16 at head dim 128 is limited by power, fp8 by
products and exponentials that cannot hide each other. At head dim 128 and 8k keys the best tiles
reach 703 TFLOP/s in bf16 and 954 in fp8. More measurements, and what was tried:
docs/notes/attention-gluon_ws.md.
"""

from tilewright.ops.attention.kernels.gluon_blocks import (
    Rows,
    brought_back,
    products,
    scored,
    set_aside,
    step,
    summed,
    with_sink,
)
from tilewright.ops.attention.kernels.gluon_guess import raised, rescaled
from tilewright.ops.attention.kernels.gluon_pieces import pieces
from tilewright.ops.attention.kernels.gluon_scores import in_base2, natural, rows, slope_of
from tilewright.ops.attention.kernels.gluon_tiles import (
    MESSAGE,
    ONE_WARP,
    across,
    clear,
    column_of,
    give_turn,
    heard,
    heard_key,
    key_of,
    lines_of,
    masked_steps,
    next_tile,
    steps_of,
    tell,
    tell_steps,
    tile_of,
    wait_for_turn,
    walked,
)
from tilewright.ops.attention.kernels.lengths import keys_of, queries_of
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    reinterpreted,
    thread_barrier,
    tma_load,
    tma_store,
    tma_store_wait,
    warpgroup_mma_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import barriers, tiles_of, turned
from tilewright.ops.device.gluon_roles import specialized

OF_TWO_REGISTERS = gl.constexpr(232)
OF_TWO_PRODUCER = gl.constexpr(40)
OF_THREE_REGISTERS = gl.constexpr(160)
LEAST_PRODUCER = gl.constexpr(32)

KEYS_TOGETHER = gl.constexpr(2048)
"""Keys of which 8-bit types are summed by wgmma alone."""

OF_SUMS = gl.constexpr(gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
"""Eight rows of a warp are written together, 32 bytes of each."""


Work = bundle(
    "Work",
    "q k v o o_rows lse slopes sinks o_strides"
    " q_tiles k_tiles k_boxes v_tiles o_tiles sums q_full q_empty full empty message"
    " counter q_offsets kv_offsets q_used kv_used q_scale k_scale v_scale scale_strides"
    " batch heads group q_len kv_len total_q total_kv new_kv section slopes_stride softcap scale"
    " bounds bias bias_batch bias_heads bias_tiles bias_full bias_empty"
    " block_list block_counts block_size block_heads columns"
    " TILE_Q TILE_KV COLUMNS HEAD_DIM_V MASK SCHEDULER COUNTED STAGES Q_STAGES GROUPS PIECES TURNS"
    " STAGING LSE SOFTCAP BIAS BLOCKS ALIBI SINKS PACKEDQ PACKEDKV USEDQ USEDKV APPEND SCALED",
)
"""What the warps of a workgroup have in common."""


@jit
def _fill(w):
    """The producer: takes tiles, tells the consumers about them, and loads Q, K, V and a bias."""
    ROWS: gl.constexpr = w.TILE_Q // w.GROUPS
    WIDTH: gl.constexpr = w.k.block_type.shape[-1]
    K_BYTES: gl.constexpr = w.PIECES * w.TILE_KV * WIDTH * w.k.dtype.primitive_bitwidth // 8
    V_BYTES: gl.constexpr = w.v.block_type.nbytes
    places, lines = lines_of(w)
    last = places * lines
    q_stage = 0
    q_phase = 1  # an unused slot counts as released
    stage = 0
    phase = 1
    bias_phase = 1
    number = gl.program_id(0)
    while number < last:
        b, h, row = tile_of(w, number, places, lines)
        q_begin, n_q = queries_of(
            b, w.q_len, w.total_q, w.q_offsets, w.q_used, w.PACKEDQ, w.USEDQ
        )  # fmt: skip
        kv_begin, n_kv = keys_of(
            b, w.kv_len, w.total_kv, w.new_kv, w.kv_offsets, w.kv_used, w.PACKEDKV, w.USEDKV,
            w.APPEND,
        )  # fmt: skip
        count, masked, way = walked(w, b, h, row, n_q, n_kv)
        q_b = 0 if w.PACKEDQ else b
        kv_b = 0 if w.PACKEDKV else b
        g = h // w.group

        mbarrier.wait(w.q_empty.index(q_stage), q_phase)
        tell(w.message, q_stage, b, h, row, n_q, n_kv, q_begin)
        if w.BLOCKS:
            tell_steps(w.message, q_stage, count, masked)
        q_full = w.q_full.index(q_stage)
        mbarrier.expect(q_full, w.GROUPS * w.PIECES * w.q.block_type.nbytes)
        for r in gl.static_range(w.GROUPS):
            for c in gl.static_range(w.PIECES):
                at = (q_b, h, q_begin + row + r * ROWS, c * WIDTH)
                q_tile = w.q_tiles.index((q_stage * w.GROUPS + r) * w.PIECES + c)
                tma_load(w.q, at, q_full, q_tile)
        q_stage, q_phase = turned(q_stage, q_phase, w.Q_STAGES)
        # A slot has keys of a block, and values of the block before: a step needs both.
        for i in range(count + 1):
            mbarrier.wait(w.empty.index(stage), phase)
            bar = w.full.index(stage)
            if w.BLOCKS:
                key = key_of(w, i, way, n_kv)
                w.columns.index(stage).store(gl.full((1,), key, gl.int32, ONE_WARP))
            if i == 0:
                mbarrier.expect(bar, K_BYTES)
            elif i < count:
                mbarrier.expect(bar, K_BYTES + V_BYTES)
            else:
                mbarrier.expect(bar, V_BYTES)
            if i < count:
                col = kv_begin + key_of(w, i, way, n_kv)
                for c in gl.static_range(w.PIECES):
                    tile = stage * w.PIECES + c
                    if w.k.dtype.primitive_bitwidth == 8:  # see `gluon_scores.keys`
                        for half in gl.static_range(2):
                            tma_load(
                                w.k, (kv_b, g, col // 4, 2 * half, c * WIDTH), bar,
                                w.k_boxes.index(2 * tile + half),
                            )  # fmt: skip
                    else:
                        tma_load(w.k, (kv_b, g, col, c * WIDTH), bar, w.k_boxes.index(tile))
            if i > 0:
                col = kv_begin + key_of(w, i - 1, way, n_kv)
                if w.v.dtype.primitive_bitwidth == 8:
                    tma_load(w.v, (kv_b, g, 0, col), bar, w.v_tiles.index(stage))
                else:
                    tma_load(w.v, (kv_b, g, col, 0), bar, w.v_tiles.index(stage))
            stage, phase = turned(stage, phase, w.STAGES)
            if w.BIAS:  # noqa: SIM102 - only this is known when compiling
                if i < count:
                    bias_b = gl.minimum(b, w.bias_batch - 1)
                    bias_h = gl.minimum(h, w.bias_heads - 1)
                    col = key_of(w, i, way, n_kv)
                    for r in gl.static_range(w.GROUPS):
                        mbarrier.wait(w.bias_empty.index(r), bias_phase)
                        mbarrier.expect(w.bias_full.index(r), w.bias.block_type.nbytes)
                        at = (bias_b, bias_h, row + r * ROWS, col)
                        tma_load(w.bias, at, w.bias_full.index(r), w.bias_tiles.index(r))
                    bias_phase ^= 1
        number = next_tile(w, number, last)
    mbarrier.wait(w.q_empty.index(q_stage), q_phase)
    tell(w.message, q_stage, 0, 0, -1, 0, 0, 0)
    mbarrier.arrive(w.q_full.index(q_stage), count=1)


@jit
def _negate(tile):
    """Change the signs of Q's rows."""
    ROWS: gl.constexpr = tile.shape[0]
    LAYOUT: gl.constexpr = across(tile.shape[1])
    STEP: gl.constexpr = 32
    for at in gl.static_range(0, ROWS, STEP):
        part = tile.slice(at, STEP)
        part.store((-part.load(LAYOUT).to(gl.float32)).to(tile.dtype))
    fence_async_shared()
    thread_barrier()


@jit
def _write_tile(o, out, tile, b, h, row):
    """Write rows of O through shared memory, which is being read when this returns."""
    tma_store_wait(0)
    tile.store(out)
    fence_async_shared()
    tma_store(o, (b, h, row, 0), tile)


@jit
def _write_rows(w, out, b, h, begin, row, n_q):
    """Write rows of O, those of the sequence alone."""
    OF_O: gl.constexpr = out.type.layout
    i = row + gl.arange(0, out.shape[0], gl.SliceLayout(1, OF_O))
    e = gl.arange(0, out.shape[1], gl.SliceLayout(0, OF_O))
    # What the arguments promise does not reach the partitions, and pairs are stored together.
    strides = w.o_strides
    start = w.o_rows + gl.multiple_of(b * strides[0] + h.to(gl.int64) * strides[2], 8)
    rows = gl.multiple_of((begin + i).to(gl.int64) * strides[1], 8)
    at = gl.expand_dims(rows, 1) + gl.expand_dims(e, 0)
    inside = gl.expand_dims(i < n_q, 1) & gl.expand_dims(e < w.HEAD_DIM_V, 0)
    gl.store(gl.multiple_of(start, 16) + at, out, mask=inside)


@jit
def _attend(w, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: its rows of every tile of this workgroup."""
    ROWS: gl.constexpr = w.TILE_Q // w.GROUPS
    DTYPE: gl.constexpr = w.q_tiles.dtype
    MMA_K: gl.constexpr = 256 // DTYPE.primitive_bitwidth
    OF_S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.TILE_KV, MMA_K])
    OF_O: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, w.COLUMNS, MMA_K])
    OF_P: gl.constexpr = gl.DotOperandLayout(0, OF_O, 32 // DTYPE.primitive_bitwidth)
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, OF_S)
    EIGHT: gl.constexpr = DTYPE.primitive_bitwidth == 8
    NAME: gl.constexpr = DTYPE.name
    RAISED: gl.constexpr = raised(NAME)
    APART: gl.constexpr = KEYS_TOGETHER // w.TILE_KV
    zero = gl.zeros((ROWS, w.TILE_KV), gl.float32, OF_S)
    piece = pieces(zero)[0]
    negative = w.scale < 0
    scale = gl.abs(w.scale)
    stage = 0
    phase = 0
    q_stage = 0
    q_phase = 0
    bias_phase = 0
    if w.TURNS:  # noqa: SIM102 - so that both are known when compiling
        if GROUP == w.GROUPS - 1:
            give_turn(0)
    mbarrier.wait(w.q_full.index(q_stage), q_phase)
    tile_row = heard(w.message, q_stage, 0)
    while tile_row >= 0:
        q_at = (q_stage * w.GROUPS + GROUP) * w.PIECES
        h = heard(w.message, q_stage, 1)
        b = heard(w.message, q_stage, 2)
        n_q = heard(w.message, q_stage, 3)
        # Also where it is an argument: else the compiler takes the edge's mask out of the loop over
        # tiles, and spills it.
        n_kv = heard(w.message, q_stage, 4)
        q_begin = heard(w.message, q_stage, 5)
        row = tile_row + GROUP * ROWS
        shift = w.bounds[3] * (n_kv - n_q)
        if w.BLOCKS:
            count = heard(w.message, q_stage, 6)
            begin = gl.maximum(heard(w.message, q_stage, 7), 1)
            end = count
        else:
            top, window, count = steps_of(w, tile_row, n_q, n_kv)
            begin, end = masked_steps(w, row, top, window, count, n_kv, shift)
        most = gl.full_like(piece, float("-inf"))
        total = gl.full_like(piece, 0.0)
        factor = scale
        if w.SCALED:
            of_scale = b * w.scale_strides[0] + h // w.group * w.scale_strides[1]
            factor *= gl.load(w.q_scale + of_scale) * gl.load(w.k_scale + of_scale)
        slope = 0.0
        if w.ALIBI:
            slope = slope_of(gl.load(w.slopes + b * w.slopes_stride + h))
        acc = gl.zeros((ROWS, w.COLUMNS), gl.float32, OF_O)
        if negative:  # a row's maximum is that of its products only under a positive scale
            for c in gl.static_range(w.PIECES):
                _negate(w.q_tiles.index(q_at + c))
        at = Rows(q_at, row, n_kv, shift, factor, slope, GROUP)

        # The first block has the mask's or the sequence's edge.
        mbarrier.wait(w.full.index(stage), phase)
        if w.TURNS:
            wait_for_turn(GROUP)
        s = products(w, at, stage, zero)
        if w.TURNS:
            give_turn((GROUP + 1) % w.GROUPS)
        s = warpgroup_mma_wait(0, deps=(s,))
        if w.BLOCKS:
            col = heard_key(w, stage)
        mbarrier.arrive(w.empty.index(stage), count=1)
        stage, phase = turned(stage, phase, w.STAGES)
        if not w.BLOCKS:
            col = column_of(0, top, window, count, w.TILE_KV)
        weights, most, total, again = scored(
            w, at, s, most, total, True, col, bias_phase, True, False, OF_P
        )
        bias_phase ^= 1
        # Values that were turned are zero there.
        if (w.PACKEDKV or w.USEDKV) and not EIGHT:  # noqa: SIM102 - only this is known when compiling
            if col + w.TILE_KV > n_kv:
                mbarrier.wait(w.full.index(stage), phase)
                clear(w.v_tiles.index(stage), n_kv - col)
        then = most
        for i in range(1, count):
            if EIGHT:  # noqa: SIM102 - only this is known when compiling
                if i % APART == 0:
                    acc, again, then = set_aside(
                        acc, again, most, then, w.sums.index(GROUP), i > APART
                    )
            if w.BLOCKS:
                col = 0  # comes with the slot
            else:
                col = column_of(i, top, window, count, w.TILE_KV)
            edge = (i < begin) | (i >= end)
            acc, weights, most, total, again, stage, phase = step(
                w, at, zero, acc, weights, most, total, again, stage, phase, edge, col, bias_phase,
                OF_P,
            )  # fmt: skip
            bias_phase ^= 1
        if w.STAGING != "q":
            mbarrier.arrive(w.q_empty.index(q_stage), count=1)
        mbarrier.wait(w.full.index(stage), phase)
        acc = rescaled(acc, again)
        more = summed(weights, w.v_tiles.index(stage), acc, OF_P)
        acc, weights = warpgroup_mma_wait(0, deps=(more, weights))
        mbarrier.arrive(w.empty.index(stage), count=1)
        stage, phase = turned(stage, phase, w.STAGES)
        if EIGHT:  # noqa: SIM102 - only this is known when compiling
            if count > APART:
                acc = brought_back(acc, most, then, w.sums.index(GROUP))
        total = gl.convert_layout(gl.sum(total, 1), OF_ROWS)
        most = gl.convert_layout(gl.max(most, 1), OF_ROWS)
        share = 1.0
        if w.SINKS:
            most, total, share = with_sink(most, total, in_base2(gl.load(w.sinks + h)), RAISED)
        share /= gl.where(total == 0.0, 1.0, total)
        if w.SCALED:
            share *= gl.load(w.v_scale + of_scale)
        log = natural(most + gl.log2(total) - RAISED)
        out = (acc * rows(share, acc)).to(w.o_rows.dtype.element_ty)

        if w.LSE:
            line = h * w.total_q + q_begin if w.PACKEDQ else (b * w.heads + h) * w.q_len
            within = row + gl.arange(0, ROWS, OF_ROWS)
            gl.store(w.lse + line + within, log, mask=within < n_q)
        o_b = 0 if w.PACKEDQ else b
        if w.STAGING == "none":
            _write_rows(w, out, o_b, h, q_begin, row, n_q)
        else:
            # In Q's memory, within the group's own rows of Q.
            IN_Q: gl.constexpr = w.STAGING == "q"
            WIDTH: gl.constexpr = w.PIECES * w.q_tiles.shape[-1] if IN_Q else w.COLUMNS
            NUMBER: gl.constexpr = 2 * GROUP if w.STAGING == "sums" else GROUP
            o_tile = w.o_tiles.index((NUMBER * WIDTH + w.COLUMNS - 1) // w.COLUMNS)
            if w.PACKEDQ or w.USEDQ:
                if row + ROWS <= n_q:
                    _write_tile(w.o, out, o_tile, o_b, h, q_begin + row)
                else:
                    _write_rows(w, out, o_b, h, q_begin, row, n_q)
            else:
                _write_tile(w.o, out, o_tile, o_b, h, row)  # which writes nothing outside of O
        if w.STAGING == "q":
            tma_store_wait(0)
            mbarrier.arrive(w.q_empty.index(q_stage), count=1)
        q_stage, q_phase = turned(q_stage, q_phase, w.Q_STAGES)
        mbarrier.wait(w.q_full.index(q_stage), q_phase)
        tile_row = heard(w.message, q_stage, 0)
    tma_store_wait(0)


@jit
def _half_tiles(described, COUNT: gl.constexpr):
    """Shared memory for halves of COUNT tiles of keys in an 8-bit type: see `keys`."""
    PAIRS: gl.constexpr = described.block_type.shape[-3]
    COLUMNS: gl.constexpr = described.block_type.shape[-1]
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [PAIRS, 2, COLUMNS], described.dtype
    )
    return gl.allocate_shared_memory(described.dtype, [2 * COUNT, PAIRS, 2, COLUMNS], LAYOUT)


@jit
def attention_gluon_ws(
    q, k, v, o, o_rows, lse, bias, slopes, sinks, q_offsets, kv_offsets, q_used, kv_used, q_scale,
    k_scale, v_scale, counter, block_list, block_counts, o_strides, kv_scale_strides, bias_batch,
    bias_heads, batch, heads, group, q_len, kv_len, total_q, total_kv, new_kv, section,
    slopes_stride, block_size, block_heads, left, right, first, bottom_right, softcap, scale,
    TILE_Q: gl.constexpr, TILE_KV: gl.constexpr, HEAD_DIM_V: gl.constexpr, MASK: gl.constexpr,
    SCHEDULER: gl.constexpr, STAGES: gl.constexpr, LSE: gl.constexpr, SOFTCAP: gl.constexpr,
    BIAS: gl.constexpr, BLOCKS: gl.constexpr, ALIBI: gl.constexpr, SINKS: gl.constexpr,
    PACKEDQ: gl.constexpr, PACKEDKV: gl.constexpr, USEDQ: gl.constexpr, USEDKV: gl.constexpr,
    APPEND: gl.constexpr, TSCALE: gl.constexpr, HSCALE: gl.constexpr, GROUPS: gl.constexpr,
    PIECES: gl.constexpr, COLUMNS: gl.constexpr, COUNTED: gl.constexpr, TURNS: gl.constexpr,
    STAGING: gl.constexpr, Q_STAGES: gl.constexpr,
):  # fmt: skip
    """O = softmax(mask(scale·Q·Kᵀ))·V, multiplied by GROUPS warp groups."""
    ROWS: gl.constexpr = TILE_Q // GROUPS
    q_tiles = tiles_of(q, Q_STAGES * GROUPS * PIECES)
    if k.dtype.primitive_bitwidth == 8:
        k_boxes = _half_tiles(k, STAGES * PIECES)
        WIDTH: gl.constexpr = k.block_type.shape[-1]
        OF_K: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE_KV, WIDTH], k.dtype)
        k_tiles = reinterpreted(k_boxes, k.dtype, [STAGES * PIECES, TILE_KV, WIDTH], OF_K)
        sums = gl.allocate_shared_memory(gl.float32, [GROUPS, ROWS, COLUMNS], OF_SUMS)
    else:
        k_tiles = tiles_of(k, STAGES * PIECES)
        k_boxes = k_tiles
        sums = k_tiles
    v_tiles = tiles_of(v, STAGES)
    OF_STAGED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], o.dtype)
    if STAGING == "own":
        o_tiles = tiles_of(o, GROUPS)
    elif STAGING == "sums":  # of which a group has two tiles of O
        o_tiles = reinterpreted(sums, o.dtype, [2 * GROUPS, ROWS, COLUMNS], OF_STAGED)
    elif STAGING == "q":
        COUNT: gl.constexpr = GROUPS * PIECES * q.block_type.shape[-1] // COLUMNS
        o_tiles = reinterpreted(q_tiles, o.dtype, [COUNT, ROWS, COLUMNS], OF_STAGED)
    else:
        o_tiles = q_tiles
    q_full, q_empty = barriers(Q_STAGES, GROUPS)
    full, empty = barriers(STAGES, GROUPS)
    message = gl.allocate_shared_memory(
        gl.int32, [Q_STAGES * MESSAGE, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    columns = None  # without a mask of blocks nobody looks there
    if BLOCKS:
        columns = gl.allocate_shared_memory(gl.int32, [STAGES, 1], message.type.layout)
    bias_tiles, bias_full, bias_empty = q_tiles, full, empty  # without a bias nobody looks there
    if BIAS:
        bias_tiles = tiles_of(bias, GROUPS)
        bias_full, bias_empty = barriers(GROUPS, 1)
    fence_async_shared()  # the copy engine sees the barriers too
    w = Work(
        q, k, v, o, o_rows, lse, slopes, sinks, o_strides,
        q_tiles, k_tiles, k_boxes, v_tiles, o_tiles, sums, q_full, q_empty, full, empty, message,
        counter, q_offsets, kv_offsets, q_used, kv_used, q_scale, k_scale, v_scale,
        kv_scale_strides, batch, heads, group, q_len, kv_len, total_q, total_kv, new_kv, section,
        slopes_stride, softcap, scale, (left, right, first, bottom_right),
        bias, bias_batch, bias_heads, bias_tiles, bias_full, bias_empty,
        block_list, block_counts, block_size, block_heads, columns,
        TILE_Q, TILE_KV, COLUMNS, HEAD_DIM_V, MASK, SCHEDULER, COUNTED, STAGES, Q_STAGES, GROUPS,
        PIECES, TURNS, STAGING, LSE, SOFTCAP, BIAS, BLOCKS, ALIBI, SINKS, PACKEDQ, PACKEDKV, USEDQ,
        USEDKV, APPEND, TSCALE or HSCALE,
    )  # fmt: skip
    REGISTERS: gl.constexpr = OF_THREE_REGISTERS if GROUPS == 3 else OF_TWO_REGISTERS
    PRODUCER: gl.constexpr = OF_TWO_PRODUCER if GROUPS == 2 else LEAST_PRODUCER
    specialized(_attend, (w,), _fill, (w,), GROUPS, REGISTERS, PRODUCER)
