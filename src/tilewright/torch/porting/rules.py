"""Which modules are ported, by which forward, and why others are not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from tilewright.torch.functional import checked
from tilewright.torch.porting import (
    attending,
    between,
    forwards,
    methods,
    perceptrons,
    recognising,
)
from tilewright.torch.porting.served import is_sharded, is_wrapped


@dataclass(frozen=True, slots=True)
class Kind:
    """Modules of torch that are ported alike.

    bases: their classes.
    methods: those that a subclass must have from its base.
    forward: what their forward becomes.
    by: our function, for the report.
    compiled: what compiled code calls in place of the forward, if it is another (`methods.apart`).
    """

    bases: tuple[type, ...]
    methods: tuple[str, ...]
    forward: Callable[..., Any]
    by: str
    compiled: Callable[..., Any] | None = None

    def made(self, module: nn.Module) -> Mapping[str, Any]:
        """What a module's ``__dict__`` gets."""
        if self.compiled is None:
            return methods.bound(module, self.forward)
        return methods.apart(module, self.forward, self.compiled)


KINDS = (
    Kind((nn.Linear,), ("forward",), forwards.linear_forward, "linear", forwards.compiled_linear),
    Kind(
        (nn.Conv1d, nn.Conv2d, nn.Conv3d),
        ("forward", "_conv_forward"),
        forwards.conv_forward,
        "conv{}d",
    ),
    Kind(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        ("forward", "_output_padding"),
        forwards.transposed_forward,
        "conv_transpose{}d",
    ),
    Kind(
        (nn.MultiheadAttention,),
        ("forward",),
        forwards.heads_forward,
        "linear and scaled_dot_product_attention, where no weights are asked for",
    ),
)
OTHERS = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear)
"""Layers of torch that multiply matrices and have no function here."""
FORWARDS = frozenset(
    {
        forwards.sequential_forward,
        forwards.turned_forward,
        between.norm_forward,
        between.gated_forward,
        perceptrons.perceptron_forward,
        *(kind.forward for kind in KINDS),
    }
)
"""All forwards that ported modules have, but for those of `Attending`."""


@dataclass(frozen=True, slots=True)
class Found:
    """What becomes of a module.

    methods: what its ``__dict__`` gets, by name: methods, and what they need.
    by: our functions. why: why it stays as it is. One of the two is empty.
    """

    methods: Mapping[str, Any]
    by: str
    why: str = ""


def judged(module: nn.Module) -> Found | None:
    """What becomes of a module, but for a ``Sequential``; None for a module that is no matter of
    ours."""
    for kind in (*KINDS, *_of_transformers()):
        for base in kind.bases:
            if isinstance(module, base):
                why = _objection(module, base, kind)
                if why:
                    return Found({}, "", why)
                rank = base.__name__[-2] if "Conv" in base.__name__ else ""
                return Found(kind.made(module), kind.by.format(rank))
    if isinstance(module, nn.TransformerEncoderLayer):
        return Found(
            {},
            "",
            "its layers are ported; where no gradients are recorded, torch's fast path goes past "
            "them (torch.backends.mha.set_fastpath_enabled(False) turns it off)",
        )
    if isinstance(module, OTHERS):
        return Found({}, "", "no function here computes such a layer")
    found = _norm(module) or _gate(module)
    if found is not None:
        return found
    names = attending.methods(type(module))
    if not names:
        return None
    if why := _replaced(module, *names):
        return Found({}, "", why)
    attends = {name: attending.Attending(module, name) for name in names}
    return Found(attends, f"scaled_dot_product_attention, in {', '.join(names)}")


def _of_transformers() -> list[Kind]:
    """Kinds of transformers' own modules, if it has been imported."""
    base = getattr(sys.modules.get("transformers.pytorch_utils"), "Conv1D", None)
    return [] if base is None else [Kind((base,), ("forward",), forwards.turned_forward, "linear")]


