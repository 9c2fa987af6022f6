"""Forms of reductions."""

from __future__ import annotations

from typing import Any

import torch

from forms.common import kind, only

REDUCED = (1, 3)


def _flat(x: Any) -> Any:
    """The reduced elements as the last dimension."""
    return x.permute(0, 2, 4, 1, 3).flatten(-2)


def reduction(
    x: Any, out_dtype: str, sum: bool, mean: bool, norm: bool, prod: bool, max: bool, min: bool,
    absmax: bool, argmax: bool, argmin: bool,
) -> Any:  # fmt: skip
    out, found = kind(out_dtype), []
    count = x.shape[1] * x.shape[3]
    if sum:
        found.append(x.sum(REDUCED, dtype=out))
    if mean:
        whole = not x.dtype.is_floating_point
        found.append(x.sum(REDUCED, dtype=out) / count if whole else x.mean(REDUCED).to(out))
    if norm:
        values = x if x.dtype.is_floating_point else x.float()
        found.append(torch.linalg.vector_norm(values, dim=REDUCED).to(out))
    if prod:
        found.append(_flat(x).prod(-1, dtype=out))
    if max:
        found.append(x.amax(REDUCED))
    if min:
        found.append(x.amin(REDUCED))
    if absmax:
        found.append(x.abs().amax(REDUCED))
    if argmax:
        found.append(_flat(x).argmax(-1))
    if argmin:
        found.append(_flat(x).argmin(-1))
    return only(tuple(found))


def _spread(values: Any) -> Any:
    return values[:, None, :, None, :]


def reduction_backward(
    x: Any, d_sum: Any, d_mean: Any, d_norm: Any, norm: Any, d_max: Any, max_at: Any, d_min: Any,
    min_at: Any,
) -> Any:  # fmt: skip
    made = [] if d_sum is None else [_spread(d_sum)]
    if d_mean is not None:
        made.append(_spread(d_mean / (x.shape[1] * x.shape[3])))
    if d_norm is not None:
        made.append(x * _spread(torch.where(norm == 0, 0.0, d_norm / norm)))
    for arrived, at in ((d_max, max_at), (d_min, min_at)):
        if arrived is not None:
            flat = torch.zeros_like(_flat(x)).scatter(-1, at[..., None], arrived[..., None])
            shape = (x.shape[0], x.shape[2], x.shape[4], x.shape[1], x.shape[3])
            made.append(flat.reshape(shape).permute(0, 3, 1, 4, 2))
    dx = made[0]
    for one in made[1:]:
        dx = dx + one
    return dx.expand(x.shape).to(x.dtype, copy=True, memory_format=torch.contiguous_format)


FORMS = {"reduction": reduction, "reduction_backward": reduction_backward}
