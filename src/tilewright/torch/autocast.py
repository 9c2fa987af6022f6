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

_CONVERTED = frozenset({torch.float32, torch.float16, torch.bfloat16})


def off() -> Any:
    """A context in which operators convert nothing."""
    return torch._C._ExcludeDispatchKeyGuard(_ALL)


def converted(
    op: str,
    tensors: Sequence[Any],
    named: Sequence[str],
    options: Mapping[str, Any],
) -> tuple[Any, ...]:
    """The operands of a call, converted to autocast's dtype where it is on for their device.

    tensors: operands by position, then those by keyword, of the names `named`.
    """
    found = list(tensors)
    try:
        places = _places(op, len(tensors) - len(named), (*named,), (*options.items(),))
    except TypeError:  # a symbol has no hash
        places = _places.__wrapped__(op, len(tensors) - len(named), (*named,), (*options.items(),))
    for place in places:
        found[place] = _converted(found[place])
    return tuple(found)


@lru_cache(maxsize=1024)
def _places(
    op: str, inputs: int, named: tuple[str, ...], options: tuple[tuple[str, Any], ...]
) -> tuple[int, ...]:
    """The places of the operands that are converted."""
    family = ops.family(op)
    return (
        () if family.written(inputs, named) else tuple(family.lowered(inputs, named, dict(options)))
    )


def _converted(x: Any) -> Any:
    kind = x.device.type
    if x.dtype not in _CONVERTED or not torch.is_autocast_enabled(kind):
        return x
    if kind == "cuda" and x.requires_grad and x.is_leaf:
        # torch keeps the converted tensor of a weight until autocast ends. Only an operation that
        # it converts for reaches that tensor: a sum of products of one factor, which is a view.
        x = torch.einsum("...", x)
    return x.to(torch.get_autocast_dtype(kind))
