"""What a mixture of experts is, in float64, and operands of one."""

from __future__ import annotations

import math
from typing import Any

import torch

ACTS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}


def activated(h: Any, inner: int, activation="silu", interleaved=False, **clamp: float) -> Any:
    """What the second product takes, in float64."""
    if h.shape[-1] == inner:
        return ACTS[activation](h)
    gate, up = (h[..., 0::2], h[..., 1::2]) if interleaved else h.split(inner, -1)
    limit, alpha = clamp.get("limit", math.inf), clamp.get("alpha", 1.0)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ACTS[activation](alpha * gate) / alpha * (up + clamp.get("shift", 0.0))


def reference(x, w1, w2, weights, experts, **said: Any) -> Any:
    """The layer in float64, from operands as they are rounded; `said` as `fused_moe` takes it."""
    local = experts.long()
    if (found := said.pop("expert_map", None)) is not None:
        inside = (local >= 0) & (local < len(found))
        local = torch.where(inside, found.long()[local * inside], -1)
    if most := said.pop("capacity", 0):
        chosen = local[..., None] == torch.arange(len(w1), device=local.device)
        flat = chosen.flatten(0, -2).long()
        before = (flat.cumsum(0) * flat).sum(-1).view(local.shape)
        local = torch.where(before > most, -1, local)
    b1, b2 = said.pop("b1", None), said.pop("b2", None)
    shared, factor = said.pop("shared", None), said.pop("routed_scaling_factor", 1.0)
    first = said.pop("weights_first", False)
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for e in range(len(w1)):
        share = (weights.double() * (local == e)).sum(-1, keepdim=True)
        chosen = (local == e).any(-1)
        h = x[chosen].double() * (share[chosen] if first else 1.0) @ w1[e].double().T
        h = activated(h if b1 is None else h + b1[e].double(), w2.shape[-1], **said)
        h = h @ w2[e].double().T
        h = h if b2 is None else h + b2[e].double()
        y[chosen] += h * (1.0 if first else share[chosen]) * factor
    if shared is not None:
        h = activated(x.double() @ shared[0].double().T, shared[1].shape[-1], **said)
        y += h @ shared[1].double().T
    return y


def operands(
    tokens: int, hidden: int, inner: int, experts: int, k: int, *,
    gated: bool = True, dtype: torch.dtype = torch.bfloat16, device: str = "cpu", seed: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """x, w1, w2, weights and experts: each token's are different."""
    generator = torch.Generator(device).manual_seed(seed)

    def drawn(*shape: int) -> Any:
        made = torch.randn(shape, generator=generator, device=device) / shape[-1] ** 0.5
        return made.to(dtype)

    x = drawn(tokens, hidden) * hidden**0.5
    w1, w2 = drawn(experts, inner * (2 if gated else 1), hidden), drawn(experts, hidden, inner)
    scores = torch.rand(tokens, experts, generator=generator, device=device)
    weights, ids = scores.topk(k, -1)
    return x, w1, w2, weights.softmax(-1), ids.to(torch.int32)


def worst(y: Any, wanted: Any) -> float:
    """The largest error, beside the rms of what is right."""
    rms = wanted.square().mean().sqrt().clamp(min=1e-30)
    assert torch.isfinite(y).all()
    return float((y.double() - wanted).abs().max() / rms)


def _rounded(w: Any, rows: int, columns: int, most: float) -> tuple[Any, Any]:
    """Weights divided by a scale for each block of so many rows and columns, and the scales."""
    e, n, k = w.shape
    blocks = w.float().view(e, n // rows, rows, k // columns, columns)
    scales = blocks.abs().amax((2, 4)) / most
    return (blocks / scales[:, :, None, :, None]).view(w.shape), scales


def in_fp8(*weights: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Weights as DeepSeek-V3 keeps them, what they stand for in float64, and how a call says it."""
    made = [_rounded(w, 128, 128, 448.0) for w in weights]
    eight = [w.to(torch.float8_e4m3fn) for w, _ in made]
    held = [
        w.double() * s.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
        for w, (_, s) in zip(eight, made, strict=True)
    ]
    said = {"scales": tuple(s for _, s in made), "scale_a": "1x128", "scale_b": "128x128"}
    return eight, held, said


def by_block(*weights: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The same with a scale for each 64×64, and tokens that stay in 16 bits."""
    made = [_rounded(w, 64, 64, 448.0) for w in weights]
    eight = [w.to(torch.float8_e4m3fn) for w, _ in made]
    held = [
        w.double() * s.double().repeat_interleave(64, 1).repeat_interleave(64, 2)
        for w, (_, s) in zip(eight, made, strict=True)
    ]
    return eight, held, {"scales": tuple(s for _, s in made), "scale_b": "64x64"}


def by_row(*weights: Any, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Any, ...]:
    """Weights in 8 bits with a scale for each row, and what they stand for."""
    most = 127.0 if dtype == torch.int8 else 448.0
    made = [_rounded(w, 1, w.shape[2], most) for w in weights]
    eight = [(w.round() if dtype == torch.int8 else w).to(dtype) for w, _ in made]
    scales = tuple(s[..., 0] for _, s in made)
    held = [w.double() * s.double()[..., None] for w, s in zip(eight, scales, strict=True)]
    return eight, held, {"scales": scales, "scale_b": "row"}


def by_tensor(*weights: Any) -> tuple[Any, ...]:
    """The same in fp8 with a scale for each expert."""
    made = [_rounded(w, w.shape[1], w.shape[2], 448.0) for w in weights]
    eight = [w.to(torch.float8_e4m3fn) for w, _ in made]
    scales = tuple(s[:, 0, 0] for _, s in made)
    held = [w.double() * s.double()[:, None, None] for w, s in zip(eight, scales, strict=True)]
    return eight, held, {"scales": scales, "scale_b": "tensor"}


def in_int4_with_zeros(*weights: Any) -> tuple[Any, ...]:
    """The same in int4 with a zero point beside each scale."""
    eight, held, said = in_int4(*weights)
    zeros = []
    for place, scales in enumerate(said["scales"]):
        made = torch.Generator().manual_seed(place)
        zeros.append(torch.randint(-3, 4, scales.shape, generator=made, dtype=torch.int8))
        held[place] = held[place] - (zeros[-1] * scales.double()).repeat_interleave(32, 2)
    return eight, held, {**said, "zeros": tuple(zeros)}


def in_int4(*weights: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The same in 4 bits, with a scale in bf16 for each 32 elements of a row."""
    made = [_rounded(w, 1, 32, 7.0) for w in weights]
    whole, scales = [w.round() for w, _ in made], [s.bfloat16() for _, s in made]
    low, high = ([w[..., half::2].int() & 15 for w in whole] for half in (0, 1))
    nibbles = [(a | (b << 4)).to(torch.uint8) for a, b in zip(low, high, strict=True)]
    held = [
        w.double() * s.double().repeat_interleave(32, 2) for w, s in zip(whole, scales, strict=True)
    ]
    return nibbles, held, {"scales": tuple(scales), "scale_b": "32x1-bf16", "dtype_b": "int4"}


LIMITS = {
    torch.bfloat16: 0.06,
    torch.float16: 0.01,
    torch.float32: 1e-4,
    torch.int8: 0.09,  # both are rounded to 127 steps of their row's largest: an rms of 0.015
    torch.float8_e4m3fn: 0.25,  # tokens and activations have 3 bits of mantissa: an rms of 0.045
}
"""The largest error beside the rms: the results of both products and of the activation are each
rounded to the type, and the largest of some thousand values lies at 4 to 5 times the rms, of some
hundred thousand at 5 to 5.5."""
