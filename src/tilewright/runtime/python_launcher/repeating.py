"""A cached call that makes its outputs: `repeat.h`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.python_launcher.describing import (
    Torch,
    alignment,
    describe,
    lacking,
    launch_here,
    note_writes,
    written,
)
from tilewright.runtime.python_launcher.launching import Launch

Sources = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """See repeat.h."""

    launches: tuple[tuple[Launch, Sources], ...]
    makers: tuple[tuple[Any, tuple[Any, ...]], ...]
    returned: int


def recipe(
    launches: tuple[tuple[Launch, Sources], ...],
    makers: tuple[tuple[Any, tuple[Any, ...]], ...],
    returned: int,
) -> Recipe:
    """How the arrays of a call become the operands of its launches; see repeat.h."""
    return Recipe(launches, makers, returned)


def signature(what: Any, arrays: tuple[Any, ...], recorded: bool = False) -> Any:
    """The key of a call that may be repeated; None for one that may not be."""
    torch = sys.modules.get("torch")
    plain = () if torch is None else (torch.Tensor, torch.nn.Parameter, type(None))
    if any(type(x) not in plain for x in arrays):
        return None
    there = tuple([x for x in arrays if x is not None])
    try:
        key, _ = describe(what, there)
    except RuntimeError:  # a tensor without memory, as in a transform of torch.func
        return None
    absent = tuple([i for i, x in enumerate(arrays) if x is None])
    return key, absent, tuple([recorded and x.requires_grad for x in there])


def repeat(
    torch: Torch,
    recipes: Mapping[Any, Any],
    what: Any,
    arrays: tuple[Any, ...],
    scalars: tuple[Any, ...],
) -> Any:
    """A cached call that makes its outputs, whole; see repeat.h."""
    key = signature(what, arrays, torch[2]())
    found = recipes.get(key)
    recorded = key is not None and True in key[2]
    recipe, function = found if recorded and found else (found, None)
    if recipe is None or (function is not None and torch[5]() is not None):
        return None
    outputs = _carried_out(recipe, torch, arrays, scalars)
    if outputs is None:
        return None
    if function is not None:
        made = function(scalars, outputs, *[x for x in arrays if x is not None])
        return made[0] if isinstance(made, tuple) and len(made) == 1 else made
    returned = outputs[: recipe.returned]
    return returned[0] if len(returned) == 1 else returned


def _carried_out(
    found: Recipe,
    torch: Torch,
    arrays: tuple[Any, ...],
    scalars: tuple[Any, ...],
) -> tuple[Any, ...] | None:
    """All outputs that were made; None where the call is left to the caller."""
    if scalars and len(scalars) != sum(len(one.optional) for one, _ in found.launches):
        return None
    if torch[1] is not None and torch[1]() != found.launches[0][0].device:
        return None
    outputs = tuple([function(*arguments) for function, arguments in found.makers])
    parts = []
    for one, sources in found.launches:
        addresses = []
        for array, offset, example in sources:
            tensor = outputs[-array - 1] if array < 0 else arrays[array]
            address = tensor.data_ptr() + offset
            if alignment(address) != alignment(example):
                return None
            addresses.append(address)
        parts.append((one, sources, (*addresses,)))
    if any(lacking(one, torch, at) for one, _, at in parts):
        return None
    first = 0
    for one, sources, at in parts:
        own = scalars[first : first + len(one.optional)]
        first += len(one.optional)
        if launch_here(one, torch, at, own):
            return None
        roots = [sources[place][0] for place in written(one)]
        note_writes(torch, [arrays[root] for root in roots if root >= 0])
    return outputs


_WORDS = frozenset({str, int, type(None)})


def split(name: str, given: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """See repeat.h."""
    torch = sys.modules.get("torch")
    plain = () if torch is None else (torch.Tensor, torch.nn.Parameter)
    what: list[Any] = [name]
    arrays = []
    for x in given:
        kind = type(x)
        if kind in plain:
            arrays.append(x)
            what.append(...)
        elif kind in _WORDS or (kind is tuple and all(type(part) is int for part in x)):
            what.append(x)
        else:
            return None
    return tuple(what), tuple(arrays)
