"""Forms of gated activations and rotations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from forms.common import only, rounded

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
}
aten = torch.ops.aten
SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "silu": aten.silu_backward,
    "gelu": aten.gelu_backward,
    "gelu_tanh": partial(aten.gelu_backward, approximate="tanh"),
    "relu": lambda arrived, x: aten.threshold_backward(arrived, x, 0),
    "sigmoid": lambda arrived, x: aten.sigmoid_backward(arrived, x.sigmoid()),
}
"""From what arrives and the activation's operand to its gradient."""


def _halves(x: Any, up: Any, interleaved: bool) -> tuple[Any, Any]:
    if up is not None:
        return x, up
    return (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)


def _clamped(a: Any, b: Any, limit: float, shift: float) -> tuple[Any, Any]:
    if limit < math.inf:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    return a, b + shift if shift else b


def gated_activation(
    x: Any, up: Any, scale: Any, limit: float, alpha: float, shift: float, gate: str,
    interleaved: bool, quant: str, out_dtype: str,
) -> Any:  # fmt: skip
    a, b = _clamped(*_halves(x, up, interleaved), limit, shift)
    act = ACTIVATIONS[gate]
    value = act(a) if alpha == 1 else act(alpha * a) / alpha
    return only(rounded(value * b, quant, out_dtype, scale))


def gated_activation_backward(
    x: Any, dy: Any, up: Any, limit: float, alpha: float, shift: float, gate: str,
    interleaved: bool,
) -> Any:  # fmt: skip
    a, b = _halves(x, up, interleaved)
    low, lifted = _clamped(a, b, limit, shift)
    dy = dy.to(x.dtype)
    scaled = low if alpha == 1 else alpha * low
    da = SLOPES[gate](dy * lifted, scaled)
    db = dy * ACTIVATIONS[gate](scaled)
    db = db if alpha == 1 else db / alpha
    if limit < math.inf:
        da, db = da.masked_fill(a > limit, 0), db.masked_fill(b.abs() > limit, 0)
    if up is not None:
        return da, db
    return torch.stack((da, db), -1).flatten(-2) if interleaved else torch.cat((da, db), -1)


FORMS = {
    "gated_activation": gated_activation,
    "gated_activation_backward": gated_activation_backward,
}
