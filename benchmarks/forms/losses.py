"""Forms of cross-entropy and its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from forms.common import only


def _slope(
    logits: Any, target: Any, lse: Any, weight: Any, ignore_index: int, smoothing: float, z: float
) -> Any:
    """The gradient of each row's loss."""
    ignored = target == ignore_index
    place = target.masked_fill(ignored, 0)[:, None]
    own: Any = 1 - smoothing
    own = own if weight is None else own * weight[place]
    every = own + 2 * z * lse[:, None]
    made = torch.exp(logits.float() - lse[:, None])
    if smoothing:
        each = torch.ones_like(logits[0], dtype=torch.float32) if weight is None else weight
        spread = smoothing / logits.shape[-1] * each
        made = made * (every + spread.sum()) - spread
    else:
        made = made * every
    at = torch.arange(logits.shape[-1], device=logits.device) == place
    return (made - at * own).masked_fill(ignored[:, None], 0)


def cross_entropy(
    logits: Any, target: Any, weight: Any, ignore_index: int, label_smoothing: float,
    lse_square_scale: float, factor: float, with_lse: bool, with_gradient: bool,
) -> Any:  # fmt: skip
    values = logits.float()
    loss = F.cross_entropy(
        values, target.long(), weight, ignore_index=ignore_index, reduction="none",
        label_smoothing=label_smoothing,
    )  # fmt: skip
    if not (with_lse or with_gradient or lse_square_scale):
        return loss * factor
    lse = values.logsumexp(-1)
    kept = lse.masked_fill(target == ignore_index, 0)
    made = [(loss + lse_square_scale * kept * kept) * factor]
    if with_lse:
        made.append(kept)
    if with_gradient:
        slope = _slope(logits, target, lse, weight, ignore_index, label_smoothing, lse_square_scale)
        made.append((slope * factor).to(logits.dtype))
    return only(tuple(made))


def cross_entropy_backward(
    logits: Any, target: Any, lse: Any, dloss: Any, weight: Any, ignore_index: int,
    label_smoothing: float, lse_square_scale: float, factor: float,
) -> Any:  # fmt: skip
    slope = _slope(logits, target, lse, weight, ignore_index, label_smoothing, lse_square_scale)
    return (slope * (dloss * factor)[:, None]).to(logits.dtype)


FORMS = {"cross_entropy": cross_entropy, "cross_entropy_backward": cross_entropy_backward}
