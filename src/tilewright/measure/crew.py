"""`Crew`: a worker on each device, one queue for devices that are alike, and no result lost to a
fault.

Each device has a thread. The thread pulls batches (one problem, a few kernels that take turns) and
leads its worker through the steps: make the operands, verify each kernel, time the kernels that
passed.

When a worker dies, hangs or faults its device, it is replaced, and the device must first compute a
canary correctly and as fast as before. The kernel of the failed step is tried once more, alone,
before it is blamed; the other kernels of its batch are measured again. A device that fails its
canary twice is not used again, nor is a device of a lost machine; the other devices continue.
Triton's interpreter is a device like any other, and so is an emulated GPU, on which nothing is
timed.

A wrong kernel (`mismatch`, `nan`) is blamed at once: a correct second run would not make it
correct.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.child import Message
from tilewright.compile import Store, build_keys
from tilewright.errors import BadArgument, TilewrightError
from tilewright.jsonfile import convert
from tilewright.measure.board import Batch, Board, Item, Kind
from tilewright.measure.devices import CPU, Place
from tilewright.measure.measurement import Measurement, Settings, Status, Telemetry, problem_text
from tilewright.measure.results import now
from tilewright.measure.station import Interrupted, Lost, OutOfOrder, Station
from tilewright.measure.telemetry import say_if_blind
from tilewright.measure.vendor import is_vendor, vendor_build
from tilewright.verify import Check

log = logging.getLogger(__name__)

ATTEMPTS = 2
KILLED_ATTEMPTS = 20
"""The limit if somebody killed the worker, perhaps not because of the kernel."""

DOUBTED: frozenset[Status] = frozenset(
    {"launch_failed", "illegal_access", "timeout", "out_of_memory", "crashed"}
)
"""Statuses that a neighbour, or chance, can cause: the kernel is tried again alone."""

OPERANDS_SECONDS = 120.0
"""Time limit for a problem's operands and reference, which no kernel influences."""


class NoDeviceLeft(TilewrightError):
    """Every device that could measure the remaining tasks is out of order. Results made before stay
    valid."""


@dataclass(frozen=True, slots=True)
class Task:
    """Measure `kernel`, built for `arch`, or a call of the vendor's library, on `problem`."""

    kernel: str
    problem: Any
    arch: str


class Crew:
    """Workers on `places`, for kernels with binaries in `store`.

    timeout: seconds that a kernel may take for one run and its verification, and that its timing
        may take beyond its budget.
    memory_bytes: address space of an interpreting worker, so that a kernel cannot take the
        machine's memory. Default: an equal share, among these workers, of half of the machine's
        memory.

    Workers start with the first `run` and stay until `close`, or the end of this process. A crew
    never builds: a kernel that is not in the store gives a measurement with status `build_failed`.
    """

    def __init__(
        self,
        places: Sequence[Place],
        store: Store,
        settings: Settings,
        *,
        timeout: float = 30.0,
        memory_bytes: int | None = None,
    ) -> None:
        if not places:
            raise BadArgument("a crew needs a device")
        if timeout <= 0:
            raise BadArgument(f"timeout = {timeout} is not more than 0 seconds")
        if memory_bytes is None:
            physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            memory_bytes = physical // 2 // max(1, sum(p.backend == "cpu" for p in places))
        if any(place.backend == "cuda" and not place.machine for place in places):
            say_if_blind()
        self._timeout = timeout
        self._again = partial(Crew, places, store, timeout=timeout, memory_bytes=memory_bytes)
        self._stations = [Station(place, store, settings, memory_bytes) for place in places]
        self._feared: set[str] = set()

    @property
    def pids(self) -> list[int]:
        """The workers' processes on this machine."""
        return [pid for station in self._stations if (pid := station.pid) is not None]

    @property
    def out_of_order(self) -> dict[Place, str]:
        """The places that failed their canary or were lost, with the reason."""
        return {s.place: s.out_of_order for s in self._stations if s.out_of_order}

    def keys(self, task: Task) -> list[tuple[str, ...]]:
        """The keys (`Measurement.key`) of the measurements that `run` makes of a task."""
        return [
            _measurement(station, item, "ok").key for item, station in self._items(task).items()
        ]

    def run(
        self, tasks: Iterable[Task], known: Collection[tuple[str, ...]] = frozenset()
    ) -> Iterator[Measurement]:
        """Measure each task on each kind of device that can run it, except tasks with a key in
        `known`. Devices with equal fingerprint and environment are one kind, and one of them
        measures. Yields each measurement as soon as it is made.

        A task given twice counts once. Ending the iteration early ends the workers. Raises
        `BadArgument` at once for a task that no device can run, and `NoDeviceLeft` at the end if no
        device in order was left for some tasks.
        """
        return self._yielded(Board(self._batches(tasks, known)))

    def measuring(self, settings: Settings) -> Crew:
        """Another crew on the same places, prepared, which measures with `settings`."""
        crew = self._again(settings=settings)
        crew.prepare()
        return crew

    def prepare(self) -> None:
        """Start the workers' processes. They wait for `run` and do not use the GPUs until then.
        Importing torch takes them seconds; meanwhile the caller can choose and build kernels."""
        for station in self._stations:
            station.prepare()

    def close(self) -> None:
        """End all workers at the same time, because a GPU's driver is slow to end a process. Do not
        call it while a `run` is being iterated."""
        with ThreadPoolExecutor(len(self._stations)) as pool:
            for _ in pool.map(Station.close, self._stations):
                pass

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- dealing out ------------------------------------------------------------------------

    def _items(self, task: Task) -> dict[Item, Station]:
        """A task on each kind of device, with a station that has such a device. Raises
        `BadArgument`."""
        found: dict[Item, Station] = {}
        for station in self._stations:
            device = _device_for(station.place, task)
            if device is not None:
                place = station.place
                build = _build(task.kernel, task.arch, place.uuid == CPU)
                item = Item(task.kernel, build, task.problem, device, place.environment)
                found.setdefault(item, station)
        if not found:
            listed = ", ".join(str(s.place) for s in self._stations)
            raise BadArgument(f"{task.kernel} is for {task.arch}, but no device is: {listed}")
        return found

    def _batches(
        self, tasks: Iterable[Task], known: Collection[tuple[str, ...]]
    ) -> Iterator[Batch]:
        alike: dict[tuple[Any, Kind], dict[Item, Station]] = {}
        for task in dict.fromkeys(tasks):
            for item, station in self._items(task).items():
                if not known or _measurement(station, item, "ok").key not in known:
                    alike.setdefault((item.problem, item.kind), {})[item] = station
        for items in alike.values():
            listed = [*items]
            size = next(iter(items.values())).settings.interleave
            yield from (tuple(listed[i : i + size]) for i in range(0, len(listed), size))

    def _yielded(self, board: Board) -> Iterator[Measurement]:
        threads = [
            _Hand(station, board, self._timeout, self._feared)
            for station in self._stations
            if not station.out_of_order
        ]
        try:
            for thread in threads:
                thread.start()
            running = len(threads)
            while running:
                result = board.results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    running -= 1
                else:
                    yield result
        finally:  # the end, an error, or a caller who stops iterating
            board.stop()
            for thread in threads:
                thread.end()
        if board.left:
            why = "; ".join(f"{place}: {reason}" for place, reason in self.out_of_order.items())
            raise NoDeviceLeft(f"{board.left} measurements were not made: out of order: {why}")


