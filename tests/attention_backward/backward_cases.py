"""Problems of attention's backward pass: those of the forward pass that have gradients."""

from __future__ import annotations

import random
from dataclasses import fields

from attention_cases import drawn as forward
from attention_cases import legal

from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.attention_backward.problem import GRADIENTS

FEATURES = frozenset(
    {"softcap", "bias", "alibi", "sinks", "dropout", "packedq", "packedkv", "usedq", "usedkv"}
)
"""Features with gradients."""


def drawn(
    seed: int, most: int = 90, dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32")
) -> AttentionBackwardProblem:
    """A problem of sequences of up to `most` rows, and some of its gradients."""
    rng = random.Random(seed)
    words = legal(rng, 0.35) & FEATURES
    return of_forward(forward(seed, most, dtypes, words), rng)


def of_forward(one: AttentionProblem, rng: random.Random) -> AttentionBackwardProblem:
    """Some gradients of `one`; LSE may have a gradient too."""
    said = {f.name: getattr(one, f.name) for f in fields(AttentionProblem)}
    has = [name for name, needs in GRADIENTS.items() if not needs or needs in one.words]
    some = [name for name in has if rng.random() < 0.7] or has
    return AttentionBackwardProblem(**said, grads="+".join(some), dlse=rng.random() < 0.3)
