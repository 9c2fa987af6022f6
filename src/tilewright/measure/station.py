"""`Station`: one place, the worker process on it, and whether its device can be trusted."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict

from tilewright.child import KILLED, ChildDied, ChildTimeout, Message
from tilewright.compile import Store
from tilewright.measure.devices import Place, Process
from tilewright.measure.measurement import Settings, Status

CANARY_FACTOR = 1.5
"""A device is trusted while its canary takes at most this many times the first canary's time."""
CANARY_TRIES = 2
KILLED_TRIES = 20
"""The limit if somebody killed the worker as it started."""
START_SECONDS = 180.0
"""For a worker to import torch and open its device."""


class Lost(Exception):
    """The worker ended, faulted its device or did not answer in time, and is gone.

    killed: whether somebody sent a signal, perhaps not because of the kernel.
    """

    def __init__(self, status: Status, reason: str, killed: bool = False) -> None:
        super().__init__(reason)
        self.status, self.reason, self.killed = status, reason, killed


class OutOfOrder(Exception):
    """The device failed its canary twice, or its machine was lost."""


class Interrupted(Exception):
    """The station was told to stop its work."""


class Station:
    """A worker on `place`, replaced when it is lost. One thread drives it; any thread may interrupt
    it.

    memory_bytes: address space of a worker without a GPU; 0: unlimited.
    """

    def __init__(self, place: Place, store: Store, settings: Settings, memory_bytes: int) -> None:
        self.place = place
        self.settings = place.settings(settings)
        self.out_of_order = ""
        self._opening: Message = {
            "do": "open",
            "uuid": place.uuid,
            "nvml": place.uuid if place.backend == "cuda" else "",
            "settings": asdict(self.settings),
            "store": os.fspath(store.path),
            "trusted": store.trusted,
            "l2_bytes": 0 if place.device is None else place.device.l2_bytes,
            "memory": memory_bytes,
        }
        self._store = store
        self._child: Process | None = None
        self._spare: Process | None = None
        self._started = False
        self._lock = threading.Lock()
        self._interrupted = False
        self._canary_us = 0.0

    @property
    def pid(self) -> int | None:
        """The worker's process, if it runs on this machine."""
        with self._lock:
            return None if self._child is None else self._child.pid

    def open(self) -> None:
        """Have a worker on a trusted device. Raises `OutOfOrder`, `Interrupted`."""
        failed = killed = 0
        while self._child is None:
            try:
                self._start()
                wrong = self._canary()
                failed += bool(wrong)
            except Lost as lost:
                wrong = lost.reason
                failed += not lost.killed
                killed += lost.killed
            if wrong:
                self.drop()
            if failed == CANARY_TRIES or killed == KILLED_TRIES:
                self.out_of_order = wrong
                self.close()
                raise OutOfOrder(wrong)

    def prepare(self) -> None:
        """On a GPU, start the next worker's process. It imports torch, which takes longer than the
        rest of a worker's start, and does not use the device."""
        if self.place.backend != "cpu":
            with self._lock:
                if self._spare is None and not self._interrupted:
                    self._spare = self._worker()

    def ask(self, message: Message, seconds: float) -> Message:
        """The worker's answer to one step. Raises `Lost`, `OutOfOrder`, and `Interrupted`."""
        child = self._child
        assert child is not None, "not open"
        try:
            answer, _ = child.request(message, timeout=seconds)
        except OutOfOrder as gone:
            self.out_of_order = str(gone)
            self.close()
            raise
        except ChildTimeout:
            self.drop()
            raise Lost("timeout", f"did not end within {seconds:g} s and was killed") from None
        except ChildDied as died:
            self.drop()
            if self._interrupted:
                raise Interrupted from None
            by_signal = died.returncode < 0
            words = died.stderr_tail.strip().rpartition("\n")[2]
            reason = f"its process was {died}" if by_signal else f"its process {died}: {words}"
            somebody = died.returncode in KILLED
            # ROCm's runtime ends the process itself and prints these words.
            fault = "memory access fault" in died.stderr_tail.lower()
            raise Lost("illegal_access" if fault else "crashed", reason, killed=somebody) from None
        if answer.get("lost"):
            self.drop()
            raise Lost(answer["status"], answer["reason"])
        return answer

    def drop(self) -> None:
        """End the worker."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the worker and its spare."""
        self.drop()
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.kill()

    def interrupt(self) -> None:
        """From another thread: end the worker, even within a step, and start no other."""
        with self._lock:
            self._interrupted = True
            if self._child is not None:
                self._child.interrupt()

    def resume(self) -> None:
        """Allow work again after an interrupt, once the interrupted thread has ended."""
        self.drop()
        self._interrupted = False

    def _start(self) -> None:
        with self._lock:
            if self._interrupted:
                raise Interrupted
            self._child, self._spare = self._spare or self._worker(), None
        answer = self.ask(self._opening, START_SECONDS)
        if "error" in answer:
            raise Lost(answer["status"], answer["error"])
        if self._started:
            self.prepare()  # a worker was lost, and more may follow
        self._started = True

    def _worker(self) -> Process:
        return self.place.start(self._store)

    def _canary(self) -> str:
        """What is wrong with the device; empty if nothing is."""
        answer = self.ask({"do": "canary", "rested": not self._canary_us}, START_SECONDS)
        if "error" in answer:
            return str(answer["error"])
        if not answer["ok"]:
            return "it computed a small product wrong"
        self._canary_us = self._canary_us or answer["us"]
        if answer["us"] > CANARY_FACTOR * self._canary_us:
            return f"its canary took {answer['us']:.4g} µs, {self._canary_us:.4g} µs before"
        return ""
