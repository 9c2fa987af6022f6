"""A few tokens to their best experts, and their choices in the order of experts, in one launch.

Idea. `topk_routing` by one workgroup, with a tile of all tokens, whose choices stay in registers. A
choice's place is how many are of a lower expert, or of the same and earlier: each is compared with
each, so nothing is added atomically, and the order is that of `sort_by_expert`. An expert's end is
how many choices are of no higher expert.

What limits it: latency: k rounds of reductions, then one of comparisons. Times: docs/operations.md.
"""

import triton
import triton.language as tl

from tilewright.declared.routing.kernels._largest import power_of_two
from tilewright.declared.routing.kernels.topk_routing import routed

PIECE = tl.constexpr(4096)
"""Comparisons of a tile that finds the ends."""


@triton.jit
def sorted_routing(
    logits, bias, weights, ids, order, ends, places, rows, experts, logits_stride,
    routed_scaling_factor, k: tl.constexpr, scoring: tl.constexpr, renormalize: tl.constexpr,
    n_group: tl.constexpr, topk_group: tl.constexpr, group_score: tl.constexpr,
    has_bias: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """All tokens."""
    chosen = routed(
        logits, bias, weights, ids, rows, experts, logits_stride, routed_scaling_factor, k, scoring,
        renormalize, n_group, topk_group, group_score, has_bias, BLOCK, ROWS, WHOLE,
    )  # fmt: skip
    SLOTS: tl.constexpr = power_of_two(k)
    CHOICES: tl.constexpr = ROWS * SLOTS
    row = tl.arange(0, ROWS)[:, None]
    slot = tl.arange(0, SLOTS)[None, :]
    # What is no choice is behind all.
    its = tl.where((slot < k) & (row < rows), chosen, experts).reshape(CHOICES)
    at = tl.arange(0, CHOICES)
    earlier = (its[:, None] == its[None, :]) & (at[:, None] < at[None, :])
    place = tl.sum(((its[:, None] < its[None, :]) | earlier).to(tl.int32), 0)
    number = at // SLOTS * k + at % SLOTS
    tl.store(order + place, number, its < experts)
    tl.store(places + number, place, its < experts)
    EACH: tl.constexpr = max(1, PIECE // CHOICES)
    for first in range(0, experts, EACH):
        expert = first + tl.arange(0, EACH)
        end = tl.sum((its[:, None] <= expert[None, :]).to(tl.int32), 0)
        tl.store(ends + expert, end, expert < experts)
