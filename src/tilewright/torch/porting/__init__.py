"""`port`: a model's layers by our functions, and `unport`, which takes them back.

Only instances change: a ported module has a ``forward`` of its own, or another method, and nothing
else differs. Its class, its parameters and its hooks stay, and so do torch's functions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

from torch import nn

from tilewright.errors import BadArgument
from tilewright.printable import printable
from tilewright.torch.porting import rules
from tilewright.torch.porting.rules import Found
from tilewright.wording import many

__all__ = ["Ported", "PortedLayer", "port", "unport"]


@dataclass(frozen=True, slots=True)
class PortedLayer:
    """What became of one module.

    name: in the model; empty for the model itself.
    kind: its class.
    by: our functions that it calls; empty if it stays as it was.
    why: why it stays; empty if it does not.
    """

    name: str
    kind: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Ported:
    """What became of a model's modules. Modules that are not of a kind that can be ported are left
    out. ``print`` shows a table.

    layers: in the order of ``named_modules``.
    """

    layers: tuple[PortedLayer, ...]

    @property
    def swapped(self) -> tuple[str, ...]:
        """Names of the modules that call our functions."""
        return tuple(layer.name for layer in self.layers if layer.by)

    @property
    def kept(self) -> dict[str, str]:
        """Names of the others, with the reasons."""
        return {layer.name: layer.why for layer in self.layers if layer.why}

    @property
    def json(self) -> str:
        """The layers as a JSON document: a list of objects with the fields of `PortedLayer`."""
        return json.dumps([asdict(layer) for layer in self.layers], indent=1)

    def __str__(self) -> str:
        count = len(self.swapped)
        title = f"{many(count, 'module')} ported, {len(self.kept)} kept"
        rows = [
            (layer.name or "(model)", layer.kind, layer.by or f"kept: {layer.why}")
            for layer in self.layers
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows]
        return printable("\n".join([title, *lines]))


def port(model: nn.Module, *, only: Collection[str] = (), skip: Collection[str] = ()) -> Ported:
    """Let a model's layers call our functions in place of torch's, in the model itself.

    model: its ``Linear``, ``Conv1d`` to ``Conv3d``, transposed convolutions,
        ``MultiheadAttention``, ``LayerNorm`` and ``RMSNorm`` modules are ported, modules whose
        methods call ``scaled_dot_product_attention``, norms of other classes and multi-layer
        perceptrons with gates that compute what ours do. Perceptrons of two linear layers with an
        activation between them are one call. In a ``Sequential``, a layer and the GELU, ReLU or
        SiLU behind it are one call; with gradients, ReLU alone.
    only: names of modules, with all that they have within, or patterns such as
        ``blocks.*.mlp``; by default all.
    skip: names or patterns of modules that stay as they are, with all that they have within.

    Parameters, state dicts, hooks and classes do not change. A call with tensors that our functions
    do not take goes to the forward of the module's class, and so do norms and gates in compiled
    code. Port a model before ``torch.compile``. To port it again changes nothing.

    Raises `BadArgument` for anything but a module, for a compiled one, and for a name or pattern
    that no module has.
    """
    _refuse(model)
    modules = dict(model.named_modules())
    chosen = _named("only", only, modules) if only else modules.keys()
    skipped = _named("skip", skip, modules)
    found: dict[str, Found] = {}
    for name, module in modules.items():
        one = rules.judged(module)
        if one is None:
            continue
        left = name not in chosen or name in skipped
        if left and not rules.ported(module):
            one = Found({}, "", "skip= names it" if name in skipped else "only= does not name it")
        module.__dict__.update(one.methods)
        found[name] = one
    for name, module in modules.items():
        if name not in chosen or name in skipped:
            continue
        one = rules.joined(module)
        if name not in found:
            one = one or rules.perceptron(module)
        if one is not None:
            module.__dict__.update(one.methods)
            found[name] = one
    kinds = {name: type(module).__name__ for name, module in modules.items()}
    return Ported(
        tuple(PortedLayer(n, kinds[n], found[n].by, found[n].why) for n in modules if n in found)
    )


def unport(model: nn.Module) -> tuple[str, ...]:
    """Give all modules of a ported model the methods that they had. Returns their names.

    Raises `BadArgument` for anything but a module.
    """
    _refuse(model)
    names = []
    for name, module in model.named_modules():
        methods = rules.ported(module)
        for method in methods:
            del module.__dict__[method]
        names += [name] if methods else []
    return tuple(names)


def _refuse(model: nn.Module) -> None:
    """Raise `BadArgument` for a model that cannot be ported, or taken back."""
    if not isinstance(model, nn.Module):
        raise BadArgument(f"model is a {type(model).__name__}, but must be a torch.nn.Module")
    for name, module in model.named_modules():
        if module._compiled_call_impl is not None or _is_compiled(module):
            raise BadArgument(
                f"{name or 'the model'} is compiled, and its graphs keep what they have; port and "
                "unport a model before torch.compile"
            )


def _is_compiled(module: nn.Module) -> bool:
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _named(word: str, names: Collection[str], modules: Collection[str]) -> set[str]:
    """Modules with these names or patterns, and all within them. Raises `BadArgument`."""
    if isinstance(names, str):
        raise BadArgument(f"{word} is a text; pass a list of names")
    found = set()
    for wanted in names:
        named = {name for name in modules if name == wanted or fnmatchcase(name, wanted)}
        if not named:
            raise BadArgument(f"{word}: the model has no module '{wanted}'")
        found |= {
            name for name in modules if any(name == one or _within(name, one) for one in named)
        }
    return found


def _within(name: str, other: str) -> bool:
    return not other or name.startswith(f"{other}.")