def _norm(module: nn.Module) -> Found | None:
    """What becomes of a norm; None for another module."""
    base = next((one for one in (nn.LayerNorm, nn.RMSNorm) if isinstance(module, one)), None)
    named = recognising.NORM.search(type(module).__name__)
    if base is None and (not named or module._modules or not module._parameters):
        return None
    why = _replaced(module, "forward")
    weight = getattr(module, "weight", None)
    if why := why or ("" if weight is None else _weighed(weight)):
        return Found({}, "", why)
    if base is None or type(module).forward is not base.forward:
        norm = recognising.norm_of(module)
    else:
        norm = _of_torch(module)
    if isinstance(norm, str):
        return Found({}, "", norm)
    by = norm.op + (" of channels" if norm.images else "")
    by += f" with weight + {norm.offset:g}" if norm.offset else ""
    return Found(methods.bound(module, between.norm_forward, norm), by)


def _of_torch(module: Any) -> between.Norm | str:
    """How a norm of torch's norms; else why it stays as it is."""
    if len(module.normalized_shape) != 1:
        return f"it norms over {len(module.normalized_shape)} dimensions"
    of_layer = isinstance(module, nn.LayerNorm)
    op, (columns,) = "layer_norm" if of_layer else "rms_norm", module.normalized_shape
    return between.Norm(op, columns, "eps", biased=of_layer)


def _gate(module: nn.Module) -> Found | None:
    """What becomes of a multi-layer perceptron with a gate; None for another module."""
    gate = recognising.gate_of(module)
    if gate is None:
        return None
    if why := _replaced(module, "forward"):
        return Found({}, "", why)
    if isinstance(gate, str):
        return Found({}, "", gate)
    activation = getattr(module, gate.activation)
    made = methods.bound(module, between.gated_forward, gate, activation)
    return Found(made, f"gated_activation ({gate.gate})")


def perceptron(module: nn.Module) -> Found | None:
    """What becomes of a perceptron of two ported linear layers; None for another module."""
    made_of = recognising.perceptron_of(module)
    if made_of is None or isinstance(made_of, str):
        return Found({}, "", made_of) if made_of else None
    if why := _replaced(module, "forward"):
        return Found({}, "", why)
    others = tuple(getattr(module, name) for name in made_of.others)
    made = methods.bound(module, perceptrons.perceptron_forward, made_of, others)
    between = made_of.activation
    return Found(made, f"one call of {made_of.first}+{between}+{made_of.second}")


def joined(module: nn.Module) -> Found | None:
    """What becomes of a ``Sequential`` some of whose layers are ported; None where no two become
    one call, and for another module."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        return None
    if _replaced(module, "forward"):
        return None
    layers = [*module._modules.items()]
    pairs = [
        f"{name}+{other}"
        for (name, layer), (other, behind) in pairwise(layers)
        if layer is not None and behind is not None
        if forwards.joined(layer, behind)
    ]
    if not pairs:
        return None
    made = methods.bound(module, forwards.sequential_forward)
    return Found(made, f"one call of {', '.join(pairs)}")


def ported(module: nn.Module) -> list[str]:
    """Names of what the module has from us in its ``__dict__``: methods, and what they need."""
    found = [
        name
        for name, value in vars(module).items()
        if isinstance(value, attending.Attending) or methods.function(value) in FORWARDS
    ]
    return found + methods.beside(module) if "forward" in found else found


def _replaced(module: nn.Module, *names: str) -> str:
    """Why a module keeps its methods of these names, whatever its kind; empty if it need not."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is scripted"
    others = [name for name in names if name in vars(module) and name not in ported(module)]
    return f"its {others[0]} was replaced" if others else ""


def _objection(module: nn.Module, base: type, kind: Kind) -> str:
    if why := _replaced(module, "forward"):
        return why
    for name in kind.methods:
        if getattr(type(module), name) is not getattr(base, name):
            return f"its class {type(module).__name__} has its own {name}"
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return "its parameters have no shapes yet; port it after its first call"
    if isinstance(module, nn.MultiheadAttention):
        if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
            return "it adds a key of its own (add_bias_kv, add_zero_attn)"
        weights = [module.out_proj.weight]
    else:
        weights = [module.weight]  # type: ignore[list-item]
    return next(filter(None, map(_weighed, weights)), "")


def _weighed(x: Any) -> str:
    """Why a module keeps its forward for its weight; empty if it need not."""
    if is_wrapped(x) and not is_sharded(x):
        return f"its weight is a {type(x).__name__}"
    if x.dtype not in checked.FLOATS:
        return f"its weight is {str(x.dtype).removeprefix('torch.')}"
    return ""