class _Hand(threading.Thread):
    """The thread of one station."""

    def __init__(self, station: Station, board: Board, timeout: float, feared: set[str]) -> None:
        super().__init__(name=f"tilewright-{station.place.uuid}", daemon=True)
        self._station, self._board, self._timeout = station, board, timeout
        self._feared = feared
        """Kernels blamed for the loss of a worker: from then on measured alone and only once."""
        self._suspects: Batch = ()
        self._spent: dict[Item, float] = {}
        self._charged_at = 0.0
        self._said = False

    def run(self) -> None:
        place = self._station.place
        kinds = [
            (device, environment)
            for device, environment in self._board.kinds
            if place.device_for(device.arch) == device and place.environment == environment
        ]
        try:
            while (batch := self._board.pull(kinds, self)) is not None:
                fearsome = tuple(i for i in batch if i.kernel in self._feared)
                if fearsome and len(batch) > 1:
                    for item in fearsome:
                        self._board.push((item,))
                    batch = tuple(i for i in batch if i not in fearsome)
                if batch:
                    self._work(batch)
        except OutOfOrder as error:
            log.warning("%s is not used any more: %s", place, error)
        except Interrupted:
            pass
        except BaseException as error:
            self._board.results.put(error)
        finally:
            self._board.results.put(None)

    def end(self) -> None:
        """From another thread: make `run` return, and wait for it. A worker in the middle of a step
        is ended."""
        if self.is_alive():
            self.join(0.2)  # it may be ending by itself, with nothing left to do
        if self.is_alive():
            self._station.interrupt()
            self.join()
            self._station.resume()

    def _work(self, batch: Batch) -> None:
        """Measure a batch; return the items to be tried again. Raises `OutOfOrder`."""
        try:
            self._station.open()
        except OutOfOrder:
            self._board.push(batch)
            raise
        left = dict.fromkeys(batch)
        self._spent = {item: item.seconds for item in batch}
        self._charged_at = time.monotonic()
        try:
            for item, measurement in self._measured(batch):
                del left[item]
                self._settle(item, measurement)
        except OutOfOrder:  # its machine was lost; no kernel caused that
            self._hand_back(left)
            raise
        except Lost as lost:
            # Check before handing anything back: the suspect may have broken the device.
            broken = self._broken()
            self._charge()
            suspects = [item for item in left if item in self._suspects]
            self._hand_back(item for item in left if item not in suspects)
            for item in suspects:
                m = _measurement(self._station, item, lost.status, lost.reason)
                if broken and len(suspects) == 1:
                    reason = f"{m.reason}; after it, the device {broken}"
                    self._finish(item, replace(m, reason=reason))
                else:
                    self._settle(item, m, lost)
            if broken:
                raise OutOfOrder(broken) from None

    def _hand_back(self, items: Iterable[Item]) -> None:
        """Have the items measured again, together."""
        self._board.push(tuple(replace(item, seconds=self._spent[item]) for item in items))

    def _broken(self) -> str:
        """Replace the worker. Returns the fault of the device if it cannot be used again, else
        ""."""
        try:
            self._station.open()
        except OutOfOrder as error:
            return str(error)
        return ""

    def _settle(self, item: Item, m: Measurement, lost: Lost | None = None) -> None:
        """Accept a measurement, or have it made again alone."""
        limit = KILLED_ATTEMPTS if lost is not None and lost.killed else ATTEMPTS
        if m.status in DOUBTED and m.attempts < limit and item.kernel not in self._feared:
            tried = replace(item, failures=item.failures + 1, seconds=self._spent[item])
            self._board.push((tried,))
            return
        if lost is not None and not lost.killed:
            self._feared.add(item.kernel)
        self._finish(item, m)

    def _finish(self, item: Item, m: Measurement) -> None:
        if "contended" in m.flags and not self._said:
            self._said = True
            others = f"{m.telemetry.others} other process{'es' * (m.telemetry.others > 1)}"
            log.warning("%s also works for %s: times may be too long", self._station.place, others)
        self._board.done(replace(m, measured_at=now(), seconds=self._spent[item]))

    def _ask(self, suspects: Batch, step: Message, seconds: float) -> Message:
        """The worker's answer to a step of `suspects`, who share the time that it takes. Raises
        `Lost`."""
        self._suspects = suspects
        answer = self._station.ask(step, seconds)
        self._charge()
        return answer

    def _charge(self) -> None:
        """Divide the time since the last division among the suspects."""
        at = time.monotonic()
        for item in self._suspects:
            self._spent[item] += (at - self._charged_at) / len(self._suspects)
        self._charged_at = at

    def _measured(self, batch: Batch) -> Iterator[tuple[Item, Measurement]]:
        """The measurement of each item, as soon as it is known. Raises `Lost`; `_suspects` are then
        the items of the failed step."""
        first = batch[0]
        step: Message = {
            "do": "problem",
            "problem": problem_text(first.problem),
            "arch": first.device.arch,
        }
        made = self._ask(batch, step, max(self._timeout, OPERANDS_SECONDS))
        passed: dict[Item, Measurement] = {}
        for item in batch:
            step = {
                "do": "verify",
                "kernel": item.kernel,
                "build": item.build,
                "device": asdict(item.device),
            }
            answer = made if "status" in made else self._ask((item,), step, self._timeout)
            m = _measurement(self._station, item, answer["status"], answer["reason"])
            if answer.get("check") is not None:
                m = replace(m, check=convert(answer["check"], Check, "the worker"))
            if m.status == "ok" and self._station.settings.timer == "none":
                yield item, replace(m, status="executed")
            elif m.status == "ok":
                passed[item] = m
            else:
                yield item, m
        if passed:
            yield from self._timed(passed)

    def _timed(self, passed: dict[Item, Measurement]) -> Iterator[tuple[Item, Measurement]]:
        s = self._station.settings
        seconds = (self._timeout + s.budget_seconds) * len(passed) + 10 * s.warm_up_seconds
        step: Message = {"do": "time", "kernels": [item.kernel for item in passed]}
        answer = self._ask(tuple(passed), step, seconds)
        for item, m in passed.items():
            if "status" in answer:
                reason = f"when timed: {answer['reason']}"
                yield item, replace(m, status=answer["status"], reason=reason)
                continue
            timed = answer["kernels"][item.kernel]
            yield (
                item,
                replace(
                    m,
                    samples_us=tuple(timed["samples_us"]),
                    interval_us=tuple(timed["interval_us"]),
                    flags=tuple(timed["flags"]),
                    telemetry=convert(answer["telemetry"], Telemetry, "the worker"),
                ),
            )


def _measurement(station: Station, item: Item, status: Status, reason: str = "") -> Measurement:
    return Measurement(
        kernel=item.kernel,
        problem=item.problem,
        device=item.device,
        environment=station.place.environment,
        settings=station.settings,
        status=status,
        build=item.build,
        reason=reason,
        attempts=item.failures + 1,
    )


def _device_for(place: Place, task: Task) -> Device | None:
    """The device on which `place` measures a task. None if it cannot: the interpreter and the
    emulator play GPUs, but have no vendor's library."""
    if place.backend == "cpu" and is_vendor(task.kernel):
        return None
    return place.device_for(task.arch)


@cache
def _build(kernel: str, arch_name: str, interpreted: bool) -> str:
    """The build key of a kernel, or of the kernel that is interpreted in its place. Empty if it has
    none because its module is missing. For the vendor's library, its version."""
    if is_vendor(kernel):
        return vendor_build()
    config = ops.family_of(kernel).parse_name(kernel)
    return build_keys([config], arch_name, interpreted)[0]
