"""Steps over blocks of keys, of one warp group's rows, in Gluon for sm_90; used by `gluon_ws`.

A step multiplies the weights of the block before by its values, under the scores of its own. `w`
is the kernel's bundle (`gluon_ws.Work`), `at` the `Rows` that a group computes.
"""

from tilewright.ops.attention.kernels.gluon_guess import (
    multiplied,
    operand,
    rescaled,
    unpacked,
    weights_of,
)
from tilewright.ops.attention.kernels.gluon_scores import base2, bias_in_base2, changed, masked
from tilewright.ops.attention.kernels.gluon_tiles import give_turn, heard_key, wait_for_turn
from tilewright.ops.device.gluon_api import (
    gl,
    jit,
    mbarrier,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import turned

Rows = bundle("Rows", "q_at row n_kv shift scale slope GROUP")
"""A group's rows of a tile: the first of Q's tiles that hold them; the first row; the sequence's
keys, and how many the last query is behind the last key; what its products are multiplied by, not
negative; the head's slope of ALiBi, from `slope_of`; the group's number."""


@jit
def products(w, at, stage, zero):
    """Q·Kᵀ of the group's rows and one block, started."""
    s = zero
    for c in gl.static_range(w.PIECES):
        q_tile = w.q_tiles.index(at.q_at + c)
        k_tile = w.k_tiles.index(stage * w.PIECES + c).permute((1, 0))
        s = warpgroup_mma(q_tile, k_tile, s, use_acc=c > 0, is_async=True)
    return s


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
def scored(
    w, at, s, most, total, edge, col, bias_phase, EDGES: gl.constexpr, GUESS: gl.constexpr,
    OF_P: gl.constexpr,
):  # fmt: skip
    """(weights, maximum, sum, again), as `gluon_guess.weights_of`, from products with the block
    from key `col` on. `edge`: some rows do not see some of its keys."""
    DTYPE: gl.constexpr = w.v_tiles.dtype
    EIGHT: gl.constexpr = DTYPE.primitive_bitwidth == 8
    NAME: gl.constexpr = DTYPE.name
    if w.BIAS:
        mbarrier.wait(w.bias_full.index(at.GROUP), bias_phase)
        bias_tile = w.bias_tiles.index(at.GROUP)
    factor = base2(at.scale)
    if w.SOFTCAP or w.ALIBI or w.BIAS:
        s = changed(
            s, at.row, col, at.shift, at.scale, w.softcap, at.slope, w.SOFTCAP, w.ALIBI, EIGHT
        )
        factor = 1.0
    if w.BIAS:
        s += bias_in_base2(bias_tile.load(s.type.layout))
    if EDGES:  # noqa: SIM102 - only the first is known when compiling
        if edge:
            left, right, first, _ = w.bounds
            s = masked(s, at.row, col, at.n_kv, at.shift, left, right, first, w.MASK, EIGHT)
    words, most, total, again = weights_of(s, most, total, factor, NAME, GUESS)
    weights = operand(words, DTYPE, OF_P)
    if w.BIAS:  # the group's next tile of the bias may come
        mbarrier.arrive(w.bias_empty.index(at.GROUP), count=1)
    return weights, most, total, again


@jit
def step(
    w, at, zero, acc, weights, most, total, again, stage, phase, edge, col, bias_phase,
    OF_P: gl.constexpr,
):  # fmt: skip
    """Scores and weights of one block, under the sum with the weights of the block before. The
    slot has the block's keys, and the values of the block before. col: the block's first key; under
    a mask of blocks the slot says it."""
    mbarrier.wait(w.full.index(stage), phase)
    if w.TURNS:
        wait_for_turn(at.GROUP)
    if w.BLOCKS:
        col = heard_key(w, stage)
    s = products(w, at, stage, zero)
    acc = rescaled(acc, again)
    more = summed(weights, w.v_tiles.index(stage), acc, OF_P)
    if w.TURNS:
        give_turn((at.GROUP + 1) % w.GROUPS)
    s = warpgroup_mma_wait(1, deps=(s,))
    next_weights, most, total, again = scored(
        w, at, s, most, total, edge, col, bias_phase, w.MASK != "none", True, OF_P
    )
    acc, weights = warpgroup_mma_wait(0, deps=(more, weights))
    mbarrier.arrive(w.empty.index(stage), count=1)
    stage, phase = turned(stage, phase, w.STAGES)
    return acc, next_weights, most, total, again, stage, phase


@jit
def set_aside(acc, again, most, then, sums, more):
    """Move sums to shared memory, to those there if there are some (`more`), and begin anew.

    then: the maximum that the sums in memory are relative to. Returns (sums, what they are
    multiplied by, maximum of those in memory).
    """
    acc = rescaled(acc, again)
    if more:
        acc = brought_back(acc, most, then, sums)
    tma_store_wait(0)  # O of the tile before may still be read there
    sums.store(acc)
    return gl.zeros_like(acc), gl.full_like(again, 1.0), most


@jit
def brought_back(acc, most, then, sums):
    """Sums with those that were set aside."""
    LAYOUT: gl.constexpr = acc.type.layout
    base = gl.where(most == float("-inf"), 0.0, most)
    return acc + multiplied(sums.load(LAYOUT), gl.exp2(then - base))


@jit
def with_sink(most, total, sink, RAISED: gl.constexpr):
    """(maximum, sum, what the sums of values are multiplied by) of rows that a sink, of base 2,
    joins. It comes last: a sink over all of a row's scores would leave the weights few bits."""
    top = gl.maximum(most, sink)
    base = gl.where(top == float("-inf"), 0.0, top)
    again = gl.exp2(most - base)
    return top, total * again + gl.exp2(sink - base + RAISED), again
