"""Derivatives of the operations of an epilogue, on torch tensors by their methods alone.

Sums are made in fp32, so the derivatives of whatever is not linear are taken in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Derivative:
    """The derivative of an operation z = f(x, operands).

    to_input: (dz, x, *operands) → dx; None where dx is dz.
    to_operands: for each operand, (dz, x) → its gradient, before it is summed to the operand's
        shape; None where it has no gradient.
    reads: what `to_input` reads besides dz and the operands: ``"x"``, ``"z"`` (z is passed in x's
        place), or neither.
    operands_read: whether `to_operands` read x.
    """

    to_input: Callable[..., Any] | None = None
    to_operands: tuple[Callable[..., Any] | None, ...] = ()
    reads: Literal["", "x", "z"] = ""
    operands_read: bool = False


def _same(dz: Any, x: Any) -> Any:
    return dz


def _times_operand(dz: Any, x: Any, scale: Any) -> Any:
    return dz.float() * scale.float()


def _times_input(dz: Any, x: Any) -> Any:
    return dz.float() * x.float()


def _relu(dz: Any, z: Any) -> Any:
    return dz.masked_fill(z <= 0, 0)


def _gelu(dz: Any, x: Any) -> Any:
    x = x.float()
    density = (-0.5 * x * x).exp() / math.sqrt(2 * math.pi)
    return dz.float() * (0.5 * (1 + (x / math.sqrt(2)).erf()) + x * density)


def _gelu_tanh(dz: Any, x: Any) -> Any:
    x = x.float()
    root = math.sqrt(2 / math.pi)
    tanh = (root * (x + 0.044715 * x**3)).tanh()
    inner = root * (1 + 3 * 0.044715 * x * x)
    return dz.float() * 0.5 * (1 + tanh + x * (1 - tanh * tanh) * inner)


def _silu(dz: Any, x: Any) -> Any:
    x = x.float()
    sigmoid = x.sigmoid()
    return dz.float() * sigmoid * (1 + x * (1 - sigmoid))


def _swiglu(dz: Any, x: Any) -> Any:
    """Of columns gate, up, gate, up…"""
    return _gated(dz, x.float().unflatten(-1, (-1, 2)), -1)


def swiglu_apart(dz: Any, x: Any) -> Any:
    """Of columns that are all gates and then all ups."""
    return _gated(dz, x.float().unflatten(-1, (2, -1)), -2)


def _gated(dz: Any, pairs: Any, axis: int) -> Any:
    """The gradient of gates and ups, which dimension `axis` of `pairs` tells apart, in their
    order."""
    gate, up = pairs.unbind(axis)
    sigmoid = gate.sigmoid()
    dz = dz.float()
    of_gate = dz * up * sigmoid * (1 + gate * (1 - sigmoid))
    of_up = dz * gate * sigmoid
    first = (pairs.new_ones(2).cumsum(0) < 1.5).reshape(2, *(1,) * (-1 - axis))
    return of_gate.unsqueeze(axis).where(first, of_up.unsqueeze(axis)).flatten(-2)


def _clamp(dz: Any, x: Any, low: Any, high: Any) -> Any:
    x = x.float()
    return dz.masked_fill((x < low) | (x > high), 0)


ADDED = Derivative(to_operands=(_same,))
MULTIPLIED = Derivative(_times_operand, (_times_input,), operands_read=True)
RELU = Derivative(_relu, reads="z")
GELU = Derivative(_gelu, reads="x")
GELU_TANH = Derivative(_gelu_tanh, reads="x")
SILU = Derivative(_silu, reads="x")
SWIGLU = Derivative(_swiglu, reads="x")
CLAMP = Derivative(_clamp, (None, None), reads="x")
