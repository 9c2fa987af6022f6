"""Gradients of the weights of chosen experts.

Idea. With s the scores, T the sum of the chosen ones and g what arrives times the factor, the
gradient of a score is, if weights were renormalised,

    ds = (g - sum(g · s) / T) / T,    else    ds = g

of the chosen, 0 of the others. Then dlogits = s · (1 - s) · ds for a sigmoid, and
s · (ds - sum(s · ds)) for a softmax, over all experts or over the chosen. A workgroup holds the
logits of ROWS tokens, and spreads what arrived over the tile by comparing ids: each logit has one
writer.

What limits it: memory: logits are read, and their gradients written, once. Times:
docs/operations.md.
"""

import triton
import triton.language as tl

from tilewright.declared.routing.kernels.topk_routing import denominator, scored


@triton.jit
def topk_routing_backward(
    logits, ids, dweights, dlogits, rows, experts, k, logits_stride, routed_scaling_factor,
    scoring: tl.constexpr, renormalize: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    expert = tl.arange(0, BLOCK)[None, :]
    inside = there[:, None] & (expert < experts)
    held = tl.load(
        logits + row[:, None] * logits_stride + expert, inside, float("-inf")
    ).to(tl.float32)  # fmt: skip
    chosen = tl.zeros((ROWS, BLOCK), tl.int32)
    ds = tl.zeros((ROWS, BLOCK), tl.float32)
    for slot in range(k):
        at = row * k + slot
        hit = expert == tl.load(ids + at, there, -1)[:, None]
        arrived = tl.load(dweights + at, there, 0.0) * routed_scaling_factor
        ds = tl.where(hit, arrived[:, None], ds)
        chosen = tl.where(hit, 1, chosen)
    if scoring == "softmax_of_chosen":
        held = tl.where(chosen > 0, held, float("-inf"))
        most, total = denominator(held, "softmax")
        scores = scored(held, most, total, "softmax")
    else:
        most, total = denominator(held, scoring)
        scores = scored(held, most, total, scoring)
        if renormalize:
            some = tl.where(chosen > 0, scores, 0.0)
            through = tl.sum(some, 1)[:, None] + 1e-20
            shared = tl.sum(some * ds, 1)[:, None] / through
            ds = tl.where(chosen > 0, (ds - shared) / through, 0.0)
    if scoring == "sigmoid":
        made = scores * (1.0 - scores) * ds
    else:
        made = scores * (ds - tl.sum(scores * ds, 1)[:, None])
    to = dlogits + row[:, None] * experts + expert
    tl.store(to, made.to(dlogits.dtype.element_ty), inside)
