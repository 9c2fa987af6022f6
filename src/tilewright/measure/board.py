"""`Board`: the measurements still to be made, shared by the threads of a crew."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from tilewright.arch.model import Device
from tilewright.measure.measurement import Environment, Measurement

Kind = tuple[Device, Environment]
"""Places of one kind share a queue."""


@dataclass(frozen=True, slots=True)
class Item:
    """One measurement to make.

    failures: how often it was tried without success.
    seconds: wall time that it has taken so far.
    """

    kernel: str
    build: str
    problem: Any
    device: Device
    environment: Environment
    failures: int = 0
    seconds: float = 0.0

    @property
    def kind(self) -> Kind:
        """Where it can be measured."""
        return self.device, self.environment


Batch = tuple[Item, ...]
"""Items of one problem and one kind of place, measured in turns."""


class Board:
    """Batches to measure, by kind of place, and their results.

    A hand (the thread of one device) continues with the problem whose operands it has. If that
    problem has no more batches, it begins a problem that no other hand has, because every hand
    makes its own operands and float64 reference. If there is none, it helps with the problem that
    has the most batches left.

    results: each measurement as soon as it is known, an exception that ends the run, and None from
        each thread that ends.
    """

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.results: SimpleQueue[Measurement | BaseException | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._waiting: dict[Kind, dict[Any, deque[Batch]]] = {}
        """By problem, in the order of the batches; no queue is empty."""
        self._at: dict[object, Any] = {}
        """The problem that each hand has."""
        self._left: dict[Kind, int] = {}
        self._stopped = False
        for batch in batches:
            kind = batch[0].kind
            by_problem = self._waiting.setdefault(kind, {})
            by_problem.setdefault(batch[0].problem, deque()).append(batch)
            self._left[kind] = self._left.get(kind, 0) + len(batch)

    @property
    def kinds(self) -> list[Kind]:
        """Every kind of place that something is measured on."""
        return [*self._waiting]

    def pull(self, kinds: Collection[Kind], hand: object) -> Batch | None:
        """A batch for `hand`, of one of these kinds. Waits while other hands may still return
        batches. None if no batch will come, or the board is stopped."""
        with self._changed:
            while not self._stopped and any(self._left[kind] for kind in kinds):
                for kind in kinds:
                    if by_problem := self._waiting[kind]:
                        problem = self._next(by_problem, hand)
                        self._at[hand] = problem
                        batch = by_problem[problem].popleft()
                        if not by_problem[problem]:
                            del by_problem[problem]
                        return batch
                self._changed.wait()
            return None

    def _next(self, by_problem: Mapping[Any, Collection[Batch]], hand: object) -> Any:
        """The problem from which `hand` takes its next batch."""
        if (same := self._at.get(hand)) in by_problem:
            return same
        others = {problem for other, problem in self._at.items() if other is not hand}
        free = (problem for problem in by_problem if problem not in others)
        return next(free, None) or max(by_problem, key=lambda problem: len(by_problem[problem]))

    def push(self, batch: Batch) -> None:
        """Return a batch, to be done next among its problem's batches. An empty one does
        nothing."""
        if batch:
            with self._changed:
                by_problem = self._waiting[batch[0].kind]
                by_problem.setdefault(batch[0].problem, deque()).appendleft(batch)
                self._changed.notify_all()

    def done(self, measurement: Measurement) -> None:
        """Record that one item is measured."""
        with self._changed:
            self._left[measurement.device, measurement.environment] -= 1
            self._changed.notify_all()
        self.results.put(measurement)

    @property
    def left(self) -> int:
        """Items that are not yet measured."""
        with self._changed:
            return sum(self._left.values())

    def stop(self) -> None:
        """Give no thread another batch."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
