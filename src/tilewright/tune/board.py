"""`Board`: what is still to be measured, shared by the threads of a crew."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from tilewright.arch.model import Device
from tilewright.tune.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Item:
    """One measurement to make; `failures`: how often it was tried in vain; `seconds`: of wall time
    that it took so far."""

    kernel: str
    build: str
    problem: Any
    device: Device
    failures: int = 0
    seconds: float = 0.0


Batch = tuple[Item, ...]
"""Items of one problem and one device, measured in turns."""


class Board:
    """Batches to do, by device, and what comes of them.

    results: each measurement as soon as known, an exception that ends it all, and None from each
    thread that ends.
    """

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.results: SimpleQueue[Measurement | BaseException | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._waiting: dict[Device, deque[Batch]] = {}
        self._left: dict[Device, int] = {}
        self._stopped = False
        for batch in batches:
            device = batch[0].device
            self._waiting.setdefault(device, deque()).append(batch)
            self._left[device] = self._left.get(device, 0) + len(batch)

    @property
    def devices(self) -> list[Device]:
        """All that are measured on."""
        return [*self._waiting]

    def pull(self, devices: Collection[Device]) -> Batch | None:
        """A batch for one of these devices. Waits while others may still hand some back; None when
        there will be none, or the board is stopped."""
        with self._changed:
            while not self._stopped and any(self._left[device] for device in devices):
                for device in devices:
                    if self._waiting[device]:
                        return self._waiting[device].popleft()
                self._changed.wait()
            return None

    def push(self, batch: Batch) -> None:
        """Hand a batch back, to be done next. None of none."""
        if batch:
            with self._changed:
                self._waiting[batch[0].device].appendleft(batch)
                self._changed.notify_all()

    def done(self, measurement: Measurement) -> None:
        """One item is measured."""
        with self._changed:
            self._left[measurement.device] -= 1
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
