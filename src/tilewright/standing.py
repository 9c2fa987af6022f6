"""Torch's own call or another kernel answers while the chosen kernel is being built: for
dispatchers whose calls do not wait.

A stand-in keeps to every constraint. It is never kept as a ready launch: each call asks whether the
kernel is still being built, and the chosen kernel takes over with the first call after it was. How
a call was answered is kept for those like it until then (`ready.Meanwhile`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from tilewright import garbage, variables
from tilewright.arch.model import Device
from tilewright.child import Ending
from tilewright.compile import BuildReport, BuildResult
from tilewright.errors import BuildFailed, TilewrightError
from tilewright.loader import Loader
from tilewright.plan import KEPT, STAND_IN, Plan, Planner

log = logging.getLogger("tilewright")

WAITS = variables.WAITS
"""The environment variable that says whether calls wait for kernels that have to be built."""

LOOKED_UP = 16
"""How many of the best candidates are looked up in the store, which takes about 1 ms each. Of the
others, only those that are loaded already can stand in."""


class Standing:
    """Chooses stand-ins, and has the chosen kernels built. Thread-safe."""

    def __init__(self, planner: Planner, loader: Loader) -> None:
        self._planner, self._loader = planner, loader
        self._behind = Background(loader.build, planner.avoid)
        self._plans: dict[tuple[Any, Device], tuple[Plan, Plan]] = {}
        """Chosen plans with those that stand in for them, by problem and device."""
        self._answered: dict[tuple[Any, Device], Plan] = {}
        """Chosen plans for which torch answers, and their reasons, by problem and device."""
        self._said = False

    def watch(self, chosen: Plan) -> Callable[[], bool]:
        """A function that says whether the kernel of `chosen` is being built. It takes much less
        time than the name of a kernel."""
        return self._behind.watch(chosen)

    def settled(self, chosen: Plan, index: int) -> bool:
        """Whether the kernel of `chosen` answers on GPU `index`: it is there, or no other may."""
        if self._behind.under_way(chosen):
            return False
        return self._must_be(chosen) or self._there(chosen, index)

    def begun(self, chosen: Plan, name: str) -> bool:
        """Whether the kernel of `chosen`, which is not settled, is being built, so that torch's
        call of this name may answer."""
        if not self._behind.start(chosen):
            return False
        if not self._said:
            log.warning(
                "kernels are being built, and torch answers calls meanwhile: standing() of the "
                "dispatcher lists them; %s=1 makes calls wait for their kernels", WAITS
            )  # fmt: skip
            self._said = True
        key = chosen.problem, chosen.device
        if key not in self._answered:
            if len(self._answered) >= KEPT:
                self._answered.clear()
            why = f"is being built, and {name} answers meanwhile"
            self._answered[key] = replace(chosen, selector=STAND_IN, reason=why)
        return True

    def _must_be(self, chosen: Plan) -> bool:
        """Whether no other kernel may answer, as each call has to have the same bits."""
        return self._planner.constraints.one_kernel or chosen.problem.one_kernel

    def _there(self, chosen: Plan, index: int) -> bool:
        return self._loader.has(chosen.config, chosen.device, index)

    def plan(self, chosen: Plan, index: int) -> Plan:
        """The plan to launch on GPU `index`: `chosen` if its kernel is there, if each call has to
        have the same bits, or if no other kernel could answer at once. Else another plan, while
        the chosen kernel is built."""
        key = chosen.problem, chosen.device
        _, known = self._plans.get(key, (chosen, None))
        if known is not None and self._behind.under_way(chosen):
            return known
        self._plans.pop(key, None)
        if self._there(chosen, index) or self._must_be(chosen):
            return chosen
        for place, other in enumerate(self._planner.stand_ins(chosen)):
            if self._loader.has(other.config, other.device, index, look_up=place < LOOKED_UP):
                if not self._behind.start(chosen):
                    return chosen
                if len(self._plans) >= KEPT:
                    self._plans.clear()
                self._plans[key] = chosen, other
                return other
        return chosen

    def now(self) -> tuple[Plan, ...]:
        """The plans that stand in for others now, and those for which torch answers."""
        pairs = [*self._plans.values(), *((plan, plan) for plan in self._answered.values())]
        return tuple(other for chosen, other in pairs if self._behind.under_way(chosen))

    def forget(self) -> None:
        """Choose stand-ins anew."""
        self._plans.clear()
        self._answered.clear()


class Background:
    """Builds kernels behind the calls. One thread has all kernels built that were asked for until
    now, side by side, then all that were asked for since, and ends when there are no more.
    Thread-safe.

    build: `Loader.build`.
    failed: told of each kernel that could not be built.
    """

    def __init__(
        self, build: Callable[..., BuildReport], failed: Callable[[Plan, BuildFailed], None]
    ) -> None:
        self._build, self._failed = build, failed
        self._open: set[tuple[str, str]] = set()
        self._next: list[Plan] = []
        self._thread: threading.Thread | None = None
        self._gave_up = False
        self._lock = threading.Lock()

    def under_way(self, plan: Plan) -> bool:
        """Whether the kernel of a plan is being built, or will be."""
        return _key(plan) in self._open

    def watch(self, plan: Plan) -> Callable[[], bool]:
        """See `Standing.watch`."""
        return partial(self._open.__contains__, _key(plan))

    def start(self, plan: Plan) -> bool:
        """Have the kernel of a plan built, once. Returns False if no build can be started: an
        earlier one ended with an error of the store or the system, which the next call gets that
        builds."""
        with self._lock:
            if self._gave_up:
                return False
            if _key(plan) not in self._open:
                self._open.add(_key(plan))
                self._next.append(plan)
            # No thread lives on in a forked process.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._work, name="tilewright-background", daemon=True
                )
                self._thread.start()
            return True

    def _work(self) -> None:
        garbage.begin_thread()
        while True:
            with self._lock:
                plans, self._next = self._next, []
                if not plans:
                    self._thread = None
                    return
            try:
                for device, alike in groupby(plans, key=attrgetter("device")):
                    self._build_alike(device, [*alike])
            except Ending:  # what is built already is in the store
                return
            except (TilewrightError, OSError) as error:
                log.warning("no kernel is built in the background any more: %s", error)
                with self._lock:
                    self._gave_up, self._thread = True, None
                    self._open.clear()
                return

    def _build_alike(self, device: Device, plans: list[Plan]) -> None:
        """Build the kernels of plans for one device."""
        report = self._build([plan.config for plan in plans], device, progress=self._finished)
        failed = {result.config: BuildFailed(str(result)) for result in report.failures}
        for plan in plans:
            if plan.config in failed:
                log.warning("%s", failed[plan.config])
                self._failed(plan, failed[plan.config])
            self._open.discard(_key(plan))

    def _finished(self, result: BuildResult, done: int, total: int) -> None:
        # Another part of the kernel may be left; a call that misses it starts the kernel again.
        if result.ok:
            self._open.discard((result.name, result.arch.name))


def _key(plan: Plan) -> tuple[str, str]:
    return plan.config.name, plan.device.arch
