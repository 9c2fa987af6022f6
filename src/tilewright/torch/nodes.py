"""Nodes of torch's graph in C++ (`nodes.cpp`), for calls that the dispatcher repeats.

The system's C++ compiler compiles them once for each torch, with the headers that came with it.
That takes some ten seconds, so it happens in the background, and calls are recorded in Python until
then; for good where it cannot be done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tilewright import garbage
from tilewright.errors import StoreError
from tilewright.runtime import with_torch
from tilewright.runtime.launcher import launcher

log = logging.getLogger("tilewright")

_SOURCE = Path(__file__).with_name("nodes.cpp")


def compiled() -> ModuleType:
    """The compiled module. Raises as `with_torch.loaded`."""
    return with_torch.loaded(_SOURCE, "torch's nodes", torch)


class _Nodes:
    """The module, once it is there."""

    def __init__(self) -> None:
        self.module: ModuleType | None = None
        self._thread: threading.Thread | None = None
        self._when_there: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def begin(self, when_there: Callable[[], object]) -> threading.Thread:
        """Compile and load it in the background, unless that has begun.

        when_there: is called then.
        """
        with self._lock:
            if self.module is None and when_there not in self._when_there:
                self._when_there.append(when_there)
            if self._thread is None:
                self._thread = threading.Thread(target=self._load, daemon=True)
                self._thread.start()
            return self._thread

    def _load(self) -> None:
        garbage.begin_thread()
        try:
            module = compiled()
        except Exception as error:
            level = logging.WARNING if isinstance(error, StoreError) else logging.INFO
            log.log(
                level, "%s; until then the backward pass of a call takes longer, in Python", error
            )
            return
        with self._lock:
            self.module = module
            told = [*self._when_there]
        for one in told:
            one()


_nodes = _Nodes()


def begun(dispatcher: Any) -> threading.Thread | None:
    """The thread that compiles and loads the module, after which calls of `dispatcher` are recorded
    by it; None where none of them can be repeated."""
    if not hasattr(launcher(), "recipes"):
        return None
    return _nodes.begin(dispatcher.forget_recipes)


def recording(
    call: Any,
    inputs: int,
    saved: Sequence[int],
    returned: Sequence[int],
    places: Sequence[int],
    carry_out: Callable[..., Any],
    learn: Callable[..., Any],
) -> Any:
    """What records calls in C++, see `nodes.cpp`; None while the module is not there."""
    module = _nodes.module
    if module is None:
        return None
    given = tuple(saved), tuple(returned), tuple(places)
    return module.recording(call, inputs, *given, carry_out, learn, launcher().recipes)
