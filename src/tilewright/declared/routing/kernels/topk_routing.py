"""Tokens to their best experts.

Idea. A workgroup holds the logits of ROWS tokens in registers. Choosing is taking the largest k
times (`_largest`). Softmax and sigmoid keep the order of logits, so experts are chosen by the
logits themselves, unless a bias or a sum of two decides: equal logits are then the only ties. The
chosen logits are read once more, from L1, and the weights are made of these few.

Groups. Experts of a group lie together, so a tile is also [rows, groups, experts of a group]. Where
experts or groups are no power of two, each group begins at a multiple of SPAN in the tile.

What limits it: reductions between lanes, k times; memory moves little. In graphs,
an H200 (2026-11-30) took 2.61 µs for 4 of 128 experts of 1,024 tokens, where compiled torch took
26.6, and 21.8 for 8 of 384 experts of 7,009 tokens with a bias, where it took 154.
"""

import triton
import triton.language as tl

from tilewright.declared.routing.kernels._largest import (
    NOTHING,
    best,
    largest,
    number,
    ordered,
    power_of_two,
)


@triton.jit
def scored(logits, most, total, scoring: tl.constexpr):
    """The scores of logits."""
    found = logits
    if scoring == "sigmoid":
        found = 1.0 / (1.0 + tl.exp(-logits))
    elif scoring == "softmax":
        found = tl.exp(logits - most) / total
    return found


@triton.jit
def denominator(logits, scoring: tl.constexpr):
    """The largest logit of each row, and the sum of the exponentials of the rest from it."""
    most = tl.max(logits, 1)[:, None]
    total = most
    if scoring == "softmax":
        total = tl.sum(tl.exp(logits - most), 1)[:, None]
    return most, total


@triton.jit
def of_best_groups(
    keys, n_group: tl.constexpr, topk_group: tl.constexpr, group_score: tl.constexpr
):
    """The keys of each row's best groups; NOTHING in the others."""
    ROWS: tl.constexpr = keys.shape[0]
    BLOCK: tl.constexpr = keys.shape[1]
    GROUPS: tl.constexpr = power_of_two(n_group)
    SPAN: tl.constexpr = BLOCK // GROUPS
    apart = keys.reshape(ROWS * GROUPS, SPAN)
    place = tl.arange(0, SPAN)[None, :]
    score, at = best(apart, place)
    if group_score == "top2":
        second = tl.max(tl.where(place == at[:, None], NOTHING, apart), 1)
        score = ordered(number(score) + number(second))
    score = score.reshape(ROWS, GROUPS)
    group = tl.arange(0, GROUPS)[None, :]
    score = tl.where(group < n_group, score, NOTHING)
    _, left = largest(score, group, topk_group, GROUPS)
    taken = (left != score)[:, :, None]
    return tl.where(taken, keys.reshape(ROWS, GROUPS, SPAN), NOTHING).reshape(ROWS, BLOCK)


@triton.jit
def routed(
    logits, bias, weights, ids, rows, experts, logits_stride, routed_scaling_factor,
    k: tl.constexpr, scoring: tl.constexpr, renormalize: tl.constexpr, n_group: tl.constexpr,
    topk_group: tl.constexpr, group_score: tl.constexpr, has_bias: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The experts [ROWS, k up to a power of two] of ROWS tokens, written with their weights. WHOLE:
    the experts fill the tile."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    from_logits = logits + row[:, None] * logits_stride
    expert = tl.arange(0, BLOCK)[None, :]
    real = expert < experts
    if WHOLE:
        real = expert >= 0
    elif n_group > 1:
        SPAN: tl.constexpr = BLOCK // power_of_two(n_group)
        each = experts // n_group
        real = (expert % SPAN < each) & (expert < SPAN * n_group)
        expert = expert // SPAN * each + expert % SPAN
    held = tl.load(from_logits + expert, there & real, float("-inf")).to(tl.float32)
    most, total = denominator(held, scoring)
    by = held
    if has_bias or (n_group > 1 and group_score == "top2"):
        by = scored(held, most, total, scoring)
    if has_bias:
        by += tl.load(bias + expert, real, 0.0)
    keys = tl.where(real, ordered(by), NOTHING)
    if n_group > 1:
        keys = of_best_groups(keys, n_group, topk_group, group_score)

    SLOTS: tl.constexpr = power_of_two(k)
    chosen, _ = largest(keys, expert, k, SLOTS)
    slot = tl.arange(0, SLOTS)[None, :]
    inside = there & (slot < k)
    found = tl.load(from_logits + chosen, inside, float("-inf")).to(tl.float32)
    if scoring == "softmax_of_chosen":
        found = tl.exp(found - tl.max(found, 1)[:, None])
        found = found / tl.sum(found, 1)[:, None]
    else:
        found = tl.where(slot < k, scored(found, most, total, scoring), 0.0)
        if renormalize:
            found = found / (tl.sum(found, 1)[:, None] + 1e-20)
    to = row[:, None] * k + slot
    tl.store(weights + to, found * routed_scaling_factor, inside)
    tl.store(ids + to, chosen, inside)
    return chosen


@triton.jit
def topk_routing(
    logits, bias, weights, ids, rows, experts, logits_stride, routed_scaling_factor,
    k: tl.constexpr, scoring: tl.constexpr, renormalize: tl.constexpr, n_group: tl.constexpr,
    topk_group: tl.constexpr, group_score: tl.constexpr, has_bias: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """ROWS tokens."""
    routed(
        logits, bias, weights, ids, rows, experts, logits_stride, routed_scaling_factor, k, scoring,
        renormalize, n_group, topk_group, group_score, has_bias, BLOCK, ROWS, WHOLE,
    )  # fmt: skip
