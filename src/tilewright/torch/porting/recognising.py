"""Norms, gates and perceptrons of classes that are not torch's, recognised by what they compute.

A name alone says too little: Gemma's RMS norm adds 1 to its weight, others round elsewhere or norm
groups. So the forward of the class is run, once, on a stand-in for the module with weights of its
own and random numbers, and its results are held to what our operation computes. Nothing is launched
of ours, and neither the module nor torch's random numbers change.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from tilewright.torch.functional.perceptron import ACTIVATIONS
from tilewright.torch.porting import methods
from tilewright.torch.porting.between import Gate, Norm
from tilewright.torch.porting.perceptrons import Perceptron, is_ported

NORM = re.compile(r"(RMS|Rms|Layer)_?Norm(2d)?$")
"""How classes of norms are called."""

_EPS = "variance_epsilon", "eps"
_SHAPE = 2, 3, 5
"""Rows that a norm is tried on, as a batch of images has them."""
_OPS = "rms_norm", "layer_norm"
"""Ours. The first has no bias."""
_OFFSETS = 0.0, 1.0
_ROUNDINGS = 4
"""How far results may be apart, in roundings of their dtype: a norm that rounds before it
multiplies by the weight has two, and inner values may be rounded too."""
_SAME = 1e-5
"""How far gated values may be apart, beside 1 and their size. GELU and its approximation by tanh
are 5e-4 apart."""


def norm_of(module: nn.Module) -> Norm | str:
    """How a module of a class that `NORM` names norms; else why it stays as it is."""
    kind, own = type(module).__name__, module._parameters
    weight, bias = own.get("weight"), own.get("bias")
    if weight is None or weight.dim() != 1 or not own.keys() <= {"weight", "bias"}:
        return "it has no weight for each column"
    if bias is not None and bias.shape != weight.shape:
        return "it has no bias for each column"
    if module._modules or module._buffers or not _takes_one(module):
        return f"its class {kind} takes or has more than a norm's input and weights"
    eps = next((name for name in _EPS if type(getattr(module, name, None)) is float), "")
    if not eps:
        return f"its class {kind} has no eps or variance_epsilon"
    with _disable_current_modes():
        found = _tried(module, eps)
    return found or f"its class {kind} computes another norm"


def _takes_one(module: nn.Module) -> bool:
    """Whether the forward of the module's class takes one argument."""
    return len(inspect.signature(type(module).forward).parameters) == 2


def _tried(module: nn.Module, eps: str) -> Norm | None:
    """How a norm computes, by trying it on the device of its weight."""
    like: Any = module._parameters["weight"]
    device = torch.device("cpu") if like.is_meta else like.device
    rng, columns, dtype = torch.Generator("cpu").manual_seed(0), like.shape[0], like.dtype

    def drawn(least: float, *shape: int) -> Any:
        return least + torch.rand(*shape, generator=rng, dtype=torch.float64, device="cpu")

    ends = {"weight": 0.5, "bias": -0.5}
    weights = {
        name: None if x is None else drawn(ends[name], columns).to(dtype)
        for name, x in module._parameters.items()
    }
    number = getattr(module, eps)
    rows = (drawn(-0.25, *_SHAPE, columns) * _sizes(number)).to(dtype)
    biased = weights.get("bias") is not None
    there = {name: _on(device, x) for name, x in weights.items()}
    for images in (False, True):
        inputs = [rows, rows.flatten(0, 1), rows.flatten(0, 2)]
        inputs = [rows.permute(0, 3, 1, 2)] if images else inputs
        made = _outputs(module, {"_parameters": there}, [_on(device, x) for x in inputs])
        if made is None:
            continue
        found = [(x.permute(0, 2, 3, 1) if images else x).cpu().double() for x in made]
        for op, offset in product(_OPS[1:] if biased else _OPS, _OFFSETS):
            wanted, room = _exact(op, rows, number, offset, weights)
            apart = [(x - wanted.reshape(x.shape)).abs() <= room.reshape(x.shape) for x in found]
            if all(bool(one.all()) for one in apart):
                return Norm(op, columns, eps, offset, biased, images)
    return None


