"""Forms of norms of rows and of rounding rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from forms.common import only, rounded


def rms_norm(
    x: Any, w: Any, residual: Any, smooth: Any, scale: Any, eps: float, offset: float, quant: str,
    out_dtype: str,
) -> Any:  # fmt: skip
    total = x if residual is None else x + residual
    weight = None if w is None else (w + offset if offset else w).to(total.dtype)
    y = F.rms_norm(total, total.shape[-1:], weight, eps)
    y = y if smooth is None else y * smooth
    made, *scales = rounded(y, quant, out_dtype, scale)
    return only((made, *(() if residual is None else (total,)), *scales))


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


FORMS = {"rms_norm": rms_norm, "rms_norm_backward": rms_norm_backward}
