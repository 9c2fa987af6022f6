"""Gradients of attention. The vendor's calls compute the backward pass alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import rivals
import rivals_attention as others
from cases import Case
from cases.attention import CAUSAL, HEADS, LENGTHS, TOKENS, masks_of_blocks
from tilewright.ops.attention_backward import AttentionBackwardProblem

Problems = Iterator[AttentionBackwardProblem]


def shape(length: int, head_dim: int, **more: Any) -> AttentionBackwardProblem:
    """Gradients of Q, K and V for `TOKENS` tokens in sequences of one length."""
    fields = {
        "batch": max(1, TOKENS // length), "heads": HEADS[head_dim], "q_len": length,
        "kv_len": length, "head_dim": head_dim, **more,
    }  # fmt: skip
    return AttentionBackwardProblem(**fields)


def each(dims: Sequence[int], lengths: Sequence[int], **more: Any) -> Problems:
    for head_dim in dims:
        for length in lengths:
            for mask in CAUSAL:
                yield shape(length, head_dim, **mask, **more)


def gqa() -> Problems:
    """64 heads over 8 at head dim 128, as in NVIDIA's published runs; 32 over 4 at 64."""
    for p in each((64, 128), (1024, 4096, 16384)):
        heads = 64 if p.head_dim == 128 else p.heads
        yield shape(p.q_len, p.head_dim, heads=heads, kv_heads=heads // 8, right=p.right)


def features() -> Problems:
    said: tuple[dict[str, Any], ...] = ({"softcap": 30.0}, {"others": "alibi"}, {"left": 1024})
    for head_dim in (64, 128):
        for one in said:
            yield shape(8192, head_dim, right=0, **one)


def blocks() -> Problems:
    for mask in masks_of_blocks():
        yield shape(8192, 128, **mask)


def biases() -> Problems:
    """Gradients of a bias as well, which the sequences share."""
    for p in each((64, 128), (4096,)):
        yield replace(p, batch=2, bias_shape=(1, p.heads), grads="dq+dk+dv+dbias")


def packed(shapes: Sequence[tuple[int, int]]) -> Problems:
    """Sequences of all lengths up to one, packed. shapes: batch and length."""
    for head_dim in (64, 128):
        for batch, length in shapes:
            for mask in CAUSAL:
                yield AttentionBackwardProblem(
                    batch, HEADS[head_dim], length, length, head_dim, total_q=TOKENS,
                    total_kv=TOKENS, others="packedq+packedkv", **mask,
                )  # fmt: skip


def short() -> Problems:
    """Sequences as encoders and images have them."""
    for head_dim in (64, 128):
        for batch, length in ((128, 128), (64, 256), (1, 512)):
            for mask in CAUSAL:
                yield shape(length, head_dim, batch=batch, **mask)


CUDNN = "the faster of cuDNN and FlashAttention-2"
FLEX = "FlexAttention, compiled with max-autotune"
LONG, SHORT = ((32, 2048), (8, 8192)), ((128, 256), (64, 1024), (16, 2048))

CASES = (
    Case(
        "attention-backward-dense", "bf16, head dims 64 and 128, 1k to 16k rows, causal and not",
        CUDNN, lambda: [*each((64, 128), LENGTHS)],
    ),
    Case(
        "attention-backward-fp16", "fp16, head dims 64 and 128, 4k rows, causal and not", CUDNN,
        lambda: [*each((64, 128), (4096,), dtype="fp16")],
    ),
    Case(
        "attention-backward-gqa", "bf16, 8 heads to a group, 1k, 4k and 16k rows, causal and not",
        CUDNN, lambda: [*gqa()],
    ),
    Case(
        "attention-backward-256", "bf16, head dim 256, 4k and 8k rows, causal and not", CUDNN,
        lambda: [*each((256,), (4096, 8192))],
    ),
    Case(
        "attention-backward-192-128", "bf16, head dims 192 and 128, 4k and 8k rows", CUDNN,
        lambda: [*each((192,), (4096, 8192), head_dim_v=128)],
    ),
    Case(
        "attention-backward-short", "bf16, 128 to 512 rows, all of one length", CUDNN,
        lambda: [*short()],
    ),
    Case(
        "attention-backward-packed", "bf16, packed sequences of all lengths up to 2k and 8k",
        "FlashAttention-2", lambda: [*packed(LONG)],
    ),
    Case(
        "attention-backward-short-packed", "bf16, packed sequences of all lengths up to 256, 1k "
        "and 2k", "FlashAttention-2", lambda: [*packed(SHORT)],
    ),
    Case(
        "attention-backward-features", "bf16 with soft cap, ALiBi or a window of 1,024, 8k rows",
        FLEX, lambda: [*features()], vendor=(rivals.torch_calls, others.flex_backward),
    ),
    Case(
        "attention-backward-blocks", "8k rows, blocks of 128 (causal and not) and 64, a half to a "
        "tenth of them seen", FLEX, lambda: [*blocks()], vendor=(others.flex_backward,),
    ),
    Case(
        "attention-backward-bias", "bf16 with a bias and its gradient, 4k rows, causal and not",
        FLEX, lambda: [*biases()], vendor=(others.flex_backward,), ways=("calls",),
    ),
    Case(
        "attention-backward-deterministic", "bf16, gradients with the same bits in every run, head "
        "dims 64 and 128, 4k rows", "Tilewright's own gradients whose sums are in any order",
        lambda: [*each((64, 128), (4096,), deterministic=True)],
        vendor=(rivals.own_kernels(of=lambda p: replace(p, deterministic=False)),),
    ),
)  # fmt: skip
