"""Forms of norms of rows and of rounding rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from forms.common import only, rounded


def rms_norm(
    x: Any, w: Any, residual: Any, smooth: Any, scale: Any, eps: float, offset: float, quant: str,
    statistics: bool, out_dtype: str,
) -> Any:  # fmt: skip
    total = x if residual is None else x + residual
    weight = None if w is None else (w + offset if offset else w).to(total.dtype)
    y = F.rms_norm(total, total.shape[-1:], weight, eps)
    y = y if smooth is None else y * smooth
    made, *scales = rounded(y, quant, out_dtype, scale)
    more = () if residual is None else (total,)
    if statistics:
        more = (*more, torch.rsqrt(total.float().square().mean(-1) + eps))
    return only((made, *more, *scales))


def rms_norm_backward(
    x: Any, dy: Any, w: Any, residual: Any, dtotal: Any, eps: float, offset: float
) -> Any:
    total = (x if residual is None else x + residual).float()
    arrived = dy.float()
    rstd = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    normed = total * rstd
    through = arrived if w is None else arrived * (w.float() + offset)
    dx = (through - normed * (through * normed).mean(-1, keepdim=True)) * rstd
    dx = dx if dtotal is None else dx + dtotal
    dx = dx.to(x.dtype)
    return dx if w is None else (dx, (arrived * normed).sum(0).to(w.dtype))


def layer_norm(
    x: Any, w: Any, b: Any, residual: Any, smooth: Any, scale: Any, eps: float, offset: float,
    quant: str, statistics: bool, out_dtype: str,
) -> Any:  # fmt: skip
    total = x if residual is None else x + residual
    weight = None if w is None else (w + offset if offset else w).to(total.dtype)
    bias = None if b is None else b.to(total.dtype)
    y, mean, rstd = torch.native_layer_norm(total, total.shape[-1:], weight, bias, eps)
    y = y if smooth is None else y * smooth
    made, *scales = rounded(y, quant, out_dtype, scale)
    more = () if residual is None else (total,)
    if statistics:
        more = (*more, mean[..., 0].float(), rstd[..., 0].float())
    return only((made, *more, *scales))


def layer_norm_backward(
    x: Any, dy: Any, w: Any, b: Any, residual: Any, dtotal: Any, eps: float, offset: float
) -> Any:
    total = (x if residual is None else x + residual).float()
    arrived = dy.float()
    variance, mean = torch.var_mean(total, -1, correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    normed = (total - mean) * rstd
    through = arrived if w is None else arrived * (w.float() + offset)
    shared = through.mean(-1, keepdim=True) + normed * (through * normed).mean(-1, keepdim=True)
    dx = (through - shared) * rstd
    dx = dx if dtotal is None else dx + dtotal
    dw = () if w is None else ((arrived * normed).sum(0).to(w.dtype),)
    db = () if b is None else (arrived.sum(0).to(b.dtype),)
    return only((dx.to(x.dtype), *dw, *db))


def quantise_rows(x: Any, smooth: Any, scale: Any, quant: str, out_dtype: str) -> Any:
    return only(rounded(x if smooth is None else x * smooth, quant, out_dtype, scale))


def quantise_expert_rows(
    x: Any, smooth: Any, expert: Any, scale: Any, quant: str, out_dtype: str, slots_first: bool
) -> Any:
    values = x[:, None] * smooth[expert.long()]
    values = values.transpose(0, 1) if slots_first else values
    return only(rounded(values.reshape(-1, x.shape[-1]), quant, out_dtype, scale))


FORMS = {
    "rms_norm": rms_norm,
    "rms_norm_backward": rms_norm_backward,
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward,
    "quantise_rows": quantise_rows,
    "quantise_expert_rows": quantise_expert_rows,
}
