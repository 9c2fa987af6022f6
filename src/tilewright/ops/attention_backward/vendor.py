"""What torch has for a problem, to compare kernels with: the backward passes of cuDNN's attention
and of FlashAttention-2, by ATen's own calls.

Each gets O and LSE of its own forward pass, computed once before the calls that are timed, and dO
with the strides of that O: another dO would be copied in every call. Both compute dQ, dK and dV
together, also where fewer are asked for, and no other gradient, and neither adds to what is there.
Neither has dropout here: their random numbers are others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.ops.attention import vendor as forward
from tilewright.ops.attention_backward.problem import USUAL, AttentionBackwardProblem
from tilewright.ops.protocols import Bind

CUDNN = "aten._scaled_dot_product_cudnn_attention_backward"
FLASH = "aten._flash_attention_backward"

Tensors = Mapping[str, Any]

_GRADIENTS = tuple(USUAL.split("+"))
_CUDNN_WORDS = frozenset(("bias",))
_FLASH_WORDS = frozenset(("packedq", "packedkv"))


def vendor(p: AttentionBackwardProblem) -> Mapping[str, Bind]:
    """The calls of torch that compute `p`, by name."""
    if not forward.plain(p) or not p.computed.issubset(_GRADIENTS):
        return {}
    if p.dlse or p.accumulate:
        return {}
    found: dict[str, Bind] = {}
    if p.words <= _CUDNN_WORDS and forward.cudnn_mask(p):
        found[CUDNN] = partial(_cudnn, p)
    if p.words <= _FLASH_WORDS and p.head_dim == p.head_dim_v and forward.flash_mask(p):
        found[FLASH] = partial(_flash, p)
    return found


def stand_in(p: AttentionBackwardProblem) -> Mapping[str, Bind]:
    """FlashAttention's call first, as forward: cuDNN took 1.0 s to build a kernel on an H200."""
    found = vendor(p)
    return {name: found[name] for name in (FLASH, CUDNN) if name in found}


def _cudnn(p: AttentionBackwardProblem, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    import torch

    q, k, v, do = _turned(p, inputs, "bhsd")
    bias = inputs.get("bias")
    if bias is not None:
        bias = bias.expand(p.batch, p.heads, p.q_len, p.kv_len)
    causal, scale = p.mask.kind == "causal", inputs["scale"]
    o, lse, q_at, k_at, max_q, max_k, seed, offset, _ = (
        torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, bias, True, 0.0, causal, scale=scale
        )
    )
    run = partial(
        torch.ops.aten._scaled_dot_product_cudnn_attention_backward,
        _like(do, o), q, k, v, o, lse, seed, offset, bias, q_at, k_at, max_q, max_k, 0.0, causal,
        scale=scale,
    )  # fmt: skip
    return lambda: _returned(p, run(), "bhsd")


def _flash(p: AttentionBackwardProblem, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    import torch

    packed = "packedq" in p.words
    q, k, v, do = (
        (inputs[name] for name in ("q", "k", "v", "do")) if packed else _turned(p, inputs, "bshd")
    )
    offsets = (inputs.get("q_offsets"), inputs.get("kv_offsets"))
    causal = (p.left, p.right) == (None, 0)
    said = {
        "scale": inputs["scale"],
        "window_size_left": None if causal else p.left,
        "window_size_right": None if causal else p.right,
    }
    o, lse, state, unused, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, *offsets, p.q_len, p.kv_len, 0.0, causal, False, **said
    )
    run = partial(
        torch.ops.aten._flash_attention_backward,
        _like(do, o), q, k, v, o, lse, *offsets, p.q_len, p.kv_len, 0.0, causal, state, unused,
        **said,
    )  # fmt: skip
    if not packed:
        return lambda: _returned(p, run(), "bshd")
    q_end, k_end = (int(inputs[name][-1]) for name in ("q_offsets", "kv_offsets"))

    def call() -> Any:
        dq, dk, dv = run()
        for x, end in ((dq, q_end), (dk, k_end), (dv, k_end)):
            if end < x.shape[0]:  # it leaves rows that no sequence has as they are
                x[end:].zero_()
        return _returned(p, (dq, dk, dv), "bshd")

    return call


def _turned(p: AttentionBackwardProblem, inputs: Tensors, layout: str) -> tuple[Any, ...]:
    """Q, K, V and dO as a call takes them."""
    own = (("q", p.layout), ("k", p.kv_layout), ("v", p.kv_layout), ("do", p.layout))
    return tuple(
        inputs[name] if have == layout else inputs[name].transpose(1, 2) for name, have in own
    )


def _returned(p: AttentionBackwardProblem, made: Any, layout: str) -> Any:
    """The gradients that `p` has, of all three."""
    own = (p.layout, p.kv_layout, p.kv_layout)
    packed = "packedq" in p.words
    found = tuple(
        x if packed or have == layout else x.transpose(1, 2)
        for name, x, have in zip(_GRADIENTS, made, own, strict=True)
        if name in p.computed
    )
    return found[0] if len(found) == 1 else found


def _like(x: Any, other: Any) -> Any:
    """`x` with the strides of `other`."""
    import torch

    return x if x.stride() == other.stride() else torch.empty_like(other).copy_(x)
