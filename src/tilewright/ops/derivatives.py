"""Derivatives of the operations of an epilogue, on torch tensors by their methods alone.

Sums are made in fp32, so the derivatives of whatever is not linear are taken in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

Slopes = Callable[..., tuple[Any, Any]]
"""The slopes of a gate: (gates, ups, operands…) → what its result changes by each."""


@dataclass(frozen=True, slots=True)
class Derivative:
    """The derivative of an operation z = f(x, operands).

    to_input: (dz, x, *operands) → dx; None where dx is dz.
    to_operands: for each operand, (dz, x) → its gradient, before it is summed to the operand's
        shape; None where it has no gradient.
    reads: what `to_input` reads besides dz and the operands: ``"x"``, ``"z"`` (z is passed in x's
        place), or neither.
    operands_read: whether `to_operands` read x.
    slopes: of a gate, for columns that lie otherwise.
    """

    to_input: Callable[..., Any] | None = None
    to_operands: tuple[Callable[..., Any] | None, ...] = ()
    reads: Literal["", "x", "z"] = ""
    operands_read: bool = False
    slopes: Slopes | None = None


def unchanged(dz: Any, x: Any) -> Any:
    """The gradient of an operand that is added."""
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
    # As the operation has it, x·sigmoid(2·inner): a compiler that sees both computes it once.
    sigmoid = (2.0 * (root * (x + 0.044715 * x**3))).sigmoid()
    slope = root * (1 + 3 * 0.044715 * x * x)
    return dz.float() * sigmoid * (1 + 2 * x * (1 - sigmoid) * slope)


def _silu(dz: Any, x: Any) -> Any:
    x = x.float()
    sigmoid = x.sigmoid()
    return dz.float() * sigmoid * (1 + x * (1 - sigmoid))


def of_halves(slopes: Slopes, apart: bool, dz: Any, x: Any, *operands: Any) -> Any:
    """dx of a gate. apart: columns of x are all gates and then all ups; else they take turns."""
    pairs = x.float().unflatten(-1, (2, -1) if apart else (-1, 2))
    axis = -2 if apart else -1
    by_gate, by_up = slopes(*pairs.unbind(axis), *operands)
    dz = dz.float()
    first = (pairs.new_ones(2).cumsum(0) < 1.5).reshape(2, *(1,) * (-1 - axis))
    each = (dz * by_gate).unsqueeze(axis).where(first, (dz * by_up).unsqueeze(axis))
    return each.flatten(-2)


def _swiglu(gate: Any, up: Any) -> tuple[Any, Any]:
    sigmoid = gate.sigmoid()
    return up * sigmoid * (1 + gate * (1 - sigmoid)), gate * sigmoid


def _geglu(gate: Any, up: Any) -> tuple[Any, Any]:
    return _gelu(up, gate), gate * (0.5 * (1 + (gate / math.sqrt(2)).erf()))


def _geglu_tanh(gate: Any, up: Any) -> tuple[Any, Any]:
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return _gelu_tanh(up, gate), gate * (0.5 * (1 + inner.tanh()))


def _reglu(gate: Any, up: Any) -> tuple[Any, Any]:
    return _relu(up, gate), gate.clamp(min=0)


def _glu(gate: Any, up: Any) -> tuple[Any, Any]:
    sigmoid = gate.sigmoid()
    return up * sigmoid * (1 - sigmoid), sigmoid


def _clamped_swiglu(plus: float, gate: Any, up: Any, limit: Any, alpha: Any) -> tuple[Any, Any]:
    least = gate.clamp(max=limit)
    sigmoid = (alpha * least).sigmoid()
    within = up.clamp(-limit, limit) + plus
    by_gate = within * sigmoid * (1 + alpha * least * (1 - sigmoid))
    return _clamp(by_gate, gate, -math.inf, limit), _clamp(least * sigmoid, up, -limit, limit)


def _clamp(dz: Any, x: Any, low: Any, high: Any) -> Any:
    x = x.float()
    return dz.masked_fill((x < low) | (x > high), 0)


def _gate(slopes: Slopes, to_operands: tuple[None, ...] = ()) -> Derivative:
    return Derivative(partial(of_halves, slopes, False), to_operands, reads="x", slopes=slopes)


ADDED = Derivative(to_operands=(unchanged,))
MULTIPLIED = Derivative(_times_operand, (_times_input,), operands_read=True)
RELU = Derivative(_relu, reads="z")
GELU = Derivative(_gelu, reads="x")
GELU_TANH = Derivative(_gelu_tanh, reads="x")
SILU = Derivative(_silu, reads="x")
SWIGLU = _gate(_swiglu)
GEGLU = _gate(_geglu)
GEGLU_TANH = _gate(_geglu_tanh)
REGLU = _gate(_reglu)
GLU = _gate(_glu)


def clamped_swiglu(plus: float) -> Derivative:
    """The derivative of a clamped SwiGLU; limit and alpha have none."""
    return _gate(partial(_clamped_swiglu, plus), (None, None))


CLAMP = Derivative(_clamp, (None, None), reads="x")
