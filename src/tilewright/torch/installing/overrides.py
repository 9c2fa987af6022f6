"""Kernels in front of torch's own in its dispatch table, and how they are taken out again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewright.torch.installing.decisions import Asked, Decision, Decisions, kind

Original = Callable[..., Any]
"""Torch's own kernel: dispatch keys, arguments → results."""


class Overrides:
    """Kernels of ours for operators of torch, below autograd and autocast.

    key: where the tensors are: ``CUDA`` (HIP's, too), or ``CPU``.
    names: the operators so far.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.names: list[str] = []
        self._library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def put(self, aten: str, make: Callable[[Original], Callable[..., Any]]) -> None:
        """Put a kernel in front of torch's.

        aten: the operator, with its overload (``mm.out``).
        make: torch's kernel → a kernel, which is given the dispatch keys first.
        """
        try:
            found = torch.library.get_kernel(f"aten::{aten}", self.key)
            original: Original = found.call_boxed
        except RuntimeError:
            original = partial(_missing, aten, self.key)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells of each first override, which is meant
            self._library.impl(aten, make(original), self.key, with_keyset=True)
        self.names.append(aten)

    def remove(self) -> None:
        """Restore torch's dispatch table as it was."""
        self._library._destroy()


def _missing(aten: str, key: str, *_: Any, **__: Any) -> Any:
    raise NotImplementedError(f"torch has no kernel of aten::{aten} for {key}")


def serving(
    decisions: Decisions,
    aten: str,
    ask: Callable[..., Asked | str],
    results: Callable[..., Any],
) -> Callable[[Original], Callable[..., Any]]:
    """What `Overrides.put` takes to serve calls of one operator.

    ask: the call's arguments → what it asks of us, or why it asks nothing.
    results: outputs, the call's arguments → what the operator returns.
    """
    known = decisions.of(aten)

    def make(original: Original) -> Callable[..., Any]:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            key = kind(args, kwargs)
            if key is None:
                return original(keys, *args, **kwargs)
            decision: Decision | None = known.get(key)
            if decision is None:
                decision = decisions.decide(aten, key, ask(*args, **kwargs))
            if decision.kernel:
                asked = ask(*args, **kwargs)
                assert isinstance(asked, Asked)
                made = decisions.run(decision, asked)
                if made is not None:
                    return results(made, *args, **kwargs)
            return original(keys, *args, **kwargs)

        return kernel

    return make
