"""A listener: hears the calls, and writes the file."""

from __future__ import annotations

import logging
import os
import statistics
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tilewright import aten, capture_file
from tilewright.capture_file import Record, Run, Unstated
from tilewright.torch.listening import heard
from tilewright.torch.listening.clock import EventClock, HostClock
from tilewright.torch.listening.epilogues import POINTWISE, Followed
from tilewright.torch.listening.heard import Kind
from tilewright.torch.listening.hooks import Hooks

log = logging.getLogger("tilewright")

_MOST_STEPS = 4096
"""Steps whose times are kept."""

_listening: weakref.WeakSet[Listener] = weakref.WeakSet()


class Listener:
    """Hears torch's own operations, in all threads, from `start` to `stop`.

    Raises `BadArgument` for a file that cannot be appended to, or is no capture.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        capture_file.check(self.path)
        self._lock = threading.Lock()
        self._clock: Any = EventClock() if torch.cuda.is_available() else HostClock()
        self._followed = Followed()
        self._broken = ""
        self._hooks: Hooks | None = None
        self._step_hook: Any = None
        self._forget()

    def _forget(self) -> None:
        self._kinds: dict[Any, Kind] = {}
        self._began = self._last = 0.0
        self._steps: dict[int, int] = {}
        self._stepped_at: list[float] = []

    def start(self) -> None:
        """Begin to listen."""
        hears = dict.fromkeys(aten.RULES, self) | dict.fromkeys(POINTWISE, self._followed)
        self._hooks = Hooks(hears, self._failed)
        self._step_hook = register_optimizer_step_post_hook(self._stepped)
        _listening.add(self)

    def stop(self) -> None:
        """End, and write what the file does not have yet."""
        if self._hooks is None:
            return
        self._hooks.remove()
        self._step_hook.remove()
        self._hooks = None
        _listening.discard(self)
        self._write_rest()

    def until_exit(self) -> None:
        """Stop when the process ends."""
        capture_file.at_exit(self.stop)

    # --- what is heard ------------------------------------------------------------------------

    def begin(self, overload: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """See `hooks.Hears`."""
        if self._broken:
            return None
        known = overload, heard.key(args, keywords)
        kind = self._kinds.get(known)
        began = self._clock.begin(0 if kind is None else kind.calls)
        return known, kind, args, keywords, began

    def end(self, begun: Any, made: Any) -> None:
        """See `hooks.Hears`."""
        known, kind, args, keywords, began = begun
        if kind is None:
            kind = self._first(known, args, keywords, made)
        followed = kind.called()
        if began is not None:
            self._clock.end(began, kind.add, kind.calls == 1)
        self._last = perf_counter()
        if followed:
            self._followed.product(kind, made)

    def _first(self, known: Any, args: Any, keywords: Any, made: Any) -> Kind:
        with self._lock:
            found = self._kinds.get(known)
            if found is None:
                if not self._kinds:
                    self._began = perf_counter()
                found = self._kinds[known] = heard.kind(known[0], args, keywords, made)
                # So that the file has it even if the process is killed.
                self._append(*(Record(p, 1, capture_file.Heard(found.by)) for p in found.problems))
                found.written = 1
            return found

    def _stepped(self, optimizer: Any, args: Any, keywords: Any) -> None:
        count = self._steps.get(id(optimizer), 0) + 1
        self._steps[id(optimizer)] = count
        if next(iter(self._steps)) == id(optimizer) and count <= _MOST_STEPS:
            self._stepped_at.append(perf_counter())

    # --- the file -----------------------------------------------------------------------------

    def _write_rest(self) -> None:
        """Write the counts that the file does not have, and the facts."""
        if not self._kinds:
            return
        self._clock.settle()
        counts = {kind: kind.count() for kind in self._kinds.values()}
        records = [
            Record(problem, count - kind.written, kind.facts())
            for kind, count in counts.items()
            for problem in kind.problems
        ]
        self._append(*records, self._run(counts))
        self._forget()

    def _run(self, counts: Mapping[Kind, int]) -> Run:
        between = [b - a for a, b in zip(self._stepped_at, self._stepped_at[1:], strict=False)]
        unstated: dict[tuple[str, str], tuple[int, float]] = {}
        for kind, calls in counts.items():
            if kind.why:
                count, seconds = unstated.get((kind.by, kind.why), (0, 0.0))
                each = kind.facts().each or 0.0
                unstated[kind.by, kind.why] = count + calls, seconds + calls * each
        return Run(
            torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            str(torch.__version__),
            self._last - self._began,
            max(self._steps.values(), default=0),
            statistics.median(between) if between else 0.0,
            tuple(Unstated(*what, *told) for what, told in unstated.items()),
        )

    def _append(self, *records: Record | Run) -> None:
        if self._broken:
            return
        try:
            capture_file.append(self.path, *records)
        except OSError as error:
            self._break(str(error.strerror))

    def _failed(self, error: Exception) -> None:
        self._break(f"{type(error).__name__}: {error}")

    def _break(self, why: str) -> None:
        """Write and hear nothing more."""
        if not self._broken:
            log.warning("listening into %s stops: %s", self.path, why)
        self._broken = why

    def forked(self) -> None:
        """In a new process: drop what the parent heard, which writes it itself."""
        self._lock = threading.Lock()
        self._forget()
        self.until_exit()


def _forked() -> None:
    for one in list(_listening):
        one.forked()


os.register_at_fork(after_in_child=_forked)
