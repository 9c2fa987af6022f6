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
    """Some gradients of `one`; LSE may have a gradient too. Gradients may be added to what their
    arrays hold, and rows of dQ, dK and dV may lie apart."""
    said = {f.name: getattr(one, f.name) for f in fields(AttentionProblem)}
    has = [name for name, needs in GRADIENTS.items() if not needs or needs in one.words]
    some = [name for name in has if rng.random() < 0.7] or has
    said |= {"grads": "+".join(some), "dlse": rng.random() < 0.3}
    said |= {"accumulate": rng.random() < 0.25, "deterministic": rng.random() < 0.5}
    for name in ("dq", "dk", "dv"):
        if name in some and rng.random() < 0.2:
            said[f"{name}_strides"] = apart(one, name)
    return AttentionBackwardProblem(**said)


def apart(p: AttentionProblem, name: str) -> tuple[int, int, int, int]:
    """Strides of (batch, row, head, dim) of a gradient whose rows have room for one more head."""
    heads = p.heads if name == "dq" else p.kv_heads
    rows = p.q_len if name == "dq" else p.kv_len
    dim = p.head_dim_v if name == "dv" else p.head_dim
    row = (heads + 1) * dim
    packed = ("packedq" if name == "dq" else "packedkv") in p.words
    return (0 if packed else rows * row, row, dim, 1)
