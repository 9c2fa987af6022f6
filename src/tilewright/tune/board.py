"""`Board`: what is still to be measured, shared by the threads of a crew."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from tilewright.arch.model import Device
from tilewright.tune.measurement import Environment, Measurement

Kind = tuple[Device, Environment]
"""Places of one kind share what is to be measured there."""


@dataclass(frozen=True, slots=True)
class Item:
    """One measurement to make; `failures`: how often it was tried in vain; `seconds`: of wall time
    that it took so far."""

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
    """Batches to do, by kind of place, and what comes of them.

    results: each measurement as soon as known, an exception that ends it all, and None from each
    thread that ends.
    """

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.results: SimpleQueue[Measurement | BaseException | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._waiting: dict[Kind, deque[Batch]] = {}
        self._left: dict[Kind, int] = {}
        self._stopped = False
        for batch in batches:
            kind = batch[0].kind
            self._waiting.setdefault(kind, deque()).append(batch)
            self._left[kind] = self._left.get(kind, 0) + len(batch)

    @property
    def kinds(self) -> list[Kind]:
        """All that are measured on."""
        return [*self._waiting]

    def pull(self, kinds: Collection[Kind]) -> Batch | None:
        """A batch for one of these kinds. Waits while others may still hand some back; None when
        there will be none, or the board is stopped."""
        with self._changed:
            while not self._stopped and any(self._left[kind] for kind in kinds):
                for kind in kinds:
                    if self._waiting[kind]:
                        return self._waiting[kind].popleft()
                self._changed.wait()
            return None

    def push(self, batch: Batch) -> None:
        """Hand a batch back, to be done next. None of none."""
        if batch:
            with self._changed:
                self._waiting[batch[0].kind].appendleft(batch)
                self._changed.notify_all()

    def done(self, measurement: Measurement) -> None:
        """One item is measured."""
        with self._changed:
            self._left[measurement.device, measurement.environment] -= 1
            self._changed.notify_all()
        self.results.put(measurement)

    @property
    def left(self) -> int:
        """Items that are not measured."""
        with self._changed:
            return sum(self._left.values())

    def stop(self) -> None:
        """No thread gets another batch."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
