"""Convolutions, transposed ones, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.aten.stated import MADE, Given, Same, Stated, apart, precision
from tilewright.ops.nouns import Call, View


def _steps(given: Given) -> dict[str, Any]:
    """Options that the forward pass and both gradients share. Of a transposed convolution, padding
    behind is less by what its result has more."""
    before = _each(given, "padding")
    more = _each(given, "output_padding") if given["transposed"] else (0,) * len(before)
    return {
        "stride": _each(given, "stride"),
        "pad": before,
        "pad_after": tuple(pad - one for pad, one in zip(before, more, strict=True)),
        "dilation": _each(given, "dilation"),
        "groups": given["groups"],
    }


def _each(given: Given, name: str) -> tuple[int, ...]:
    """A number for each spatial dimension; torch lets one stand for all."""
    numbers = tuple(given[name])
    rank = len(given["weight"].shape) - 2
    return numbers * rank if len(numbers) == 1 else numbers


def _forward(x: View, w: View, y: View, given: Given) -> Call:
    return Call((x, w), {}, (y,), {**_steps(given), **precision(given, x)})


def _data(y: View, w: View, x: View, given: Given) -> Call:
    said = {"direction": "data", "spatial": x.shape[2:], **_steps(given), **precision(given, y)}
    return Call((y, w), {}, (x,), said)


def _weights(x: View, y: View, w: View, given: Given) -> Call:
    said = {"direction": "weights", "filter": w.shape[2:], **_steps(given), **precision(given, x)}
    return Call((x, y), {}, (w,), said)


def _convolution(given: Given) -> Stated:
    """A transposed convolution is the gradient of another convolution's data."""
    (made,) = given[MADE]
    of = _data if given["transposed"] else _forward
    calls = [of(given["input"], given["weight"], made, given)]
    if (bias := given["bias"]) is not None:
        options = {**calls[0].options, "epilogue": "bias"}
        calls.insert(0, Call(calls[0].inputs, {"bias": bias}, (made,), options))
    return [Same("conv", tuple(calls))]


def _backward(given: Given) -> Stated:
    """The gradients of data and weights that are asked for. That of a bias is a sum."""
    of_input, of_weight, _ = given[MADE]
    arriving, x, w = apart(given["grad_output"]), given["input"], given["weight"]
    transposed, found = given["transposed"], []
    if of_input is not None:
        of = _forward if transposed else _data
        found.append(of(arriving, w, of_input, given))
    if of_weight is not None:
        pixels = (arriving, x) if transposed else (x, arriving)
        found.append(_weights(pixels[0], pixels[1], of_weight, given))
    return [Same("conv", (call,)) for call in found]


RULES: dict[str, Callable[[Given], Stated]] = {
    "convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _backward,
    "convolution_backward_overrideable": _backward,
}
"""By the name of an operation of aten."""
