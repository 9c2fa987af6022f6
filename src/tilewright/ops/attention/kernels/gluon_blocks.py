"""Steps over blocks of keys, of one warp group's rows, in Gluon for sm_90; used by `gluon_ws`.

A step multiplies the weights of the block before by its values, under the scores of its own.
"""

from tilewright.ops.attention.kernels.gluon_scores import (
    LOG2E,
    base2,
    changed,
    masked,
    rows,
    weights_of,
)
from tilewright.ops.attention.kernels.gluon_tiles import (
    give_turn,
    slot_before,
    turned,
    wait_for_turn,
)
from tilewright.ops.device.gluon_api import (
    gl,
    jit,
    mbarrier,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)

RAISED = gl.constexpr(8)
"""The power of 2 that weights of 8 bits are multiplied by: so they use the range of their type (to
448), of which small ones would else be lost."""


@jit
def products(q_tiles, k_tiles, q_at, stage, zero, PIECES: gl.constexpr):
    """Q·Kᵀ of the group's rows, from tile `q_at` on, and one block, started."""
    s = zero
    for c in gl.static_range(PIECES):
        q_tile = q_tiles.index(q_at + c)
        k_tile = k_tiles.index(stage * PIECES + c).permute((1, 0))
        s = warpgroup_mma(q_tile, k_tile, s, use_acc=c > 0, is_async=True)
    return s


PACK = gl.constexpr(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; "
    "cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; mov.b32 $0, {low, high}; }"
)
"""Four numbers to e4m3, the first in the lowest byte."""


