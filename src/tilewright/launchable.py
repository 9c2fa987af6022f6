"""`Launchable`: what a GPU can launch for a problem.

Problem → Plan → its kernels loaded, or built first → Ready, or another answer while they are built

If a kernel cannot be built, the planner's next choice is tried.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright import ops, torch_answer
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.calls import Arrays
from tilewright.errors import BuildFailed, LibraryRefused
from tilewright.loader import Libraries, Loader
from tilewright.ops.nouns import without_kept_zero
from tilewright.plan import KEPT, Plan, Planner
from tilewright.ready import Launches, Meanwhile, Ready
from tilewright.runtime.bound import Bound, BoundLaunch, Loaded
from tilewright.runtime.prepared import Prepared
from tilewright.standing import Standing
from tilewright.torch_answer import Answer

log = logging.getLogger("tilewright")


class Launchable:
    """Plans of `planner` with their kernels from `loader`, on a GPU.

    libraries: the vendors' libraries that the planner asks.

    Thread-safe.
    """

    def __init__(self, planner: Planner, loader: Loader, libraries: Libraries) -> None:
        self._planner = planner
        self._loader = loader
        self._libraries = libraries
        self._standing = Standing(planner, loader)
        self._aside: dict[Any, Ready] = {}
        """Launches that stand in for others. They stay: a library's work may still be queued."""
        self._lock = threading.Lock()

    def standing(self) -> tuple[Plan, ...]:
        """The plans that answer calls now in place of kernels that are being built."""
        return self._standing.now()

    def answered(
        self, family: Any, given: Arrays, index: int, scalars: Sequence[int | float | None]
    ) -> Meanwhile | None:
        """Compute the outputs by torch's call, in place of a kernel that is being built. Returns
        how the calls that follow are answered; None if nothing was computed, as the kernel is there
        or torch has no call that may answer."""
        target = self._planner.live(index)
        with self._lock:
            self._libraries.index = index
            chosen = self._planner.plan(given.problem, target)
            if self._standing.settled(chosen, index):
                return None
            found = torch_answer.answer(family, given)
            if found is None or not self._standing.begun(chosen, found.name):
                return None
        try:
            found(given.all, scalars)
        except RuntimeError as error:
            log.warning("%s does not answer for %s: %s", found.name, chosen.config.name, error)
            return None
        under_way = self._standing.watch(chosen)
        return Meanwhile(chosen, under_way, partial(_computed, found), given.bound)

    def stands_in(self, ready: Ready, launches: Launches) -> Meanwhile:
        """How calls are answered by `ready`, which stands in for a kernel that is being built."""
        under_way = self._standing.watch(ready.chosen)
        return Meanwhile(
            ready.chosen, under_way, partial(_launched, launches, ready), ready.operands
        )

    def ready(
        self, family: Any, config: Any, given: Arrays, target: Device, index: int, waits: bool
    ) -> Ready:
        """A plan for arrays on GPU `index`, with its kernels loaded.

        config: the kernel; None to choose one.
        waits: whether a kernel that has to be built is waited for. If not, another may stand in for
            it.
        """
        planner, problem = self._planner, given.problem
        with self._lock:
            self._libraries.index = index
            loaded = None
            while loaded is None:
                if config is None:
                    plan = chosen = planner.plan(problem, target)
                    if not waits:
                        plan = self._standing.plan(chosen, index)
                else:
                    plan = chosen = planner.named(config, problem, target)
                key = plan.config, problem, given.bound, index
                if plan is not chosen and key in self._aside:
                    return replace(self._aside[key], chosen=chosen)
                loaded = self._loaded(plan, index, config is not None)
        parts, products = loaded
        bound = BoundLaunch(
            self._loader.driver(target),
            index,
            parts,
            arch(target.arch).warp_size,
            plan.launch,
            given.bound,
            tuple(family.scalars),
            family.scalar_defaults(problem),
            products,
        )
        ready = Ready(plan, chosen, bound, given.bound, index)
        if plan is not chosen and len(self._aside) < KEPT:
            self._aside[key] = ready
        return ready

    def bound(
        self,
        problem: Any,
        operands: Sequence[Bound],
        scalars: Mapping[str, int | float],
        index: int,
        kernel: str,
    ) -> tuple[Plan, BoundLaunch]:
        """As `Dispatcher.bound`."""
        planner, target = self._planner, self._planner.live(index)
        with self._lock:
            self._libraries.index = index
            loaded = None
            while loaded is None:
                plan = planner.plan(problem, target)
                if kernel and plan.config.name != kernel:
                    plan = planner.named(planner.config(kernel), problem, target)
                loaded = self._loaded(plan, index, kernel != "")
        parts, products = loaded
        family = ops.family(problem.family)
        launch = BoundLaunch(
            self._loader.driver(target),
            index,
            parts,
            arch(target.arch).warp_size,
            without_kept_zero(plan.launch),
            operands,
            defaults={**family.scalar_defaults(problem), **scalars},
            products=products,
        )
        return plan, launch

    def avoid(self, problem: Any, index: int, error: LibraryRefused) -> None:
        """Choose the algorithm of a library no more for a problem, for which it refused a call."""
        with self._lock:
            log.warning("%s", error)
            plan = self._planner.plan(problem, self._planner.live(index))
            self._planner.avoid(plan, error)

    def _loaded(
        self, plan: Plan, index: int, named: bool
    ) -> tuple[dict[str, Loaded], dict[Any, Prepared]] | None:
        """As `Loader.loaded`; None if a kernel cannot be built, for the next choice to be tried.
        named: no other kernel may be tried, so `BuildFailed` is raised."""
        try:
            return self._loader.loaded(plan, index)
        except BuildFailed as error:
            if named:
                raise
            log.warning("%s", error)
            self._planner.avoid(plan, error)
            self._standing.forget()
            return None


def _computed(
    answer: Answer, inputs: Sequence[Any], outputs: Sequence[Any], _: Any, scalars: Sequence[Any]
) -> None:
    """`Meanwhile.answer` by torch's call."""
    answer((*inputs, *outputs), scalars)


def _launched(
    launches: Launches, ready: Ready, inputs: Any, outputs: Any, addresses: Any, scalars: Any
) -> None:
    """`Meanwhile.answer` by another kernel."""
    launches.launch(ready, inputs, outputs, addresses, None, scalars)