def _sizes(eps: float) -> Any:
    """How large rows are: the last of each four feel `eps`."""
    sizes = torch.tensor([1.0, 30.0, 0.01, eps**0.5], dtype=torch.float64, device="cpu")
    count = math.prod(_SHAPE)
    return sizes.repeat(count)[:count].reshape(*_SHAPE, 1)


def _on(device: Any, x: Any) -> Any:
    return None if x is None else x.to(device)


def _exact(
    op: str, x: Any, eps: float, offset: float, weights: Mapping[str, Any]
) -> tuple[Any, Any]:
    """What our operation computes, in float64, and how far off rounding may be."""
    near = _ROUNDINGS * torch.finfo(x.dtype).eps
    x, w = x.double(), weights["weight"].double() + offset
    bias = weights.get("bias")
    b = torch.zeros_like(w) if bias is None else bias.double()
    centred = x - x.mean(-1, keepdim=True) if op == "layer_norm" else x
    scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * w
    largest = x.abs().amax(-1, keepdim=True)  # a mean is as far off as it is
    return centred * scale + b, near * (2 * largest * scale.abs() + b.abs())


def _outputs(
    module: nn.Module, changes: Mapping[str, Any], inputs: Sequence[Any]
) -> list[Any] | None:
    """What the forward of a module's class makes of each input, in training or not; None if it
    raises an error, or makes anything but one tensor as its input.

    changes: what the module's ``__dict__`` has instead of its own.
    """
    found = []
    on = [x.device for x in inputs if x.is_cuda][:1]
    kind = inputs[0].device.type
    with torch.no_grad(), torch.random.fork_rng(on), torch.autocast(kind, enabled=False):
        for training, x in product((False, True), inputs):
            try:
                stand_in = copy.copy(module)
                stand_in.__dict__.update(changes, training=training)
                made = type(module).forward(stand_in, x)
            except Exception:  # a class of anybody's
                return None
            if not isinstance(made, torch.Tensor) or (made.shape, made.dtype) != (x.shape, x.dtype):
                return None
            found.append(made)
    return found


# --- gates --------------------------------------------------------------------------------------

_PROJECTIONS = ("gate_proj", "up_proj"), ("gate_up_proj",)
_DOWN = "down_proj"
_ACTIVATIONS = "act_fn", "activation_fn"

_GATES: Mapping[str, Callable[[Any], Any]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
}


def gate_of(module: nn.Module) -> Gate | str | None:
    """How a multi-layer perceptron gates; why it stays as it is; None for a module that has not the
    layers of one."""
    layers = module._modules
    projections = next((p for p in _PROJECTIONS if layers.keys() >= {*p, _DOWN}), ())
    name = next((n for n in _ACTIVATIONS if callable(getattr(module, n, None))), "")
    if not projections or not name:
        return None
    kind, activation = type(module).__name__, getattr(module, name)
    if not layers.keys() <= {*projections, _DOWN, name} or not _takes_one(module):
        return f"its class {kind} takes or has more than a gated layer"
    if isinstance(activation, nn.Module) and next(activation.parameters(), None) is not None:
        return f"its {name} has parameters"
    with _disable_current_modes():
        gate = _gate_tried(module, projections, name)
    return Gate(gate, projections, name) if gate else f"its class {kind} gates otherwise"


def _sampled() -> Any:
    """What activations are tried on."""
    ends = torch.tensor([-30.0, 30.0], device="cpu")
    return torch.cat([torch.linspace(-8, 8, 127, device="cpu"), ends]).double()


