"""A perceptron of two linear layers whose gradients are recorded, as one node of torch's graph.

    h = x · w1ᵀ + b1,  a = activation(h),  y = a · w2ᵀ + b2

It launches what the two layers and torch's activation launch, forward and backward, and keeps the
same tensors: x, h and a; of ReLU x and a. The host does less: one node where there were three, and
the gradients of each layer are one native call.

The activation is no part of the first product: its slope reads h, which is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tilewright.operation import recorded_as
from tilewright.torch import autocast, operators
from tilewright.torch.activations import ACTIVATIONS as functions
from tilewright.torch.backward_pass import repeated
from tilewright.torch.backward_plan import Described, Plan, plan_of_call
from tilewright.torch.functional.precision import tf32
from tilewright.torch.functional.products import linear, said_of_linear

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Activation:
    """forward: h → a. backward: (da, what it reads) → dh. reads_h: whether that is h; else a."""

    forward: Callable[[Any], Any]
    backward: Callable[[Any, Any], Any]
    reads_h: bool = True


ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Activation(functions["gelu"], _aten.gelu_backward.default),
    "gelu_tanh": Activation(
        functions["gelu_tanh"], partial(_aten.gelu_backward.default, approximate="tanh")
    ),
    "silu": Activation(functions["silu"], _aten.silu_backward.default),
    "relu": Activation(
        functions["relu"],
        lambda da, a: _aten.threshold_backward.default(da, a, 0),
        reads_h=False,
    ),
}
"""By the names that `linear` knows."""


def perceptron(activation: str, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """Two linear layers with an activation between them, whose gradients torch is to record.

    activation: one of `ACTIVATIONS`.
    x: [..., in], of 2 to 5 dimensions, contiguous.
    w1, w2: [hidden, in] and [out, hidden], each contiguous or the transpose of what is.
    b1, b2: vectors, or None.

    All are plain tensors of one dtype. Both weights require gradients.
    Raises `NoKernelFound`.
    """
    call, tensors = _planned(activation, x, w1, b1, w2, b2), (x, w1, b1, w2, b2)
    made = _apply(call, *tensors)  # type: ignore[no-untyped-call]
    key = _key(activation, tensors)
    if key is not None:
        if len(_CALLS) >= _KEPT:
            _CALLS.clear()
        _CALLS[key] = call
    return made


def again(activation: str, tensors: tuple[Any, ...]) -> Any:
    """What `perceptron` makes of tensors like those of an earlier call of it; None if there was
    none, or torch may have to know of this one otherwise."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    call = _CALLS.get(_key(activation, tensors))
    return None if call is None else _apply(call, *tensors)  # type: ignore[no-untyped-call]


def _key(activation: str, tensors: tuple[Any, ...]) -> Any:
    return recorded_as(("perceptron", activation, tf32(tensors[0])), tensors)


@dataclass(frozen=True, slots=True)
class _Call:
    """How calls that look alike are recorded.

    name: of the activation.
    first, second: the backward passes of the layers.
    """

    name: str
    first: Plan
    second: Plan


_CALLS: dict[Any, _Call] = {}
_KEPT = 4096


def _planned(name: str, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> _Call:
    hidden = x.new_empty((*x.shape[:-1], w1.shape[0]), device="meta")
    of_x = (x.shape, x.stride(), x.dtype, x.device, x.requires_grad)
    of_a = (hidden.shape, hidden.stride(), x.dtype, x.device, True)
    return _Call(
        name,
        *(
            plan_of_call("gemm", said_of_linear(x, w, b), (of_input, *_described(w, b)))
            for of_input, w, b in ((of_x, w1, b1), (of_a, w2, b2))
        ),
    )


def _described(*parameters: Any) -> Described:
    return tuple(
        (x.shape, x.stride(), x.dtype, x.device, x.requires_grad)
        for x in parameters
        if x is not None
    )


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        activation = ACTIVATIONS[call.name]
        h = linear(x, w1, b1)
        a = activation.forward(h)
        ctx.call = call
        ctx.save_for_backward(x, w1, b1, w2, b2, h if activation.reads_h else a, a)
        return linear(a, w2, b2)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        call = ctx.call
        x, w1, b1, w2, b2, read, a = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of this pass is asked for
            with autocast.off():  # its operands are of the dtypes that the call had
                return None, *_recorded(call.name, (x, w1, b1, w2, b2), dy)
        da, *of_second = _gradients(call.second, a, w2, b2, dy)
        dh = ACTIVATIONS[call.name].backward(da, read)
        return None, *_gradients(call.first, x, w1, b1, dh), *of_second


_apply = super(torch.autograd.Function, _Recorded).apply
"""As `tilewright.torch.gradients` has it."""


def _gradients(plan: Plan, x: Any, w: Any, b: Any, dy: Any) -> tuple[Any, ...]:
    """The gradients of a layer's input, weight and bias; None for each that wants none."""
    saved = plan.keep((x, w) if b is None else (x, w, b))
    found = repeated(plan, operators.launch, {}, saved, (dy,))
    return (*found, None) if b is None else tuple(found)


def _recorded(name: str, tensors: tuple[Any, ...], dy: Any) -> list[Any]:
    """The gradients of the tensors, as functions of these and of `dy`: the perceptron is computed
    anew, layer by layer."""
    x, w1, b1, w2, b2 = tensors
    y = linear(ACTIVATIONS[name].forward(linear(x, w1, b1)), w2, b2)
    wanted = [one for one in tensors if one is not None and one.requires_grad]
    made = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return [next(made) if one is not None and one.requires_grad else None for one in tensors]
