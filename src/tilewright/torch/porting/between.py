"""What stands between the products of a model, by one launch of ours: norms, and activations that
gate.

Eager code calls ours. Compiled code has the forward of the module's class, which Inductor makes one
kernel of with what stands around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import _disable_current_modes

from tilewright.operation import again, operation, remember
from tilewright.torch import autocast
from tilewright.torch.porting import methods
from tilewright.torch.porting.served import attempted, has_hooks, served


@dataclass(frozen=True, slots=True)
class Norm:
    """How a module norms.

    op: our operation.
    columns: how many values are normed together.
    eps: the attribute that has the number; the attribute may be None in torch's RMS norm.
    offset: what is added to the weight.
    biased: whether the module has a bias, which may be None.
    images: whether columns are the second of four dimensions, which lies innermost; else they are
        the last dimension.
    """

    op: str
    columns: int
    eps: str
    offset: float = 0.0
    biased: bool = False
    images: bool = False


def norm_forward(module: Any, *given: Any, **named: Any) -> Any:
    """Of an RMS norm or a layer norm. The module's data: a `Norm`."""
    if torch.compiler.is_compiling():
        return methods.usual(module, *given, **named)
    made = None
    if len(given) == 1 and not named:
        (norm,) = methods.data_of(module)
        made = _normed(module, norm, given[0])
    return type(module).forward(module, *given, **named) if made is None else made


def _normed(module: Any, norm: Norm, x: Any) -> Any:
    """None where tensors are not served."""
    eps = getattr(module, norm.eps)
    if type(eps) is not float:
        eps = _usual_eps(x.dtype) if eps is None else float(eps)
    weights = module.weight, module.bias if norm.biased else None
    if not norm.images:
        return _rows(norm, x, weights, (eps, norm.offset))
    what, given = ("images", norm.op, norm.columns), (x, *weights)
    made = again(what, given, (eps, norm.offset))
    if made is not None or x.dim() != 4:
        return made
    rows = x.permute(0, 2, 3, 1)
    normed = _rows(norm, rows, weights, (eps, norm.offset))
    if normed is None:
        return None
    made = normed.permute(0, 3, 1, 2)
    if not made.requires_grad:  # else torch records both views
        said = _said(weights, (eps, norm.offset))
        remember(what, given, ("w", "b"), norm.op, (rows,), said, (normed,), (made,))
    return made


def _rows(norm: Norm, x: Any, weights: tuple[Any, Any], numbers: tuple[float, float]) -> Any:
    """The norm of the last dimension; None where tensors are not served. A call like an earlier one
    is not asked again."""
    what, given = ("rows", norm.op, norm.columns), (x, *weights)
    made = again(what, given, numbers)
    if made is not None or autocast.active() or not served(*given) or not _lie_in_rows(x):
        return made
    if any(one.shape[-1:] != (norm.columns,) for one in given if one is not None):
        return None
    said = _said(weights, numbers)
    made = attempted(operation(norm.op), x, **said)
    if made is not None:
        remember(what, given, ("w", "b"), norm.op, (x,), said, (made,), (made,))
    return made


def _said(weights: tuple[Any, Any], numbers: tuple[float, float]) -> dict[str, Any]:
    """The keywords of a norm."""
    arrays = {name: x for name, x in zip("wb", weights, strict=True) if x is not None}
    return {**arrays, "eps": numbers[0], "offset": numbers[1]}


def _lie_in_rows(x: Any) -> bool:
    """Whether a tensor is rows that lie one behind another, evenly. The result of an operation of
    torch's is contiguous then, as ours is."""
    if x.dim() < 2 or not x.numel():
        return False
    if x.is_contiguous():
        return True
    shape, strides = x.shape, x.stride()
    if strides[-1] != 1 or strides[-2] < shape[-1]:
        return False
    apart = strides[-2]
    for n, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
        if n > 1 and stride != apart:
            return False
        apart *= n
    return True


@cache
def _usual_eps(dtype: Any) -> float:
    """What torch's RMS norm takes where eps is None: the rounding of `dtype`, or that of fp32, in
    which it computes; its versions differ."""
    with _disable_current_modes(), torch.no_grad():
        small = torch.full((1,), 2.0**-10, dtype=dtype, device="cpu")
        made = float(nn.functional.rms_norm(small, (1,)))
    return torch.finfo(torch.float32 if made > 0.5 else dtype).eps


# --- gates --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gate:
    """How a module gates: down_proj(activation(gate) · up).

    gate: our name of the activation.
    projections: the attributes whose results are gate and up; or one, whose result is both, gate
        first.
    activation: the attribute that has the activation.
    """

    gate: str
    projections: tuple[str, ...]
    activation: str


def gated_forward(module: Any, *given: Any, **named: Any) -> Any:
    """Of a multi-layer perceptron with a gate. The module's data: a `Gate`, and the activation as
    it was when the module was ported."""
    if torch.compiler.is_compiling():
        return methods.usual(module, *given, **named)
    if named or len(given) != 1:
        return type(module).forward(module, *given, **named)
    gate, activation = methods.data_of(module)
    if (
        getattr(module, gate.activation) is not activation
        or touched(activation)
        or _has_any_global_hook()  # type: ignore[no-untyped-call]
    ):
        return type(module).forward(module, *given, **named)
    parts = [getattr(module, name)(given[0]) for name in gate.projections]
    made = _gated(gate.gate, *parts)
    if made is None:
        first, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
        made = activation(first) * up
    return module.down_proj(made)


def touched(activation: Any) -> bool:
    """Whether a call of a module does more than the forward of its class."""
    if not isinstance(activation, nn.Module):
        return False
    return has_hooks(activation) or "forward" in activation.__dict__


def _gated(gate: str, x: Any, up: Any = None) -> Any:
    """None where tensors are not served. A call like an earlier one is not asked again."""
    what, given = ("gated", gate), (x, up)
    made = again(what, given)
    if made is not None or autocast.active() or not served(x, up) or not _lie_in_rows(x):
        return made
    if x.shape[-1] % 2 if up is None else up.shape != x.shape or not _lie_in_rows(up):
        return None
    said = {"gate": gate} if up is None else {"up": up, "gate": gate}
    made = attempted(operation("gated_activation"), x, **said)
    if made is not None:
        remember(what, given, ("up",), "gated_activation", (x,), said, (made,), (made,))
    return made
