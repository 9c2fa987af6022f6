"""Torch's kernels of operations, wrapped.

A kernel is wrapped in torch's dispatcher, below autograd and autocast. So a call is heard once,
whoever makes it: eager code, the backward pass, and the calls of ATen in the code that
``torch.compile`` makes. Tracing, which calls kernels for fake tensors, does not come here.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch._guards import _TLS  # that of `TracingContext.try_get`, which takes longer

_OVERLOADS = frozenset({"default", "dtype", "Tensor"})
"""Besides those whose result is passed, which end in ``out``."""


class Hears(Protocol):
    """What is told of the calls of an operation."""

    def begin(self, overload: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """A call is about to be made. Returns what `end` is given; None if nothing is to be told
        of this call."""

    def end(self, begun: Any, made: Any) -> None:
        """The call made its result."""


class _Local(threading.local):
    """busy: whether the thread is in a wrapped call."""

    busy = False


class Hooks:
    """Wrapped kernels, until `remove` puts torch's own back."""

    def __init__(
        self, hears: Mapping[str, Mapping[str, Hears]], failed: Callable[[Exception], None]
    ) -> None:
        """hears: what is told, by the dispatch key of where tensors are and by operations of aten,
            without overloads.
        failed: called with an error of theirs. The model is not to fail with them."""
        self._library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        self._local, self._failed = _Local(), failed
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered")
            for key, by_name in hears.items():
                for name, of in by_name.items():
                    for overload in _overloads(name):
                        self._wrap(overload, key, of)

    def remove(self) -> None:
        """Put torch's kernels back."""
        self._library._destroy()

    def _wrap(self, overload: Any, key: str, hears: Hears) -> None:
        name = overload.name()
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key):
            return
        run = torch.library.get_kernel(name, key).call_boxed
        if overload._schema.name in _WITH_NUMBERS:
            run = _with_numbers(run, overload)
        self._library.impl(name, self._heard(run, overload, hears), key, with_keyset=True)

    def _heard(self, run: Callable[..., Any], overload: Any, hears: Hears) -> Callable[..., Any]:
        begin, end = hears.begin, hears.end
        local, failed = self._local, self._failed

        def heard(keys: Any, *args: Any, **keywords: Any) -> Any:
            # A call within a call is part of it. One that is made while a program is being
            # compiled only tries a kernel out.
            if local.busy or _TLS.__dict__.get("tracing_context") is not None:
                return run(keys, *args, **keywords)
            local.busy = True
            try:
                try:
                    begun = begin(overload, args, keywords)
                except Exception as error:
                    begun = failed(error)
                made = run(keys, *args, **keywords)
                if begun is not None:
                    try:
                        end(begun, made)
                    except Exception as error:
                        failed(error)
            finally:
                local.busy = False
            return made

        return heard


_WITH_NUMBERS = ("aten::add", "aten::add_")
"""Operations that take a number for a tensor (``x + 1``)."""


def _with_numbers(run: Callable[..., Any], overload: Any) -> Callable[..., Any]:
    """A kernel of `_WITH_NUMBERS`. Torch passes a number to a wrapper as a number, which its kernel
    does not take back. So the form with an output, which is not wrapped, is called then: it has the
    same kernel."""
    in_place = overload._schema.name.endswith("_")

    def call(keys: Any, one: Any, other: Any, **keywords: Any) -> Any:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return run(keys, one, other, **keywords)
        if in_place:
            return torch.add(one, other, out=one, **keywords)
        if not isinstance(one, torch.Tensor):
            one = torch.scalar_tensor(one, dtype=torch.result_type(one, other))
        out = torch.empty(0, dtype=torch.result_type(one, other), device=one.device)
        return torch.add(one, other, out=out, **keywords)

    return call


def _overloads(name: str) -> list[Any]:
    """The overloads of an operation that this torch has, without those that it decomposes: their
    parts are heard."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return []
    outputs = f"aten::{name}" not in _WITH_NUMBERS
    wanted = (x for x in packet.overloads() if x in _OVERLOADS or (outputs and x.endswith("out")))
    found = [getattr(packet, one) for one in wanted]
    implicit = torch._C.DispatchKey.CompositeImplicitAutograd
    return [
        one
        for one in found
        if one.name() in _names() and not one.has_kernel_for_dispatch_key(implicit)
    ]


@cache
def _names() -> frozenset[str]:
    """The operations that torch's dispatcher has. Other overloads are TorchScript's alone."""
    return frozenset(torch._C._dispatch_get_all_op_names())
