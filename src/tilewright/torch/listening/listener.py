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
from tilewright.torch.listening.clock import Clock, EventClock, HostClock
from tilewright.torch.listening.epilogues import POINTWISE, Followed
from tilewright.torch.listening.heard import Kind
from tilewright.torch.listening.hooks import Hears, Hooks

log = logging.getLogger("tilewright")

_MOST_STEPS = 4096
"""Steps whose times are kept."""

_BESIDE = "computed on the CPU, in a program that uses a GPU"

_listening: weakref.WeakSet[Listener] = weakref.WeakSet()


class Listener:
    """Hears torch's own operations, in all threads, from `start` to `stop`.

    kinds: what was heard, by device, operation and arguments. followed: what is done to results.
    last: when the last call was heard. broken: why nothing more is heard; "" if it is.

    Raises `BadArgument` for a file that cannot be appended to, or is no capture.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        capture_file.check(self.path)
        self._lock = threading.Lock()
        self.followed = Followed()
        self.broken = ""
        self._hooks: Hooks | None = None
        self._step_hook: Any = None
        self._forget()

    def _forget(self) -> None:
        self.kinds: dict[Any, Kind] = {}
        self._events = EventClock()
        self._gpu = False  # whether a call on a GPU was heard
        self._began = self.last = 0.0
        self._steps: dict[int, int] = {}
        self._stepped_at: list[float] = []

    def start(self) -> None:
        """Begin to listen."""
        behind: dict[str, Hears] = dict.fromkeys(POINTWISE, self.followed)
        clocks: dict[str, Clock] = {"CPU": HostClock(), "CUDA": self._events}  # HIP's are CUDA's
        hears = {key: dict.fromkeys(aten.RULES, _Ear(self, of)) for key, of in clocks.items()}
        self._hooks = Hooks({key: {**of, **behind} for key, of in hears.items()}, self._failed)
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

    def first(self, known: Any, args: Any, keywords: Any, made: Any) -> Kind:
        """The kind of a call that no kind is known for."""
        gpu, overload, *_ = known
        with self._lock:
            found = self.kinds.get(known)
            if found is None:
                if not self.kinds:
                    self._began = perf_counter()
                self._gpu = self._gpu or gpu
                found = heard.kind(overload, args, keywords, made, gpu)
                if self._gpu and not gpu:
                    found.leave_out(_BESIDE)
                self.kinds[known] = found
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
        if not self.kinds:
            return
        try:
            self._events.settle()
        except RuntimeError as error:  # of the GPU; the counts are right
            log.warning("listening into %s: times are left out: %s", self.path, error)
        for kind in self.kinds.values():
            if self._gpu and not kind.gpu:
                kind.leave_out(_BESIDE)
        counts = {kind: kind.count() for kind in self.kinds.values()}
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
            torch.cuda.get_device_name() if self._gpu else "cpu",
            str(torch.__version__),
            self.last - self._began,
            max(self._steps.values(), default=0),
            statistics.median(between) if between else 0.0,
            tuple(Unstated(*what, *told) for what, told in unstated.items()),
        )

    def _append(self, *records: Record | Run) -> None:
        if self.broken:
            return
        try:
            capture_file.append(self.path, *records)
        except OSError as error:
            self._break(str(error.strerror))

    def _failed(self, error: Exception) -> None:
        self._break(f"{type(error).__name__}: {error}")

    def _break(self, why: str) -> None:
        """Write and hear nothing more."""
        if not self.broken:
            log.warning("listening into %s stops: %s", self.path, why)
        self.broken = why

    def forked(self) -> None:
        """In a new process: drop what the parent heard, which writes it itself."""
        self._lock = threading.Lock()
        self._forget()
        self.until_exit()


class _Ear:
    """Tells a listener of calls on one kind of device."""

    def __init__(self, listener: Listener, clock: Clock) -> None:
        self._listener, self._clock = listener, clock

    def begin(self, overload: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """See `hooks.Hears`."""
        listener, clock = self._listener, self._clock
        if listener.broken:
            return None
        known = clock.gpu, overload, heard.key(args, keywords), torch.is_grad_enabled()
        kind = listener.kinds.get(known)
        began = clock.begin(0 if kind is None else kind.calls)
        return known, kind, args, keywords, began

    def end(self, begun: Any, made: Any) -> None:
        """See `hooks.Hears`."""
        known, kind, args, keywords, began = begun
        listener = self._listener
        if kind is None:
            kind = listener.first(known, args, keywords, made)
        followed = kind.called()
        if began is not None:
            self._clock.end(began, kind.add, kind.calls == 1)
        listener.last = perf_counter()
        if followed:
            listener.followed.product(kind, made)


def _forked() -> None:
    for one in list(_listening):
        one.forked()


os.register_at_fork(after_in_child=_forked)
