"""Convolutions, with torch's arguments: ``conv1d`` to ``conv3d``, and transposed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from tilewright import ops
from tilewright.operation import function
from tilewright.torch.functional import checked

_FUNCTIONS = ops.family("conv").functions


def _of_floats(name: str) -> Any:
    """The function of this name, which refuses what torch's own computes and ours does not."""

    def make(run: Callable[..., Any]) -> Callable[..., Any]:
        whole = _FUNCTIONS[name](run)

        @wraps(whole)
        def call(input: Any, weight: Any, bias: Any = None, *others: Any, **named: Any) -> Any:
            checked.floats(f"nn.functional.{name}", input=input, weight=weight, bias=bias)
            return whole(input, weight, bias, *others, **named)

        return call

    made = function("conv", name, make)
    made.__module__ = __name__
    return made


conv1d = _of_floats("conv1d")
conv2d = _of_floats("conv2d")
conv3d = _of_floats("conv3d")
conv_transpose1d = _of_floats("conv_transpose1d")
conv_transpose2d = _of_floats("conv_transpose2d")
conv_transpose3d = _of_floats("conv_transpose3d")


@cache
def where(served: Callable[..., bool], name: str, activation: str = "") -> Any:
    """A convolution that returns None where its tensors are not served. A call like an earlier one
    is not asked again.

    served: (input, weight, bias) → whether they are.
    name: such as ``conv2d``.
    activation: an epilogue without operands, which is applied to the result in the same kernel.
    """

    def make(run: Callable[..., Any]) -> Callable[..., Any]:
        def activated(*operands: Any, epilogue: str = "", **said: Any) -> Any:
            chain = f"{epilogue}+{activation}" if epilogue else activation
            return run(*operands, epilogue=chain, **said)

        whole = _FUNCTIONS[name](activated if activation else run)

        def call(input: Any, weight: Any, bias: Any, *others: Any) -> Any:
            if not served(input, weight, bias):
                return None
            return whole(input, weight, bias, *others)

        return call

    return function("conv", f"{name} where served, {activation}", make)