@jit
def packed(p):
    """Weights as words of four keys in e4m3. What passes from step to step takes a whole register
    for each element, which words fill. Nothing moves between threads: see `keys`."""
    ROWS: gl.constexpr = p.shape[0]
    KEYS: gl.constexpr = p.shape[1]
    p = gl.permute(gl.reshape(p, (ROWS, 2, KEYS // 4, 2)), (0, 2, 3, 1))
    left, right = gl.split(p)
    a, b = gl.split(left)
    c, d = gl.split(right)
    return gl.inline_asm_elementwise(
        PACK, "=r,f,f,f,f", [a, b, c, d], gl.int32, is_pure=True, pack=1
    )


@jit
def unpacked(words, DTYPE: gl.constexpr, OF_P: gl.constexpr):
    """What `packed` packed, as wgmma's left operand."""
    ROWS: gl.constexpr = words.shape[0]
    KEYS: gl.constexpr = words.shape[1] * 4
    low = words.to(gl.int16)
    high = (words >> 16).to(gl.int16)
    left = gl.join(low.to(gl.int8), (low >> 8).to(gl.int8))
    right = gl.join(high.to(gl.int8), (high >> 8).to(gl.int8))
    p = gl.reshape(gl.permute(gl.join(left, right), (0, 1, 3, 2)), (ROWS, KEYS))
    return gl.convert_layout(p.to(DTYPE, bitcast=True), OF_P, assert_trivial=True)


@jit
def settled(words):
    """The same words, known before what follows: else ptxas moves the exponentials behind the wait
    for P·V. It moves no computation behind a store, also if no workgroup ever stores."""
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
        "=r,=r,=r,=r,r,r,r,r", [words], gl.int32, is_pure=False, pack=4,
    )  # fmt: skip


@jit
def held(p, DTYPE: gl.constexpr, OF_P: gl.constexpr):
    """Weights as they pass from step to step."""
    if DTYPE.primitive_bitwidth == 8:
        weights = packed(p)
    else:
        weights = gl.convert_layout(p.to(DTYPE), OF_P, assert_trivial=True)
    return weights


@jit
def summed(weights, v_tile, acc, OF_P: gl.constexpr):
    """Sums with P·V of a block, started."""
    DTYPE: gl.constexpr = v_tile.dtype
    if DTYPE.primitive_bitwidth == 8:
        p = unpacked(weights, DTYPE, OF_P)
        more = warpgroup_mma(p, v_tile.permute((1, 0)), acc, is_async=True)
    else:
        more = warpgroup_mma(weights, v_tile, acc, is_async=True)
    return more


@jit
def bias_of(biases, GROUP: gl.constexpr, phase):
    """The group's tile of the bias, when it is there; None if there is no bias."""
    tile = None
    if len(biases) > 0:
        tiles, full, _ = biases
        mbarrier.wait(full.index(GROUP), phase)
        tile = tiles.index(GROUP)
    return tile


@jit
def read(biases, GROUP: gl.constexpr):
    """Let the group's next tile of the bias come."""
    if len(biases) > 0:
        _, _, empty = biases
        mbarrier.arrive(empty.index(GROUP), count=1)


@jit
def scored(
    s, most, total, edge, row, col, n_kv, shift, bounds, scale, softcap, slope, MASK: gl.constexpr,
    EDGES: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, EIGHT: gl.constexpr,
    bias_tile=None,
):  # fmt: skip
    """See `weights_of`; from products. `edge`: some rows do not see some of the keys. bias_tile:
    what is added to the scores, in shared memory; None: nothing."""
    BIAS: gl.constexpr = bias_tile is not None
    SCALED: gl.constexpr = SOFTCAP or ALIBI or BIAS
    if SCALED:
        s = changed(s, row, col, shift, scale, softcap, slope, SOFTCAP, ALIBI, EIGHT)
    if BIAS:
        s += bias_tile.load(s.type.layout).to(gl.float32) * LOG2E
    if EDGES:  # noqa: SIM102 - only the first is known when compiling
        if edge:
            left, right, first, _ = bounds
            s = masked(s, row, col, n_kv, shift, left, right, first, MASK, EIGHT)
    LIFT: gl.constexpr = RAISED if EIGHT else 0
    # A bias may be minus infinity, and so may a row's maximum be.
    return weights_of(s, most, total, base2(scale), SCALED, EDGES or BIAS, LIFT, EIGHT)


@jit
def step(
    q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, zero, acc, weights, most,
    total, again, q_at, stage, phase, edge, row, col, n_kv, shift, bounds, scale, softcap,
    slope, MASK: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, GROUP: gl.constexpr, PIECES: gl.constexpr, TURNS: gl.constexpr,
    OF_P: gl.constexpr, biases=(), bias_phase=0,
):  # fmt: skip
    """Scores and weights of one block, under the sum with the weights of the block before."""
    DTYPE: gl.constexpr = v_tiles.dtype
    v_stage, v_phase = slot_before(stage, phase, STAGES)
    mbarrier.wait(k_full.index(stage), phase)
    if TURNS:
        wait_for_turn(GROUP)
    s = products(q_tiles, k_tiles, q_at, stage, zero, PIECES)
    acc = acc * rows(again, acc)
    mbarrier.wait(v_full.index(v_stage), v_phase)
    more = summed(weights, v_tiles.index(v_stage), acc, OF_P)
    if TURNS:
        give_turn((GROUP + 1) % GROUPS)
    s = warpgroup_mma_wait(1, deps=(s,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    p, most, total, again = scored(
        s, most, total, edge, row, col, n_kv, shift, bounds, scale, softcap, slope,
        MASK, MASK != "none", SOFTCAP, ALIBI, DTYPE.primitive_bitwidth == 8,
        bias_of(biases, GROUP, bias_phase),
    )  # fmt: skip
    read(biases, GROUP)
    if DTYPE.primitive_bitwidth == 8:
        words = settled(packed(p))
        acc, weights = warpgroup_mma_wait(0, deps=(more, weights))
        weights = words
    else:
        acc, weights = warpgroup_mma_wait(0, deps=(more, weights))
        weights = gl.convert_layout(p.to(DTYPE), OF_P, assert_trivial=True)
    mbarrier.arrive(v_empty.index(v_stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
    return acc, weights, most, total, again, stage, phase


@jit
def set_aside(acc, again, most, then, sums, more):
    """Move sums to shared memory, to those there if there are some (`more`), and begin anew.

    then: the maximum that the sums in memory are relative to. Returns (sums, what they are
    multiplied by, maximum of those in memory).
    """
    acc = acc * rows(again, acc)
    if more:
        acc = brought_back(acc, most, then, sums)
    tma_store_wait(0)  # O of the tile before may still be read there
    sums.store(acc)
    return gl.zeros_like(acc), gl.full_like(again, 1.0), most


@jit
def brought_back(acc, most, then, sums):
    """Sums with those that were set aside."""
    base = gl.where(most == float("-inf"), 0.0, most)
    return acc + sums.load(acc.type.layout) * rows(gl.exp2(then - base), acc)
