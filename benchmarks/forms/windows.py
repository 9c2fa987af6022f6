"""Forms of what reads windows of images: patches as rows and back, and pooling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.nn import functional as F

Three = tuple[int, int, int]
aten = torch.ops.aten

# --- patches ------------------------------------------------------------------------------------


def im2col(
    x: Any, filter_d: int, filter_h: int, filter_w: int, stride_d: int, stride_h: int,
    stride_w: int, pad_d: int, pad_h: int, pad_w: int, after_d: int, after_h: int, after_w: int,
    dilation_d: int, dilation_h: int, dilation_w: int, groups: int,
) -> Any:  # fmt: skip
    around = (0, 0, pad_w, after_w, pad_h, after_h, pad_d, after_d)
    wide = F.pad(x, around) if any(around) else x
    along = (
        (filter_d, stride_d, dilation_d),
        (filter_h, stride_h, dilation_h),
        (filter_w, stride_w, dilation_w),
    )
    for axis, (taps, stride, dilation) in enumerate(along, 1):
        wide = wide.unfold(axis, (taps - 1) * dilation + 1, stride)[..., ::dilation]
    found = wide.unflatten(4, (groups, -1)).permute(0, 1, 2, 3, 4, 6, 7, 8, 5)
    return found.flatten(4)


def col2im(
    y: Any, filter_d: int, filter_h: int, filter_w: int, stride_d: int, stride_h: int,
    stride_w: int, pad_d: int, pad_h: int, pad_w: int, dilation_d: int, dilation_h: int,
    dilation_w: int, groups: int, depth: int, height: int, width: int,
) -> Any:  # fmt: skip
    taps = (filter_d, filter_h, filter_w)
    strides, dilations = (stride_d, stride_h, stride_w), (dilation_d, dilation_h, dilation_w)
    pads, sizes = (pad_d, pad_h, pad_w), (depth, height, width)
    outs = y.shape[1:4]
    reached = [(o - 1) * s + (t - 1) * r + 1
               for o, s, t, r in zip(outs, strides, taps, dilations, strict=True)]  # fmt: skip
    parts = y.unflatten(-1, (groups, *taps, -1))
    if depth == filter_d == 1 and not pad_d:
        rows = parts.flatten(1, 3).permute(0, 2, 6, 3, 4, 5, 1).flatten(1, 5)
        made = F.fold(rows, reached[1:], taps[1:], dilations[1:], 0, strides[1:])
        made = made.permute(0, 2, 3, 1)[:, None]
    else:
        made = y.new_zeros(len(y), *reached, y.shape[-1] // (filter_d * filter_h * filter_w))
        for d, h, w in product(*map(range, taps)):
            first = [t * r for t, r in zip((d, h, w), dilations, strict=True)]
            where = [slice(b, b + (o - 1) * s + 1, s)
                     for b, o, s in zip(first, outs, strides, strict=True)]  # fmt: skip
            made[:, where[0], where[1], where[2]] += parts[:, :, :, :, :, d, h, w].flatten(-2)
    more = [max(0, n + p - r) for n, p, r in zip(sizes, pads, reached, strict=True)]
    made = F.pad(made, (0, 0, 0, more[2], 0, more[1], 0, more[0])) if any(more) else made
    inner = made
    for axis, (n, p) in enumerate(zip(sizes, pads, strict=True), 1):
        inner = inner.narrow(axis, p, n)
    return inner.contiguous()


# --- pooling ------------------------------------------------------------------------------------


def _first(x: Any, flat: bool) -> Any:
    """Channels first, as torch takes them, without a depth of 1."""
    return x[:, 0].permute(0, 3, 1, 2) if flat else x.permute(0, 4, 1, 2, 3)


def _last(y: Any, flat: bool) -> Any:
    return y.permute(0, 2, 3, 1)[:, None] if flat else y.permute(0, 2, 3, 4, 1)


def _mean(x: Any, taps: Any, strides: Any, pads: Any, dilations: Any, padded: bool) -> Any:
    """Means of windows whose elements lie apart, which torch's pooling does not have."""
    planes = x.float().flatten(0, 1)[:, None]
    ones = torch.ones(1, 1, *taps, device=x.device)
    conv: Callable[..., Any] = F.conv2d if len(taps) == 2 else F.conv3d
    how = {"stride": strides, "padding": pads, "dilation": dilations}
    count = ones.numel() if padded else conv(torch.ones_like(planes[:1]), ones, **how)
    return (conv(planes, ones, **how) / count).unflatten(0, x.shape[:2])[:, :, 0].to(x.dtype)


