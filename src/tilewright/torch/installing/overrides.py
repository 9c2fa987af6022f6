"""Kernels in front of torch's own in its dispatch table, and how they are taken out again."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from tilewright.errors import NoCompiler
from tilewright.runtime import with_torch
from tilewright.runtime.launcher import launcher
from tilewright.torch.installing.decisions import (
    Asked,
    Decision,
    Decisions,
    deterministic,
    kind,
)

log = logging.getLogger("tilewright")

_SOURCE = Path(__file__).with_name("passing.cpp")

Original = Callable[..., Any]
"""Torch's own kernel: dispatch keys, arguments → results."""

Make = Callable[[Original], Callable[..., Any]]
"""Makes a kernel that may call torch's."""


class Overrides:
    """Kernels of ours for operators of torch, below autograd and autocast.

    Each falls through to the kernel that was there before, also of other overrides. If these are
    ours and are removed first, what was put in front of them is put there anew. Those of another
    library have to be removed last.

    key: where the tensors are: ``CUDA`` (HIP's, too), or ``CPU``.
    decisions: of which calls are passed on to torch's kernels in C++, where that can be compiled.
    """

    _all: ClassVar[list[Overrides]] = []
    """Those that are in torch's table, in the order in which they came there."""

    def __init__(self, key: str, decisions: Decisions | None = None) -> None:
        self.key = key
        self._decisions = decisions
        self._fronts: list[Any] = []
        self._makes: dict[str, Make] = {}
        self._library: Any = _library()
        self._all.append(self)

    @property
    def names(self) -> Iterable[str]:
        """The operators, with their overloads (``mm.out``)."""
        return self._makes

    def put(self, aten: str, make: Make) -> None:
        """Put a kernel in front of torch's.

        aten: the operator, with its overload.
        make: torch's kernel → a kernel, which is given the dispatch keys first.
        """
        self._makes[aten] = make
        try:
            found = torch.library.get_kernel(f"aten::{aten}", self.key)
            original: Original = found.call_boxed
        except RuntimeError:
            original = partial(_missing, aten, self.key)
        module = None if self._decisions is None else in_cpp()
        front = None if module is None else module.before(*_parted(aten), self.key)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells of each first override, which is meant
            self._library.impl(
                aten, make(original), self.key, with_keyset=True, allow_override=True
            )
            if front is not None and module is not None and self._decisions is not None:
                decisions, passed = self._decisions, self._decisions.passed(aten)
                learn = partial(decisions.learn, passed)
                recipes = launcher().recipes
                module.put(front, decisions.forget_last, learn, decisions.count, recipes)
                self._fronts.append(front)

    def tell(self) -> None:
        """Have `Decisions` count the calls that were served in C++."""
        for front in self._fronts:
            in_cpp().tell(front)

    def _take_out(self) -> None:
        while self._fronts:
            in_cpp().remove(self._fronts.pop())
        self._library._destroy()

    def remove(self) -> None:
        """Restore torch's dispatch table as it was."""
        place = self._all.index(self)
        later = self._all[place + 1 :]
        for one in (*reversed(later), self):
            one._take_out()
        del self._all[place]
        for one in later:
            one._library = _library()
            for aten, make in one._makes.items():
                one.put(aten, make)


def _parted(aten: str) -> tuple[str, str]:
    """Name and overload."""
    name, _, overload = aten.partition(".")
    return name, overload


@cache
def in_cpp() -> Any:
    """What passes calls on in C++, and repeats them (`passing.cpp`); None where it cannot be
    compiled."""
    if not hasattr(launcher(), "recipes"):
        return None
    try:
        return with_torch.loaded(_SOURCE, "what passes on torch's calls", torch)
    except NoCompiler as error:
        log.info("%s; until then calls that are torch's are passed on as objects of Python", error)
        return None


def _library() -> Any:
    return torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]


def _missing(aten: str, key: str, *_: Any, **__: Any) -> Any:
    raise NotImplementedError(f"torch has no kernel of aten::{aten} for {key}")


def passing(
    passed: set[Hashable], original: Original, ours: Callable[..., Any]
) -> Callable[..., Any]:
    """A kernel that passes calls on to torch's without Python code, where it can: those of a kind
    that is in `passed`, and those that have none. (`ours` is given the kind first.)"""
    made: Callable[..., Any] = launcher().passing(deterministic, kind, passed, original, ours)
    return made


def serving(
    decisions: Decisions,
    aten: str,
    ask: Callable[..., Asked | str],
    results: Callable[..., Any],
    single: bool = False,
) -> Make:
    """What `Overrides.put` takes to serve calls of one operator.

    ask: the call's arguments → what it asks of us, or why it asks nothing.
    results: outputs, the call's arguments → what the operator returns.
    single: whether that is the one output of a call, made by it: then C++ may repeat calls.
    """
    known, passed = decisions.of(aten), decisions.passed(aten)

    def make(original: Original) -> Callable[..., Any]:
        def kernel(key: Hashable, keys: Any, *args: Any, **kwargs: Any) -> Any:
            decision: Decision | None = known.get(key)
            if decision is None:
                decision = decisions.decide(aten, key, ask(*args, **kwargs))
            if decision.kernel:
                tensors = None if kwargs else tuple(filter(torch.is_tensor, args))
                made = None if tensors is None else decisions.again(decision, key, tensors)
                if made is not None and tensors is not None and single:
                    decisions.may_repeat(passed, decision, key, tensors)
                if made is None:
                    asked = ask(*args, **kwargs)
                    assert isinstance(asked, Asked)
                    made = decisions.run(decision, asked, key, tensors)
                if made is not None:
                    return results(made, *args, **kwargs)
            decisions.pass_on(passed, key, (decision,))
            return original(keys, *args, **kwargs)

        return passing(passed, original, kernel)

    return make
