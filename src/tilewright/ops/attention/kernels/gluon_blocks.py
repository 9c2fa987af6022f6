"""Steps over blocks of keys, of one warp group's rows, in Gluon for sm_90; used by `gluon_ws`.

A step of 16-bit types multiplies the weights of the block before by its values, under the scores of
its own. One of 8-bit types ends with the values of its own block.
"""

from tilewright.ops.attention.kernels.gluon_scores import base2, changed, masked, weights_of
from tilewright.ops.attention.kernels.gluon_tiles import slot_before, turned
from tilewright.ops.device.gluon_api import (
    gl,
    jit,
    mbarrier,
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


MOST = gl.constexpr(128)
PART = gl.constexpr(32)
"""Columns of O that 8-bit types are multiplied with at once: up to MOST all of them, else PART, as
the sums of a block stand beside those of all, and take registers."""


@jit
def _halves(acc):
    """Left and right columns of sums; nothing moves."""
    ROWS: gl.constexpr = acc.shape[0]
    HALF: gl.constexpr = acc.shape[1] // 2
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 32])
    left, right = gl.split(gl.permute(gl.reshape(acc, (ROWS, 2, HALF)), (0, 2, 1)))
    left = gl.convert_layout(left, LAYOUT, assert_trivial=True)
    return left, gl.convert_layout(right, LAYOUT, assert_trivial=True)


@jit
def _joined(left, right, LAYOUT: gl.constexpr):
    """What `_halves` took apart."""
    ROWS: gl.constexpr = left.shape[0]
    COLUMNS: gl.constexpr = left.shape[1] * 2
    acc = gl.reshape(gl.permute(gl.join(left, right), (0, 2, 1)), (ROWS, COLUMNS))
    return gl.convert_layout(acc, LAYOUT, assert_trivial=True)


@jit
def _part(acc, weights, v_tile, AT: gl.constexpr):
    """Sums with P·V of a block, of the columns from AT of the tile."""
    columns = v_tile.slice(AT, acc.shape[1]).permute((1, 0))
    more = warpgroup_mma(weights, columns, gl.zeros_like(acc), use_acc=False, is_async=True)
    return acc + warpgroup_mma_wait(0, deps=(more,))


@jit
def _parts(acc, weights, v_tile, AT: gl.constexpr):
    """The same, part by part."""
    COLUMNS: gl.constexpr = acc.shape[1]
    if COLUMNS > PART:
        OF_O: gl.constexpr = acc.type.layout
        left, right = _halves(acc)
        left = _parts(left, weights, v_tile, AT)
        right = _parts(right, weights, v_tile, AT + COLUMNS // 2)
        acc = _joined(left, right, OF_O)
    else:
        acc = _part(acc, weights, v_tile, AT)
    return acc


@jit
def rows(column, acc):
    """A number for each row of the scores, for the rows of the sums `acc`."""
    OF_O: gl.constexpr = acc.type.layout
    return gl.expand_dims(
        gl.convert_layout(column, gl.SliceLayout(1, OF_O), assert_trivial=True), 1
    )


@jit
def scored(
    s, most, total, edge, row, col, n_kv, shift, bounds, scale, softcap, slope, MASK: gl.constexpr,
    EDGES: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, RAISED: gl.constexpr,
):  # fmt: skip
    """See `weights_of`; from products. `edge`: some rows do not see some of the keys."""
    SCALED: gl.constexpr = SOFTCAP or ALIBI
    if SCALED:
        s = changed(s, row, col, shift, scale, softcap, slope, SOFTCAP, ALIBI)
    if EDGES:  # noqa: SIM102 - only the first is known when compiling
        if edge:
            left, right, first, _ = bounds
            s = masked(s, row, col, n_kv, shift, left, right, first, MASK)
    return weights_of(s, most, total, base2(scale), SCALED, EDGES, RAISED)


@jit
def step(
    q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, turns, zero, acc, weights, most,
    total, again, q_at, stage, phase, turn, edge, row, col, n_kv, shift, bounds, scale, softcap,
    slope, MASK: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, GROUP: gl.constexpr, PIECES: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """Scores and weights of one block, under the sum with the weights of the block before."""
    v_stage, v_phase = slot_before(stage, phase, STAGES)
    mbarrier.wait(k_full.index(stage), phase)
    if TURNS:
        mbarrier.wait(turns.index(GROUP), turn)
        turn ^= 1
    s = products(q_tiles, k_tiles, q_at, stage, zero, PIECES)
    acc = acc * rows(again, acc)
    mbarrier.wait(v_full.index(v_stage), v_phase)
    more = warpgroup_mma(weights, v_tiles.index(v_stage), acc, is_async=True)
    if TURNS:
        mbarrier.arrive(turns.index((GROUP + 1) % GROUPS), count=1)
    s = warpgroup_mma_wait(1, deps=(s,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    p, most, total, again = scored(
        s, most, total, edge, row, col, n_kv, shift, bounds, scale, softcap, slope,
        MASK, MASK != "none", SOFTCAP, ALIBI, 0,
    )  # fmt: skip
    acc, weights = warpgroup_mma_wait(0, deps=(more, weights))
    mbarrier.arrive(v_empty.index(v_stage), count=1)
    DTYPE: gl.constexpr = weights.dtype
    OF_P: gl.constexpr = weights.type.layout
    weights = gl.convert_layout(p.to(DTYPE), OF_P, assert_trivial=True)
    stage, phase = turned(stage, phase, STAGES)
    return acc, weights, most, total, again, stage, phase, turn


@jit
def step_of_eight(
    q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, zero, acc, most, total, q_at,
    stage, phase, edge, row, col, n_kv, shift, bounds, scale, softcap, slope, OF_P: gl.constexpr,
    MASK: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, STAGES: gl.constexpr,
    PIECES: gl.constexpr,
):  # fmt: skip
    """The same of one block in an 8-bit type, from its scores to its sums. Weights that pass from
    step to step would each take a whole register, since Triton holds them one by one; and wgmma
    adds 8-bit products with about 14 bits, so a block is summed alone, and added in fp32."""
    mbarrier.wait(k_full.index(stage), phase)
    s = products(q_tiles, k_tiles, q_at, stage, zero, PIECES)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    p, most, total, again = scored(
        s, most, total, edge, row, col, n_kv, shift, bounds, scale, softcap, slope,
        MASK, True, SOFTCAP, ALIBI, RAISED,
    )  # fmt: skip
    p = gl.convert_layout(p.to(v_tiles.dtype), OF_P)
    mbarrier.wait(v_full.index(stage), phase)
    acc = acc * rows(again, acc)
    if acc.shape[1] > MOST:
        acc = _parts(acc, p, v_tiles.index(stage), 0)
    else:
        acc = _part(acc, p, v_tiles.index(stage), 0)
    mbarrier.arrive(v_empty.index(stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
    return acc, most, total, stage, phase
