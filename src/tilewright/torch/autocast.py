"""``torch.autocast``: calls convert their operands as torch's own products do.

A family says which operands are activations, weights and biases (`Differentiation.lowered`). Calls
that pass outputs, or write an operand in place, convert nothing, as torch's do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from tilewright import ops

active = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any kind of device."""

KEYS = (torch._C.DispatchKey.AutocastCPU, torch._C.DispatchKey.AutocastCUDA)
"""Where torch's operators convert. HIP's is CUDA's to torch."""

_ALL = torch._C.DispatchKeySet(KEYS[0]) | torch._C.DispatchKeySet(KEYS[1])

KEPT = 4096

_CONVERTED = frozenset({torch.float32, torch.float16, torch.bfloat16})


def off() -> Any:
    """A context in which operators convert nothing."""
    return torch._C._ExcludeDispatchKeyGuard(_ALL)


_REPEATED: dict[Any, tuple[int, ...]] = {}
"""Places of the arrays that calls convert which are repeated, by what they say."""


def as_before(what: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arrays of a call, converted as those of an earlier one (`remember`); None if there was
    none.

    what, arrays: see `Dispatcher.split`.
    """
    places = _REPEATED.get(what)
    return None if places is None else _converted_at(places, arrays)


def remember(
    what: Any, op: str, inputs: int, named: Sequence[str], options: Mapping[str, Any]
) -> None:
    """Let `as_before` convert the arrays of calls like one that was made.

    op, named, options: as of `converted`, for the arrays in the order of `what`.
    inputs: how many are passed by position.
    """
    if len(_REPEATED) >= KEPT:
        _REPEATED.clear()
    _REPEATED[what] = _places(op, inputs, (*named,), (*options.items(),))


def converted(
    op: str,
    tensors: Sequence[Any],
    named: Sequence[str],
    options: Mapping[str, Any],
) -> tuple[Any, ...]:
    """The operands of a call, converted to autocast's dtype where it is on for their device.

    tensors: operands by position, then those by keyword, of the names `named`.
    """
    said = op, len(tensors) - len(named), (*named,), (*options.items(),)
    try:
        places = _places(*said)
    except TypeError:  # a symbol has no hash
        places = _places.__wrapped__(*said)
    return _converted_at(places, tensors)


@lru_cache(maxsize=1024)
def _places(
    op: str, inputs: int, named: tuple[str, ...], options: tuple[tuple[str, Any], ...]
) -> tuple[int, ...]:
    """The places of the operands that are converted."""
    family = ops.family(op)
    if family.written(inputs, named):
        return ()
    return tuple(family.lowered(inputs, named, dict(options)))


def _converted_at(places: Sequence[int], tensors: Sequence[Any]) -> tuple[Any, ...]:
    found = list(tensors)
    for place in places:
        found[place] = _converted(found[place])
    return tuple(found)


def _converted(x: Any) -> Any:
    if x.dtype not in _CONVERTED:
        return x
    kind = "cuda" if x.is_cuda else x.device.type
    if not torch.is_autocast_enabled(kind):
        return x
    dtype = torch.get_autocast_dtype(kind)
    if x.dtype is dtype:
        return x
    if kind == "cuda" and x.requires_grad and x.is_leaf:
        # torch keeps the converted tensor of a weight until autocast ends. Only an operation that
        # it converts for reaches that tensor: a sum of products of one factor, which is a view.
        x = torch._VF.einsum("...", [x])  # type: ignore[attr-defined]
    return x.to(dtype)
