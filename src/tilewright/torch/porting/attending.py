"""Modules whose methods call torch's ``scaled_dot_product_attention``: the same methods, in which
that name is ours.

A method is made anew from its code, with globals in which torch's function, or the module that it
is looked up in, is another. So nothing of torch changes, other operations cost nothing, and
``torch.compile`` reads the method as it reads any. The globals are those of the time when the model
was ported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from tilewright.torch.functional import attention
from tilewright.torch.porting.served import attempted, served

SDPA: Any = nn.functional.scaled_dot_product_attention


class Attending:
    """A method of one module, with our function for torch's. It can be copied and pickled with its
    module."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name
        self.function = _redirected(getattr(type(module), name), further=True)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.function(self.module, *given, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return Attending, (self.module, self.name)


def methods(kind: type) -> list[str]:
    """Names of the methods of a class, but for those of torch's, that call
    ``scaled_dot_product_attention``, themselves or by a function of their module."""
    found = {
        name: method
        for base in reversed(kind.__mro__)
        if not base.__module__.startswith("torch.")
        for name, method in vars(base).items()
    }
    return [
        name
        for name, method in found.items()
        if isinstance(method, FunctionType) and _calls_it(method, further=True)
    ]


def _attend(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Our function for calls that it takes, else torch's. Calls with dropout stay torch's: ours
    rounds its share."""
    if not dropout_p:
        made = attention.repeated((query, key, value, attn_mask), is_causal, scale, enable_gqa)
        if made is not None:
            return made
    masks = (torch.bool, torch.float32, query.dtype)
    masked = attn_mask is None or attn_mask.dtype in masks
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    named = {"scale": scale, "enable_gqa": enable_gqa}
    split = attn_mask is None  # a mask that is split is brought together first
    if masked and not dropout_p and served(query, key, value, split=split):
        made = attempted(attention.scaled_dot_product_attention, *given, **named)
        if made is not None:
            return made
    return SDPA(*given, **named)


def _calls_it(function: FunctionType, further: bool) -> bool:
    return any(True for _ in _others(function, further))


def _redirected(function: FunctionType, further: bool) -> Callable[..., Any]:
    """The function with our function for torch's.

    further: whether functions that it calls are looked at too.
    """
    others = dict(_others(function, further))
    named = {name: value for name, value in function.__globals__.items() if name != "__name__"}
    made = FunctionType(
        function.__code__,
        {**named, **others},  # without a name: dynamo looks globals up in the module of that name
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    return made


def _others(function: FunctionType, further: bool) -> Iterator[tuple[str, Any]]:
    """The globals of a function that must be others, so that it calls ours."""
    names = set(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if value is SDPA:
            yield name, _attend
        elif isinstance(value, ModuleType) and SDPA.__name__ in names and value in _PATHS:
            yield name, _with(value, _PATHS[value])
        elif further and isinstance(value, FunctionType) and _calls_it(value, further=False):
            yield name, _redirected(value, further=False)


_PATHS: Mapping[ModuleType, tuple[str, ...]] = {
    torch: ("nn", "functional"),
    nn: ("functional",),
    nn.functional: (),
}
"""Modules that torch's function is found in, and the way to it."""


def _with(module: ModuleType, path: tuple[str, ...]) -> ModuleType:
    """A module like this one in which our function is found on the path."""
    made = ModuleType(module.__name__)
    made.__dict__.update(vars(module))
    if path:
        first, *rest = path
        setattr(made, first, _with(getattr(module, first), tuple(rest)))
    else:
        setattr(made, SDPA.__name__, _attend)
    return made


def _names(code: CodeType) -> Iterator[str]:
    """Global names and attributes in a function, also in those within."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
