"""What code that Inductor writes calls in place of an operator: what the operator does, without a
trip through torch's dispatcher, which takes longer than all that we do in a repeated call.

Such code holds plain tensors, and gradients are recorded around it. So nothing of torch has to see
the call, unless a mode or a profiler is watching; then the operator is called.

Inductor is told once it is there: importing it takes a second, and a program may not compile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_LOWERING = "torch._inductor.lowering"
_waiting: list[tuple[Any, str]] = []
"""Overloads that Inductor was not told of, and what its code is to call."""
_telling = threading.Lock()
"""Several threads may compile at once."""


def offer(namespace: str, op: str, overload: Any, run: Callable[..., list[Any]]) -> None:
    """Have Inductor's code call `run` in place of an operator's overload.

    run: takes and returns what the overload does.
    """

    def call(
        operands: list[Any], said: str = "", scalars: list[int | float] | None = None
    ) -> list[Any]:
        if torch._C._len_torch_dispatch_stack() or torch.autograd.profiler._is_profiler_enabled:
            made: list[Any] = overload(operands, said, scalars)
            return made
        return run(operands, said, scalars)

    name = f"called_{op}"
    setattr(getattr(torch.ops, namespace), name, call)
    _waiting.append((overload, f"torch.ops.{namespace}.{name}"))


def tell_inductor() -> None:
    """Tell Inductor of what was offered, if it is there. In a version with other interfaces, its
    code calls the operators."""
    if not _waiting or _LOWERING not in sys.modules:
        return
    lowering: Any = sys.modules[_LOWERING]
    with _telling:
        while _waiting:
            overload, name = _waiting.pop()
            try:
                _lowered(lowering, overload, name)
            except (AssertionError, AttributeError, ImportError, TypeError):
                lowering.lowerings.pop(overload, None)


def _lowered(lowering: Any, overload: Any, name: str) -> None:
    """Lower an overload as Inductor lowers one that it does not know, under another name."""
    from torch._library.utils import get_layout_constraint_tag

    tag = get_layout_constraint_tag(overload, with_default=True)
    constraint = lowering.tag_to_layout_constraint(tag)
    lowering.make_fallback(overload, layout_constraint=constraint, warn=False)
    usual = lowering.lowerings[overload]

    @wraps(usual)
    def named(*given: Any, **keywords: Any) -> Any:
        made = usual(*given, **keywords)
        kernel = _kernel_of(made)
        if getattr(kernel, "op_overload", None) is overload:
            kernel.python_kernel_name = name
        return made

    lowering.lowerings[overload] = named


def _kernel_of(outputs: Any) -> Any:
    """The node of Inductor's that makes `outputs`; None where nodes lie otherwise than in the
    versions that are known."""
    try:
        (kernel,) = outputs[0].data.data.inputs
    except (AttributeError, IndexError, TypeError, ValueError):
        return None
    return kernel
