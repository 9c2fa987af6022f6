"""Perceptrons of two linear layers and an activation between them, in eager code.

Without gradients the activation is part of the first product, so that two launches make all. With
them, see `tilewright.torch.functional.perceptron`. Compiled code has the forward of the module's
class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from tilewright.operation import is_watched
from tilewright.torch import autocast
from tilewright.torch.functional.perceptron import again, perceptron
from tilewright.torch.functional.products import MOST_DIMENSIONS
from tilewright.torch.porting import methods
from tilewright.torch.porting.between import touched
from tilewright.torch.porting.forwards import linear_forward, product, turned_forward
from tilewright.torch.porting.served import PLAIN, attempted, has_hooks, served

LAYERS = (linear_forward, turned_forward)
"""The forwards of ported linear layers."""


@dataclass(frozen=True, slots=True)
class Perceptron:
    """What a perceptron is made of.

    activation: our name of it.
    first, second: the attributes that have the layers.
    others: all other attributes that its forward may call.
    """

    activation: str
    first: str
    second: str
    others: tuple[str, ...]


def perceptron_forward(module: Any, *given: Any, **named: Any) -> Any:
    """The module's data: a `Perceptron`, and what the module called beside its layers when it was
    ported."""
    if torch.compiler.is_compiling():
        return methods.usual(module, *given, **named)
    made = None
    if len(given) == 1 and not named:
        made_of, others = methods.data_of(module)
        if (
            _as_it_was(module, made_of, others)
            and not _has_any_global_hook()  # type: ignore[no-untyped-call]
            and not autocast.active()
        ):
            made = _computed(module, made_of, given[0])
    return type(module).forward(module, *given, **named) if made is None else made


def _as_it_was(module: Any, made_of: Perceptron, others: Sequence[Any]) -> bool:
    """Whether the layers are ported and have their parameters, nobody watches calls within, and
    nothing is dropped."""
    layers = module._modules
    for name in (made_of.first, made_of.second):
        layer = layers.get(name)
        if layer is None or not is_ported(layer) or has_hooks(layer):
            return False
        if not layer._parameters.keys() >= {"weight", "bias"}:
            return False  # parametrised: whoever reads one computes it, and perhaps anew
    for name, one in zip(made_of.others, others, strict=True):
        there = layers[name] if name in layers else getattr(module, name, None)
        if there is not one or touched(one):
            return False
        if type(one) is nn.Dropout and one.training and one.p:
            return False
    return True


def is_ported(layer: nn.Module) -> bool:
    """Whether a module is a ported linear layer."""
    return methods.function(layer.__dict__.get("forward")) in LAYERS


def _computed(module: Any, made_of: Perceptron, x: Any) -> Any:
    """None where tensors are not served, and where the layers are to record their gradients
    apart."""
    second = module._modules[made_of.second]
    w1, b1 = _parameters(module._modules[made_of.first])
    w2, b2 = _parameters(second)
    tensors = (x, w1, b1, w2, b2)
    recording = torch.is_grad_enabled()
    if recording and (made := again(made_of.activation, tensors)) is not None:
        return made
    if not recording or not any(one is not None and one.requires_grad for one in tensors):
        made = product(x, w1, b1, made_of.activation)
        return made if made is None else second(made)
    if is_watched() or not _recordable(*tensors) or not served(*tensors):
        return None
    return attempted(perceptron, made_of.activation, *tensors)


def _parameters(layer: Any) -> tuple[Any, Any]:
    """Weight, as [out, in], and bias."""
    weight, bias = layer._parameters["weight"], layer._parameters["bias"]
    turned = methods.function(layer.__dict__["forward"]) is turned_forward
    return (weight.t() if turned else weight), bias


def _recordable(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> bool:
    """Whether tensors are such as `perceptron` takes. Of a frozen layer torch keeps no input."""
    if not (w1.requires_grad and w2.requires_grad):
        return False
    if not (2 <= x.dim() <= MOST_DIMENSIONS and x.is_contiguous() and x.numel()):
        return False
    if type(x) not in PLAIN or (x.shape[-1], w1.shape[0]) != (w1.shape[1], w2.shape[1]):
        return False
    for w, b in ((w1, b1), (w2, b2)):
        if type(w) not in PLAIN or not (w.is_contiguous() or w.t().is_contiguous()):
            return False
        if b is not None and (type(b) not in PLAIN or b.shape != w.shape[:1] or b.stride(0) != 1):
            return False
    return True
