"""A call that torch may have to know of, outside of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright import calls
from tilewright.dispatch import default_dispatcher
from tilewright.errors import BadArgument
from tilewright.torch import gradients, operators, said

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def eager(op: str, operands: Sequence[Any], stream: Any, keywords: Mapping[str, Any]) -> Any:
    """Run a call that passes no outputs: by the operator where a tensor is no plain one, or a mode
    or a tracer is watching; recorded where gradients are wanted; else by the dispatcher."""
    spoken = calls.spoken(op, keywords, 0)
    tensors = [*operands, *spoken.named.values()]
    if stream is None and all(isinstance(x, torch.Tensor) for x in tensors):
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise BadArgument(
                f"{op} has no rule for torch.func (vmap, grad, jvp): call it outside of the "
                "transform; a batch is one more dimension of the operands"
            )
        watched = torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state()
        if watched or not all(type(x) in _PLAIN for x in tensors):
            return _returned(operators.run(op, *_apart(op, spoken, tensors)))
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            what, tensors, numbers = _apart(op, spoken, tensors)
            return _returned(gradients.recorded(operators.launch, op, what, tensors, numbers))
    return default_dispatcher().run_given(op, operands, None, stream, keywords)


def _apart(
    op: str, spoken: calls.Spoken, tensors: list[Any]
) -> tuple[said.Said, list[Any], list[int | float]]:
    what, numbers = said.of(op, spoken)
    return what, tensors, numbers


def _returned(made: Sequence[Any]) -> Any:
    return made[0] if len(made) == 1 else tuple(made)
