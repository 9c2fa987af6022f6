"""Steps over blocks of keys, of one warp group's rows, in Gluon for sm_90; used by `gluon_ws`.

A step multiplies the weights of the block before by its values, under the scores of its own.
"""

from tilewright.ops.attention.kernels.gluon_guess import (
    multiplied,
    operand,
    rescaled,
    unpacked,
    weights_of,
)
from tilewright.ops.attention.kernels.gluon_scores import base2, bias_in_base2, changed, masked
from tilewright.ops.attention.kernels.gluon_tiles import give_turn, turned, wait_for_turn
from tilewright.ops.device.gluon_api import (
    gl,
    jit,
    mbarrier,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@jit
def products(q_tiles, k_tiles, q_at, stage, zero, PIECES: gl.constexpr):
    """Q·Kᵀ of the group's rows, from tile `q_at` on, and one block, started."""
    s = zero
    for c in gl.static_range(PIECES):
        q_tile = q_tiles.index(q_at + c)
        k_tile = k_tiles.index(stage * PIECES + c).permute((1, 0))
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
    EDGES: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, GUESS: gl.constexpr,
    DTYPE: gl.constexpr, OF_P: gl.constexpr, bias_tile=None,
):  # fmt: skip
    """(weights, maximum, sum, again), as `gluon_guess.weights_of`, from products. `edge`: some rows
    do not see some of the keys. bias_tile: what is added to the scores, in shared memory; None:
    nothing."""
    BIAS: gl.constexpr = bias_tile is not None
    EIGHT: gl.constexpr = DTYPE.primitive_bitwidth == 8
    NAME: gl.constexpr = DTYPE.name
    factor = base2(scale)
    if SOFTCAP or ALIBI or BIAS:
        s = changed(s, row, col, shift, scale, softcap, slope, SOFTCAP, ALIBI, EIGHT)
        factor = 1.0
    if BIAS:
        s += bias_in_base2(bias_tile.load(s.type.layout))
    if EDGES:  # noqa: SIM102 - only the first is known when compiling
        if edge:
            left, right, first, _ = bounds
            s = masked(s, row, col, n_kv, shift, left, right, first, MASK, EIGHT)
    words, most, total, again = weights_of(s, most, total, factor, NAME, GUESS)
    return operand(words, DTYPE, OF_P), most, total, again


@jit
def step(
    q_tiles, k_tiles, v_tiles, full, empty, zero, acc, weights, most, total, again, q_at, stage,
    phase, edge, row, col, n_kv, shift, bounds, scale, softcap, slope, MASK: gl.constexpr,
    SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
    GROUP: gl.constexpr, PIECES: gl.constexpr, TURNS: gl.constexpr, OF_P: gl.constexpr, biases=(),
    bias_phase=0,
):  # fmt: skip
    """Scores and weights of one block, under the sum with the weights of the block before. The
    slot has the block's keys, and the values of the block before."""
    mbarrier.wait(full.index(stage), phase)
    if TURNS:
        wait_for_turn(GROUP)
    s = products(q_tiles, k_tiles, q_at, stage, zero, PIECES)
    acc = rescaled(acc, again)
    more = summed(weights, v_tiles.index(stage), acc, OF_P)
    if TURNS:
        give_turn((GROUP + 1) % GROUPS)
    s = warpgroup_mma_wait(1, deps=(s,))
    next_weights, most, total, again = scored(
        s, most, total, edge, row, col, n_kv, shift, bounds, scale, softcap, slope,
        MASK, MASK != "none", SOFTCAP, ALIBI, True, v_tiles.dtype, OF_P,
        bias_of(biases, GROUP, bias_phase),
    )  # fmt: skip
    read(biases, GROUP)
    acc, weights = warpgroup_mma_wait(0, deps=(more, weights))
    mbarrier.arrive(empty.index(stage), count=1)
    stage, phase = turned(stage, phase, STAGES)
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
