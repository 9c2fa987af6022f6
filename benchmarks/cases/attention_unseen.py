"""Attention of 64 to 640 rows in batches, of sizes that nothing was tuned for: what is chosen
without the shipped tables.

Heads and head dims are of public models, drawn evenly. Rows are drawn from 64 to 640 and batches
from 1 to 256, evenly by their logarithms; where Q would be larger than `MOST_BYTES`, the batch is
drawn again. One problem in three is causal. Draws of two seeds are kept apart: choices may be
counted from the first; the second takes no part in anything. Texts are often padded: further draws
have rows of multiples of `PADDED`, and of `WHOLE`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import rivals
import rivals_attention
from cases import Case, Part
from cases.attention import CUDNN
from cases.attention_backward import CUDNN as BACKWARD
from comparison import BY_ESTIMATE
from tilewright.ops.attention import AttentionProblem, vendor
from tilewright.ops.attention_backward import AttentionBackwardProblem

MODELS = (
    (3, 3, 64), (6, 6, 64), (8, 8, 64), (10, 10, 64), (12, 12, 64), (16, 16, 64), (20, 20, 64),
    (24, 24, 64), (12, 12, 32), (16, 16, 72), (16, 16, 80), (16, 16, 88), (24, 24, 128),
    (32, 32, 128), (32, 8, 128), (28, 4, 128), (16, 2, 128), (40, 8, 128), (20, 20, 128),
)  # fmt: skip
"""Heads, heads of keys, and head dim: vision and text encoders of several sizes, speech, diffusion,
and language models with and without grouped heads."""

ROWS, BATCHES = (64, 640), (1, 256)
MOST_BYTES = 256 << 20
COUNTED, HELD_OUT = 501, 502
COUNT, GRADIENTS = 100, 60
PREPARED = 30
"""Problems that are prepared by measuring."""
PADDED = 64
WHOLE, WHOLE_COUNT = 128, 60


def drawn(seed: int, count: int = COUNT, step: int = 1) -> Iterator[AttentionProblem]:
    """Problems of a seed, each once. step: what rows are multiples of."""
    by_chance = random.Random(seed if step == 1 else (seed << 10) + step)

    def between(least: int, most: int) -> int:
        return round(math.exp(by_chance.uniform(math.log(least), math.log(most))))

    found: set[AttentionProblem] = set()
    while len(found) < count:
        heads, kv_heads, head_dim = by_chance.choice(MODELS)
        rows = -(-between(*ROWS) // step) * step
        while (batch := between(*BATCHES)) * rows * heads * head_dim * 2 > MOST_BYTES:
            pass
        right = 0 if by_chance.random() < 1 / 3 else None
        p = AttentionProblem(batch, heads, rows, rows, head_dim, kv_heads=kv_heads, right=right)
        if p not in found:
            found.add(p)
            yield p


def whole(half: int) -> Iterator[AttentionProblem]:
    """Problems of whole tiles of rows; half 0 may be counted from, and half 1 may not."""
    return drawn((COUNTED, HELD_OUT)[half], WHOLE_COUNT, WHOLE)


def gradients(seed: int, count: int = COUNT) -> Iterator[AttentionBackwardProblem]:
    """Gradients of Q, K and V of the problems of a seed."""
    for p in drawn(seed, count):
        yield AttentionBackwardProblem(
            p.batch, p.heads, p.q_len, p.kv_len, p.head_dim, kv_heads=p.kv_heads, right=p.right
        )


PARTS = (
    Part("causal", CUDNN, where=lambda p: p.right is not None),
    Part("64", CUDNN, where=lambda p: p.head_dim == 64),
    Part("128", CUDNN, where=lambda p: p.head_dim == 128),
)
TORCH = Part(
    "torch", "the faster of cuDNN and FlashAttention-2, as torch calls them",
    vendor=(vendor.CUDNN, vendor.FLASH),
)  # fmt: skip
VENDORS = (rivals.torch_calls, rivals.first_engine, rivals_attention.flash_3)

SETS = (
    ("-counted", "those that choices may be counted from", COUNTED),
    ("", "those that take no part in anything", HELD_OUT),
)
CASES = (
    *(
        Case(
            f"attention-whole{name}", f"bf16, {WHOLE_COUNT} problems of 128 to 640 rows, a "
            f"multiple of {WHOLE}, in batches, drawn by chance, {says}, by the estimate",
            "cuDNN", lambda half=half: [*whole(half)], ours="estimated",
            vendor=(rivals.torch_calls, rivals.first_engine), ways=("graphs",),
        )
        for half, (name, says, _) in enumerate(SETS)
    ),
    *(
        Case(
            f"attention-short-padded{name}", f"bf16, {COUNT} problems of 64 to 640 rows, a "
            f"multiple of {PADDED}, in batches, drawn by chance, {says}, by the estimate", CUDNN,
            lambda seed=seed: [*drawn(seed, step=PADDED)], ours="estimated",
            vendor=VENDORS, parts=(*PARTS, TORCH), ways=("graphs",),
        )
        for name, says, seed in SETS
    ),
    Case(
        "attention-short-prepared", f"bf16, the first {PREPARED} of attention-short, as prepared "
        "by measuring a few candidates, and by the estimate", CUDNN,
        lambda: [*drawn(HELD_OUT, PREPARED)], ours="prepared", vendor=VENDORS,
        parts=(*PARTS, TORCH, Part("by-estimate", CUDNN, named=BY_ESTIMATE)), ways=("graphs",),
    ),
    *(
        Case(
            f"attention-short{name}", f"bf16, {COUNT} problems of 64 to 640 rows in batches, drawn "
            f"by chance, {says}, by the estimate", CUDNN, lambda seed=seed: [*drawn(seed)],
            ours="estimated", vendor=VENDORS, parts=(*PARTS, TORCH), ways=("graphs",),
        )
        for name, says, seed in SETS
    ),
    *(
        Case(
            f"attention-backward-drawn{name}", f"bf16, gradients of the first {GRADIENTS} of those "
            f"problems, {says}, by the estimate", BACKWARD,
            lambda seed=seed: [*gradients(seed, GRADIENTS)], ours="estimated", parts=PARTS,
            ways=("graphs",),
        )
        for name, says, seed in SETS
    ),
)  # fmt: skip
