"""Forms of softmax, its logarithm, and their gradients."""

from __future__ import annotations

from typing import Any

import torch

from forms.common import kind


def _scaled(values: Any, scale: float) -> Any:
    return values if scale == 1 else values * scale


def softmax(x: Any, scale: float, out_dtype: str) -> Any:
    return torch.softmax(_scaled(x, scale), -1).to(kind(out_dtype))


def log_softmax(x: Any, scale: float, out_dtype: str) -> Any:
    return torch.log_softmax(_scaled(x, scale), -1).to(kind(out_dtype))


def softmax_backward(y: Any, dy: Any, scale: float, out_dtype: str) -> Any:
    dx = torch._softmax_backward_data(dy, y, -1, y.dtype)
    return _scaled(dx, scale).to(kind(out_dtype))


def log_softmax_backward(y: Any, dy: Any, scale: float, out_dtype: str) -> Any:
    dx = torch._log_softmax_backward_data(dy, y, -1, y.dtype)
    return _scaled(dx, scale).to(kind(out_dtype))


FORMS = {
    "softmax": softmax,
    "softmax_backward": softmax_backward,
    "log_softmax": log_softmax,
    "log_softmax_backward": log_softmax_backward,
}
