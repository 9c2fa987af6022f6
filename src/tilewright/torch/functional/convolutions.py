"""Convolutions, with torch's arguments: ``conv1d`` to ``conv3d``, and transposed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tilewright import ops
from tilewright.operation import function
from tilewright.torch.functional import checked
from tilewright.torch.functional.precision import tf32

_FUNCTIONS = ops.family("conv").functions


def _of_floats(name: str) -> Any:
    """The function of this name, which refuses what torch's own computes and ours does not."""
    as_fp32, as_tf32 = (_function(name, "", precision) for precision in ("ieee", "tf32"))

    @wraps(as_fp32)
    def call(input: Any, *others: Any, **named: Any) -> Any:
        return (as_tf32 if tf32(input, "conv") else as_fp32)(input, *others, **named)

    call.__module__, call.__name__, call.__qualname__ = __name__, name, name
    return call


def _function(
    name: str, activation: str, precision: str, served: Callable[..., bool] | None = None
) -> Any:
    """A convolution.

    name: such as ``conv2d``.
    activation: an epilogue without operands, which is applied to the result in the same kernel.
    precision: how fp32 is multiplied.
    served: (input, weight, bias) → whether they are; where they are not, it returns None. Without
        it, they are refused.
    """

    def make(run: Callable[..., Any]) -> Callable[..., Any]:
        def told(*operands: Any, epilogue: str = "", **said: Any) -> Any:
            chain = "+".join(filter(None, (epilogue, activation)))
            return run(*operands, epilogue=chain, precision=precision, **said)

        whole = _FUNCTIONS[name](told if activation or precision != "ieee" else run)

        @wraps(whole)
        def call(input: Any, weight: Any, bias: Any = None, *others: Any, **named: Any) -> Any:
            if served is None:
                checked.floats(f"nn.functional.{name}", input=input, weight=weight, bias=bias)
            elif not served(input, weight, bias):
                return None
            return whole(input, weight, bias, *others, **named)

        return call

    words = (name, activation, precision, "" if served is None else "where served")
    return function("conv", " ".join(filter(None, words)), make)


conv1d = _of_floats("conv1d")
conv2d = _of_floats("conv2d")
conv3d = _of_floats("conv3d")
conv_transpose1d = _of_floats("conv_transpose1d")
conv_transpose2d = _of_floats("conv_transpose2d")
conv_transpose3d = _of_floats("conv_transpose3d")


def where(
    served: Callable[..., bool], name: str, activation: str = "", in_tf32: bool = False
) -> Any:
    """A convolution that returns None where its tensors are not served. A call like an earlier one
    is not asked again.

    served: (input, weight, bias) → whether they are.
    name, activation: such as ``conv2d``; an activation that is applied in the same kernel.
    in_tf32: whether fp32 is multiplied as tf32.
    """
    return _function(name, activation, "tf32" if in_tf32 else "ieee", served)
