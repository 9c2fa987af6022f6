"""Which calls our functions take, in a model that may give anything to its layers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tilewright.errors import NoKernelFound
from tilewright.torch import autocast
from tilewright.torch.functional import checked

log = logging.getLogger("tilewright")

_said: set[str] = set()
"""What was said of calls that no kernel serves."""

PLAIN = frozenset({torch.Tensor, nn.Parameter})
"""Types of tensors that are no subclass of anybody's."""


def served(*tensors: Any, split: bool = False) -> bool:
    """Whether our functions take these: plain dense tensors of one dtype on a CPU or a GPU, outside
    of transforms of ``torch.func`` and of forward-mode differentiation. None is one left out.

    split: whether the function can be split over devices, so that each tensor may be a ``DTensor``
        in equal parts. Parts that are not equal would be brought together first, which torch's own
        rules need not do.
    """
    if not torch.compiler.is_compiling() and (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    ):
        return False
    dtype, distributed = None, None
    for x in tensors:
        if x is None:
            continue
        kind, wrapped = x.dtype, is_wrapped(x)
        if kind not in checked.FLOATS or not (x.is_cuda or x.is_cpu):
            return False
        if distributed not in (None, wrapped) or (wrapped and not (split and _in_equal_parts(x))):
            return False
        distributed = wrapped
        if x.layout is not torch.strided or x.is_nested:
            return False
        if dtype is not None and kind != dtype and not autocast.active():
            return False
        dtype = kind
    return True


def attempted(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What our function gives; None where no kernel serves the call. That is said once."""
    try:
        return call(*given, **named)
    except NoKernelFound as error:
        said = str(error)
        if said not in _said:
            _said.add(said)
            log.warning("torch computes a call of a ported model: %s", said)
        return None


def has_hooks(layer: nn.Module) -> bool:
    """Whether a call of a module calls others with it, but for hooks of all modules."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )


def is_sharded(x: Any) -> bool:
    """Whether a parameter is a ``DTensor``, in whose place FSDP puts a plain one while its module
    is called."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(x, distributed.DTensor)


def _in_equal_parts(x: Any) -> bool:
    """Whether a tensor that is made of others is a ``DTensor`` whose parts are equal."""
    if not is_sharded(x):
        return False
    sizes = list(x.shape)
    for placement, count in zip(x.placements, x.device_mesh.shape, strict=True):
        if placement.is_shard():
            if sizes[placement.dim] % count:
                return False
            sizes[placement.dim] //= count
    return True


def is_wrapped(x: Any) -> bool:
    """Whether a tensor is made of others, as a quantised or a distributed one is."""
    return type(x) not in PLAIN and is_traceable_wrapper_subclass(x)
