"""aten's convolutions, and their gradients, as calls of ours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from tilewright.torch.installing.decisions import Asked, Decisions
from tilewright.torch.installing.overrides import Make, Original, Overrides, passing, serving

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Channels-last, by number of dimensions."""


FAMILIES = ("conv",)
"""What serves these operators."""


def put(overrides: Overrides, decisions: Decisions) -> None:
    """Serve ``convolution`` and ``convolution_backward``, of which the gradient of the data and
    that of the weights are decided apart."""
    overrides.put("convolution", serving(decisions, "convolution", _forward, _result, True))
    overrides.put("convolution_backward", _backward(decisions))


def _result(made: tuple[Any, ...], *_: Any, **__: Any) -> Any:
    return made[0]


def _words(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> dict[str, Any]:
    """What a call says of its geometry."""
    steps, before, apart = (tuple(map(int, numbers)) for numbers in (stride, padding, dilation))
    said = {"stride": steps, "pad": before, "pad_after": before, "dilation": apart}
    return {**said, "groups": groups}


def _why_not(
    tensors: Sequence[Any],
    transposed: bool,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> str:
    """Why torch keeps a call; ``""`` if it may be ours."""
    x, w = tensors[:2]
    if transposed:
        return "it is transposed"
    if any(one.dtype is not x.dtype for one in tensors):
        return "operands are of several dtypes"
    if not x.dim() == w.dim() == len(stride) + 2:
        return "there is no batch"
    if not len(stride) == len(padding) == len(dilation) or min(stride, default=0) < 1:
        return "numbers of its geometry do not fit"  # torch says so
    if any(0 in one.shape for one in tensors):
        return "an operand is empty"
    return ""


def _made(shape: Sequence[int], x: Any, w: Any) -> Any:
    """An array for a result, which lies as that of cuDNN does: channels-last if the data or the
    weights do."""
    order, last = torch.contiguous_format, _FORMATS.get(x.dim())
    if last is not None and any(
        one.is_contiguous(memory_format=last) and not one.is_contiguous() for one in (x, w)
    ):
        order = last
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)


def _forward(
    x: Any,
    w: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Asked | str:
    tensors = (x, w) if bias is None else (x, w, bias)
    if why := _why_not(tensors, transposed, stride, padding, dilation):
        return why
    said = _words(stride, padding, dilation, groups)
    sizes = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    spatial = [
        (n + 2 * pad - gap * (taps - 1) - 1) // step + 1 for n, taps, step, pad, gap in sizes
    ]
    if min(spatial) < 1:
        return "the result is empty"  # torch says so
    if bias is not None:
        said |= {"epilogue": "bias", "bias": bias}
    return Asked("conv", (x, w), said, (_made((x.shape[0], w.shape[0], *spatial), x, w),))


def _backward(decisions: Decisions) -> Make:
    """What `Overrides.put` takes for ``convolution_backward``."""
    names = ("convolution_backward: data", "convolution_backward: weights")
    passed = decisions.passed("convolution_backward")

    def make(original: Original) -> Callable[..., Any]:
        def kernel(
            key: Hashable,
            keys: Any,
            dy: Any,
            x: Any,
            w: Any,
            bias_sizes: Sequence[int] | None,
            stride: Sequence[int],
            padding: Sequence[int],
            dilation: Sequence[int],
            transposed: bool,
            output_padding: Sequence[int],
            groups: int,
            output_mask: Sequence[bool],
        ) -> tuple[Any, ...]:
            geometry = stride, padding, dilation, transposed, output_padding, groups
            found: list[Any] = [None, None, None]
            left = [*output_mask]
            every = []
            for place, aten in enumerate(names):
                if not left[place]:
                    continue
                decision = decisions.of(aten).get(key)
                asked = None
                if decision is None:
                    asked = _gradient(place, dy, x, w, *geometry)
                    decision = decisions.decide(aten, key, asked)
                every.append(decision)
                if decision.kernel:
                    made = decisions.again(decision, key, (dy, x, w))
                    if made is None:
                        asked = asked or _gradient(place, dy, x, w, *geometry)
                        assert isinstance(asked, Asked)
                        made = decisions.run(decision, asked, key, (dy, x, w))
                    if made is not None:
                        found[place], left[place] = made[0], False
            decisions.pass_on(passed, key, every)
            if any(left):
                rest = original(keys, dy, x, w, bias_sizes, *geometry, left)
                found = [
                    its if ours is None else ours for ours, its in zip(found, rest, strict=True)
                ]
            return tuple(found)

        return passing(passed, original, kernel)

    return make


def _gradient(
    place: int,
    dy: Any,
    x: Any,
    w: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Asked | str:
    """The gradient of the data (0) or of the weights (1)."""
    if why := _why_not((x, w, dy), transposed, stride, padding, dilation):
        return why
    said = _words(stride, padding, dilation, groups)
    if place == 0:
        said |= {"direction": "data", "spatial": tuple(x.shape[2:])}
        return Asked("conv", (dy, w), said, (_made(x.shape, x, w),))
    said |= {"direction": "weights", "filter": tuple(w.shape[2:])}
    return Asked("conv", (x, dy), said, (_made(w.shape, x, w),))
