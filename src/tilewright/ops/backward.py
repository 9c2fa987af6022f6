"""What a family states of its gradients: the computations that a backward pass makes.

    dS = dC·scale        ← a function of tensors
    grad A = dS·Bᵀ       ← an operation of Tilewright, on a transposed view

The statement is data and needs no torch; `tilewright.torch` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.ops.nouns import Operand, View


def incoming(output: str) -> str:
    """The name of the gradient that arrives for an output."""
    return f"grad {output}"


def alike(one: View | Operand, other: View | Operand) -> bool:
    """Whether an array and the operand that it is have the same dimensions in the same order. Equal
    shapes do not say so: a square matrix may be the operand's transpose."""
    walked = zip(one.shape, one.strides, other.strides, strict=False)
    return tuple(one.shape) == tuple(other.shape) and all(n < 2 or s == t for n, s, t in walked)


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a tensor over dimensions, a function that a `Computation` may have. An operation
    may compute it too: its one output has the elements of a vector, in order.

    over: the dimensions. op, options: the operation, and its keywords.
    read: of a tensor that has elements, the view that the operation reads, or None.
    """

    over: tuple[int, ...]
    op: str
    options: tuple[tuple[str, Any], ...]
    read: Callable[[Any], Any]

    def __call__(self, x: Any) -> Any:
        return x.sum(self.over)


@dataclass(frozen=True, slots=True)
class Computation:
    """One step of a backward pass.

    makes: the name of its result; unique. Of an operation with several outputs, all their names.
    op: an operation's name (``"gemm"``), or a function of torch tensors that makes a view, an
        elementwise result or a sum, by their methods alone.
    operands: names of its arguments by position: operands of the problem (inputs, and outputs that
        the forward pass wrote), incoming gradients (`incoming`), results of earlier steps, and
        scalars given at the call.
    keywords: names of the operands and the scalars that an operation takes by keyword.
    options: the operation's other keywords, with their values.
    view: whether `op` is a function that makes a view of its one operand.
    """

    makes: str | tuple[str, ...]
    op: str | Callable[..., Any]
    operands: tuple[str, ...]
    keywords: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    view: bool = False


@dataclass(frozen=True, slots=True)
class Backward:
    """How gradients of a problem's inputs are computed.

    computations: in an order in which they can be made. Every tensor of the problem, and every
        incoming gradient, has the shape of its operand (`Launching.operands`); an incoming
        gradient may have any strides.
    gradients: for each input that wants one, the name of the computed gradient. It has the shape of
        the input's operand.
    options: what the call says besides, while gradients are recorded, so that it writes what the
        computations read (a softmax's sums, say). The caller is not given the further outputs that
        it then has.
    constant: outputs that have no gradient: torch is told so.
    kept: the result of a computation that reads inputs alone, such as an activation's input. A
        forward pass that makes it, and the outputs from it by the functions `finish`, keeps it, so
        that the backward pass need not compute it. Empty where there is none.
    finish: functions of what is kept and of inputs; the last makes the one output.
    said: the option of the call, and its value, by which the operation makes what is kept alone.
    ending: names of the operations that `finish` has.
    differentiable: whether every computation has gradients itself, so that torch may record the
        backward pass (``create_graph=True``); if not, that is refused.
    """

    computations: tuple[Computation, ...]
    gradients: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    differentiable: bool = False
    constant: tuple[str, ...] = ()
    kept: str = ""
    finish: tuple[Computation, ...] = ()
    said: tuple[str, str] = ("", "")
    ending: tuple[str, ...] = ()

    def reads(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `names`, operands of the problem, that a backward pass reads."""
        read = set(self.gradients.values())
        for one in self.computations:
            read.update(one.operands, one.keywords.values())
        return tuple(name for name in names if name in read)