def _words(flat: bool, *each: Three) -> list[list[int]]:
    return [[*one[1:]] if flat else [*one] for one in each]


def pool(
    x: Any, mode: str, include_pad: bool, kernel_d: int, kernel_h: int, kernel_w: int,
    stride_d: int, stride_h: int, stride_w: int, dilation_d: int, dilation_h: int,
    dilation_w: int, pad_d: int, pad_h: int, pad_w: int, over_d: int, over_h: int, over_w: int,
    divisor: int, index: bool,
) -> Any:  # fmt: skip
    flat = x.shape[1] == kernel_d == 1 and not pad_d
    taps, strides, dilations, pads = _words(
        flat, (kernel_d, kernel_h, kernel_w), (stride_d, stride_h, stride_w),
        (dilation_d, dilation_h, dilation_w), (pad_d, pad_h, pad_w),
    )  # fmt: skip
    ceiled = any((over_d, over_h, over_w))
    values = _first(x if x.dtype.is_floating_point else x.float(), flat)
    if mode == "average":
        if {*dilations} != {1}:
            return _last(_mean(values, taps, strides, pads, dilations, include_pad), flat)
        run: Callable[..., Any] = F.avg_pool2d if flat else F.avg_pool3d
        y = run(values, taps, strides, pads, ceiled, include_pad, divisor or None)
        return _last(y, flat)
    run = F.max_pool2d if flat else F.max_pool3d
    sign = -1 if mode == "min" else 1
    values = values if sign == 1 else -values
    found = run(values, taps, strides, pads, dilations, ceiled, return_indices=index)
    y, places = found if index else (found, None)
    y = _last(y if sign == 1 else -y, flat).to(x.dtype)
    return (y, _last(places, flat)) if index else y


def pool_backward(
    x: Any, dy: Any, index: Any, mode: str, include_pad: bool, kernel_d: int, kernel_h: int,
    kernel_w: int, stride_d: int, stride_h: int, stride_w: int, dilation_d: int, dilation_h: int,
    dilation_w: int, pad_d: int, pad_h: int, pad_w: int, over_d: int, over_h: int, over_w: int,
    divisor: int,
) -> Any:  # fmt: skip
    flat = x.shape[1] == kernel_d == 1 and not pad_d
    taps, strides, dilations, pads = _words(
        flat, (kernel_d, kernel_h, kernel_w), (stride_d, stride_h, stride_w),
        (dilation_d, dilation_h, dilation_w), (pad_d, pad_h, pad_w),
    )  # fmt: skip
    ceiled = any((over_d, over_h, over_w))
    arrived, values = _first(dy, flat), _first(x, flat)
    if index is None and {*dilations} != {1}:
        means = partial(
            _mean, taps=taps, strides=strides, pads=pads, dilations=dilations, padded=include_pad
        )
        (dx,) = torch.func.vjp(means, values)[1](arrived)
    elif index is None:
        run: Callable[..., Any] = aten.avg_pool2d_backward if flat else aten.avg_pool3d_backward
        dx = run(arrived, values, taps, strides, pads, ceiled, include_pad, divisor or None)
    else:
        run = aten.max_pool2d_with_indices_backward
        run = run if flat else aten.max_pool3d_with_indices_backward
        places = _first(index, flat)
        dx = run(arrived, values, taps, strides, pads, dilations, ceiled, places)
    return _last(dx, flat).contiguous()


FORMS = {"im2col": im2col, "col2im": col2im, "pool": pool, "pool_backward": pool_backward}
