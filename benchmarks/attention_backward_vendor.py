"""Attention's backward pass on Hopper against cuDNN, FlashAttention-2 and FlexAttention, in one
interleaved run.

    python benchmarks/attention_backward_vendor.py --json attention_backward_h200.json
    python benchmarks/attention_backward_vendor.py --set dense gqa --most 4096
    python benchmarks/attention_backward_vendor.py --build

As `attention_vendor`, whose options it has: every kernel of the default space and every call of
torch is checked against float64 at full size, then timed beside the others. A call of cuDNN or
FlashAttention-2 is the backward pass alone, over the O and LSE of its own forward pass. Of
FlexAttention it is the gradient of a compiled forward pass, by autograd; it is timed in single
calls only. The rate counts five products of the pairs that a query sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from attention_vendor import CAUSAL, FLEX_BACKWARD, HEADS, TOKENS, compare, flex
from tilewright import ops
from tilewright.arch import arch
from tilewright.measure.contenders import Contender
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardConfig, AttentionBackwardProblem

FAMILY = ops.family("attention_backward")
LENGTHS = (1024, 2048, 4096, 8192, 16384)


def _shape(length: int, head_dim: int, **more: Any) -> AttentionBackwardProblem:
    said = {
        "batch": max(1, TOKENS // length), "heads": HEADS[head_dim], "q_len": length,
        "kv_len": length, "head_dim": head_dim, **more,
    }  # fmt: skip
    return AttentionBackwardProblem(**said)


def _each(
    head_dims: tuple[int, ...], lengths: tuple[int, ...], **more: Any
) -> Iterator[AttentionBackwardProblem]:
    for head_dim in head_dims:
        for length in lengths:
            for mask in CAUSAL:
                yield _shape(length, head_dim, **mask, **more)


def _gqa() -> Iterator[AttentionBackwardProblem]:
    """64 heads over 8 at head dim 128, as in NVIDIA's published runs; 32 over 4 at 64."""
    for p in _each((64, 128), (1024, 4096, 16384)):
        heads = 64 if p.head_dim == 128 else p.heads
        yield _shape(p.q_len, p.head_dim, heads=heads, kv_heads=heads // 8, right=p.right)


def _features() -> Iterator[AttentionBackwardProblem]:
    for head_dim in (64, 128):
        for said in ({"softcap": 30.0}, {"others": "alibi"}, {"left": 1024}):
            yield _shape(8192, head_dim, right=0, **said)


def _bias() -> Iterator[AttentionBackwardProblem]:
    """Gradients of a bias as well, which the sequences share."""
    for head_dim in (64, 128):
        for mask in CAUSAL:
            yield AttentionBackwardProblem(
                2, HEADS[head_dim], 4096, 4096, head_dim, bias_shape=(1, HEADS[head_dim]),
                grads="dq+dk+dv+dbias", **mask,
            )  # fmt: skip


def _varlen() -> Iterator[AttentionBackwardProblem]:
    """Sequences of up to `length` rows, of all lengths, packed."""
    for head_dim in (64, 128):
        for length in (2048, 8192):
            for mask in CAUSAL:
                yield AttentionBackwardProblem(
                    4 * TOKENS // length, HEADS[head_dim], length, length, head_dim,
                    total_q=TOKENS, total_kv=TOKENS, others="packedq+packedkv", **mask,
                )  # fmt: skip


def _short() -> Iterator[AttentionBackwardProblem]:
    """Sequences of 128 to 512 rows, as encoders and images have them, and packed ones of all
    lengths up to 256, 1k and 2k."""
    for head_dim in (64, 128):
        for batch, length in ((128, 128), (64, 256), (1, 512)):
            for mask in CAUSAL:
                yield AttentionBackwardProblem(
                    batch, HEADS[head_dim], length, length, head_dim, **mask
                )
        for batch, length in ((128, 256), (64, 1024), (16, 2048)):
            for mask in CAUSAL:
                yield AttentionBackwardProblem(
                    batch, HEADS[head_dim], length, length, head_dim, total_q=TOKENS,
                    total_kv=TOKENS, others="packedq+packedkv", **mask,
                )  # fmt: skip


SETS: dict[str, Callable[[], Iterator[AttentionBackwardProblem]]] = {
    "dense": lambda: _each((64, 128), LENGTHS),
    "fp16": lambda: _each((64, 128), (4096,), dtype="fp16"),
    "gqa": _gqa,
    "256": lambda: _each((256,), (4096, 8192)),
    "192/128": lambda: _each((192,), (4096, 8192), head_dim_v=128),
    "features": _features,
    "bias": _bias,
    "varlen": _varlen,
    "short": _short,
}
"""By name. Of `short` the portable kernels are timed too."""


def kernels(
    p: AttentionBackwardProblem, wide: bool, words: list[str]
) -> list[AttentionBackwardConfig]:
    """The configs that can serve `p` and whose names have one of `words`: those in Gluon. If there
    are none, or `p` is of the short set, the portable ones too."""
    this = arch("sm_90")
    spaces = FAMILY.tuning_spaces(p, this) if wide else [FAMILY.default_space(p, this)]
    found = {c.name: c for space in spaces for c in space.expand(this).configs}
    able = [c for c in found.values() if FAMILY.supports(c, p, this)]
    if p not in {*_short()}:
        able = [c for c in able if c.pipeline != "basic"] or able
    return [c for c in able if not words or any(f"_{word}" in c.name for word in words)]


def torch_calls(p: AttentionBackwardProblem) -> list[Contender]:
    """Torch's calls that compute `p`."""
    calls = [Contender(name, None, bind) for name, bind in FAMILY.vendor(p).items()]
    if p.softcap or p.left is not None or p.words & {"alibi", "bias"}:
        calls.append(Contender(FLEX_BACKWARD, None, lambda i, o: _flex(p, i)))
    return calls


def _flex(p: AttentionBackwardProblem, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    import torch

    said = {f.name: getattr(p, f.name) for f in fields(AttentionProblem)}
    names = ("q", "k", "v", "bias") if "dbias" in p.grads else ("q", "k", "v")
    leaves = [inputs[name].detach().requires_grad_() for name in names]
    given = {**inputs, **dict(zip(names, leaves, strict=True))}
    out = flex(AttentionProblem(**said), given, None)()
    return lambda: torch.autograd.grad(out, leaves, inputs["do"], retain_graph=True)


if __name__ == "__main__":
    compare(__doc__.partition("\n\n")[0], SETS, kernels, torch_calls)