def _gate_tried(module: nn.Module, projections: tuple[str, ...], name: str) -> str:
    """Our name of the activation; empty if the module does not compute down_proj(activation(gate) ·
    up)."""
    rng, gate = torch.Generator("cpu").manual_seed(0), _sampled()
    up = (torch.rand(len(gate), generator=rng, device="cpu") + 0.5).double()
    up[::7] *= -30
    x = torch.zeros_like(gate)
    parts = [gate, up] if len(projections) == 2 else [torch.cat([gate, up])]
    seen: list[Any] = []

    def saying(said: Any) -> Callable[[Any], Any]:
        def call(given: Any) -> Any:
            seen.append(given)
            return said

        return call

    layers: dict[str, Any] = {p: saying(said) for p, said in zip(projections, parts, strict=True)}
    layers[_DOWN] = lambda given: given
    activation = getattr(module, name)
    if name in module._modules:  # without hooks of all modules
        layers[name] = partial(type(activation).forward, activation)
    made = _outputs(module, {"_modules": layers}, [x])
    if made is None or any(one is not x for one in seen) or len(seen) != len(projections) * 2:
        return ""
    for ours, function in _GATES.items():
        wanted = function(gate) * up
        if all(torch.allclose(one, wanted, _SAME, _SAME) for one in made):
            return ours
    return ""


# --- perceptrons --------------------------------------------------------------------------------

PERCEPTRON = re.compile(r"(MLP|Mlp|FeedForward|FFN)")
"""How classes are called of which the report says why they are no perceptrons."""


def perceptron_of(module: nn.Module) -> Perceptron | str | None:
    """What a perceptron of two ported linear layers is made of; why it stays as it is; None for a
    module that has not the layers of one."""
    layers = [name for name, one in module._modules.items() if one is not None and is_ported(one)]
    rest = {name: one for name, one in module._modules.items() if name not in layers}
    plain = all(one is not None and not any(_within(one)) for one in rest.values())
    own = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
    if any(isinstance(one, torch.Tensor) for one in own):
        return None
    if len(layers) != 2 or not plain or not _takes_one(module):
        return None
    named = PERCEPTRON.search(type(module).__name__)
    functions = [n for n, one in vars(module).items() if callable(one) and n not in methods.NAMES]
    with _disable_current_modes():
        activation = _perceptron_tried(module, layers[0], layers[1], rest)
    if activation:
        return Perceptron(activation, layers[0], layers[1], (*rest, *functions))
    return f"its class {type(module).__name__} computes another perceptron" if named else None


def _within(module: nn.Module) -> tuple[Any, ...]:
    return module._parameters, module._buffers, module._modules


def _perceptron_tried(module: nn.Module, first: str, second: str, rest: Mapping[str, Any]) -> str:
    """Our name of the activation; empty if the module does not compute second(activation(first(x)))
    while nothing is dropped."""
    between = _sampled()
    x = torch.zeros_like(between)
    seen: list[Any] = []

    def of_first(given: Any) -> Any:
        seen.append(given is x)
        return between.clone()  # which an activation may change in place

    def of_second(given: Any) -> Any:
        seen.append(given)
        return given + 1

    made = []
    for training in (False, True):  # of modules that drop, whatever mode they are in now
        layers: dict[str, Any] = {first: of_first, second: of_second}
        for name, one in rest.items():
            dropping = type(one) is nn.Dropout  # its calls look whether it drops
            layers[name] = (lambda given: given) if dropping else partial(_called, one, training)
        found = _outputs(module, {"_modules": layers}, [x])
        if found is None:
            return ""
        made += found
    if len(seen) != 2 * len(made) or any(one is not True for one in seen[::2]):
        return ""
    for ours, activation in ACTIVATIONS.items():
        wanted = activation.forward(between)
        pairs = [*((one, wanted) for one in seen[1::2]), *((one, wanted + 1) for one in made)]
        if all(_same(*pair) for pair in pairs):
            return ours
    return ""


def _called(module: nn.Module, training: bool, given: Any) -> Any:
    """What a module without layers makes in a mode, without hooks of all modules."""
    stand_in = copy.copy(module)
    stand_in.__dict__["training"] = training
    return type(module).forward(stand_in, given)


def _same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, _SAME, _SAME)
