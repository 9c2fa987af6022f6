"""A call that torch may have to know of, outside of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilewright import calls
from tilewright.default import default_dispatcher
from tilewright.torch import autocast, fake, gradients, operators, said

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def eager(op: str, operands: Sequence[Any], stream: Any, keywords: Mapping[str, Any]) -> Any:
    """Run a call that passes no outputs: by the operator where a tensor is no plain one, or a mode
    or a tracer is watching; recorded where gradients are wanted; else by the dispatcher. Under
    autocast, on converted operands, unless `stream` is given: torch converts on its own stream."""
    if stream is not None:
        return default_dispatcher().run_given(op, operands, None, stream, keywords)
    spoken = _spoken(op, keywords)
    if spoken.numbers:
        keywords = calls.with_arrays(spoken, keywords, operands)
        spoken = _spoken(op, keywords)
    tensors = (*operands, *spoken.named.values())
    seen = (
        torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
        or torch.autograd.profiler._is_profiler_enabled
    )
    wanted = False
    for x in tensors:
        if type(x) not in _PLAIN:
            if not isinstance(x, torch.Tensor):
                return default_dispatcher().run_given(op, operands, None, None, keywords)
            seen = True
        seen = seen or x.is_nested
        wanted = wanted or x.requires_grad
    gradients.refuse_transforms(op, tensors)
    if autocast.active():
        tensors = autocast.converted(op, tensors, tuple(spoken.named), spoken.options)
        operands = tensors[: len(operands)]
        named = dict(zip(spoken.named, tensors[len(operands) :], strict=True))
        keywords = {**keywords, **named}
        if not seen and spoken.what is not None:
            made = default_dispatcher().repeat(spoken.what, tuple(tensors), spoken.scalars)
            if made is not None:
                return made
    if seen:
        return _returned(operators.run(op, *_apart(op, spoken, tensors)))
    if wanted and torch.is_grad_enabled():
        apart = _apart(op, spoken, tensors)
        return _returned(gradients.recorded(operators.launch, op, *apart, spoken.what))
    return default_dispatcher().run_given(op, operands, None, None, keywords)


def _spoken(op: str, keywords: Mapping[str, Any]) -> calls.Spoken:
    """The keywords of a call, sorted and checked, with symbols (of ``torch.export``) in their
    places."""
    symbols = {name: value for name, value in keywords.items() if said.holds_symbol(value)}
    if not symbols:
        return calls.spoken(op, keywords, 0)
    known = {name: said.exchanged(value, fake.stand_in) for name, value in symbols.items()}
    found = calls.spoken(op, {**keywords, **known}, 0)
    options = {name: symbols.get(name, value) for name, value in found.options.items()}
    of_scalars = zip(calls.scalars_of(op), found.scalars, strict=True)
    scalars = tuple([symbols.get(name, value) for name, value in of_scalars])
    return replace(found, what=None, scalars=scalars, options=options)


def _apart(
    op: str, spoken: calls.Spoken, tensors: Sequence[Any]
) -> tuple[said.Said, Sequence[Any], list[int | float]]:
    what, numbers = said.of(op, spoken)
    return what, tensors, numbers


def _returned(made: Sequence[Any]) -> Any:
    return made[0] if len(made) == 1 else tuple(made) or None
