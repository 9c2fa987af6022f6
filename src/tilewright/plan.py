"""`Planner`: from a problem to the kernel for it, with the reason; needs no GPU, torch or triton.

Problem → candidates (registry, rules) → selector → Plan
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright import ops
from tilewright.arch import arch, detect, device
from tilewright.arch.model import Device
from tilewright.errors import (
    BadArgument,
    EmptySpace,
    NoDriver,
    NoKernelFound,
    UnsupportedProblem,
)
from tilewright.explain import Explanation, Fate
from tilewright.ops.family import Launch
from tilewright.registry import Entry, Registry
from tilewright.select import ByFunction, Choice, Heuristic, Selector
from tilewright.verdict import YES, Verdict, no

PLANNING_DEVICE = "h200_sxm"
"""The GPU that plans are made for where there is none and none is named."""

NEAREST_MISSES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The resolved launch for one problem on one device, and who chose it, why."""

    problem: Any
    device: Device
    config: Any
    launch: Launch
    selector: str
    reason: str


class Planner:
    """Chooses. `Dispatcher` adds building and launching, and documents the parameters."""

    def __init__(
        self,
        registry: Registry | None = None,
        device: Device | str | None = None,
        selector: Selector | Callable[..., Sequence[Any]] | None = None,
        max_workspace: int | None = None,
    ) -> None:
        self.registry = registry
        self._device = _device(device) if device is not None else None
        self.selector = _selector(selector)
        self.max_workspace = _bytes(max_workspace)
        self._lock = threading.RLock()
        self._version = registry.version if registry is not None else 0
        self._plans: dict[tuple[Any, Device], Plan] = {}
        self._unbuildable: dict[tuple[str, str], str] = {}
        self._default_entries: dict[Any, tuple[Entry, ...]] = {}

    def device_for_planning(self) -> Device:
        """The device that `select`, `explain` and `is_supported` plan for."""
        return self._device or _planning_device()

    def select(self, problem: Any) -> Plan:
        """The plan for `problem`. Raises `NoKernelFound` with the nearest misses, or
        `UnsupportedProblem` when not even the family's default space has a kernel."""
        return self._plan(problem, self.device_for_planning())

    def is_supported(self, problem: Any) -> Verdict:
        """Whether some candidate serves `problem`; if not, why the nearest one does not."""
        try:
            self.select(problem)
        except NoKernelFound as error:
            return no("no_kernel", str(error))
        except UnsupportedProblem as error:
            return no("unsupported", str(error))
        return YES

    def explain(self, problem: Any) -> Explanation:
        """Every candidate's fate, in the order considered, with reasons."""
        target = self.device_for_planning()
        entries = self._entries(problem, target)
        choices, refused = self._consider(problem, target, entries)
        fates = [
            Fate(
                choice.config.name,
                "chosen" if place == 0 else "candidate",
                choice.selector,
                choice.reason,
            )
            for place, choice in enumerate(choices)
        ]
        fates += [Fate(e.name, "refused", verdict.rule, verdict.reason) for e, verdict in refused]
        seen = {fate.name for fate in fates}
        fates += [
            Fate(e.name, "passed over", self.selector.name, "the selector left it out")
            for e in entries
            if e.name not in seen
        ]
        return Explanation(problem, target, tuple(fates))

    def _plan(self, problem: Any, target: Device) -> Plan:
        self._forget_if_changed()
        plan = self._plans.get((problem, target))
        if plan is None:
            entries = self._entries(problem, target)
            choices, refused = self._consider(problem, target, entries)
            if not choices:
                raise NoKernelFound(_nothing(problem, target, entries, refused))
            plan = self._plans[problem, target] = self._plan_of(choices[0], problem, target)
        return plan

    def _plan_of(self, choice: Choice, problem: Any, target: Device) -> Plan:
        launch = ops.family(problem.family).launch(choice.config, problem, target)
        return Plan(problem, target, choice.config, launch, choice.selector, choice.reason)

    def _consider(
        self, problem: Any, target: Device, entries: Sequence[Entry]
    ) -> tuple[list[Choice], list[tuple[Entry, Verdict]]]:
        """Those that serve the problem, best first; and the others, with the reason."""
        fit: dict[int, list[Any]] = {}
        refused: list[tuple[Entry, Verdict]] = []
        for entry in entries:
            verdict = self._usable(entry, problem, target)
            if verdict:
                fit.setdefault(entry.priority, []).append(entry.config)
            else:
                refused.append((entry, verdict))
        choices: list[Choice] = []
        for priority in sorted(fit, reverse=True):
            choices += self.selector.order(problem, fit[priority], target)
        return choices, refused

    def _usable(self, entry: Entry, problem: Any, target: Device) -> Verdict:
        if entry.config.family != problem.family:
            return no("family", f"is a {entry.config.family} kernel")
        broken = self._unbuildable.get((entry.name, target.arch))
        if broken is not None:
            return no("build", broken)
        family = ops.family(problem.family)
        verdict: Verdict = family.supports(entry.config, problem, arch(target.arch))
        return verdict and self._allowed(entry.config, problem, target)

    def _allowed(self, config: Any, problem: Any, target: Device) -> Verdict:
        """Whether `config`, which serves `problem`, keeps to the limits this planner was given."""
        if self.max_workspace is None:
            return YES
        need = ops.family(problem.family).launch(config, problem, target).workspace_bytes
        if need > self.max_workspace:
            return no("workspace", f"needs a workspace of {need} bytes, over {self.max_workspace}")
        return YES

    def _entries(self, problem: Any, target: Device) -> Sequence[Entry]:
        if self.registry is not None:
            return tuple(self.registry)
        family, this = ops.family(problem.family), arch(target.arch)
        space = family.default_space(problem, this)
        key = (this.name, tuple((axis, tuple(values)) for axis, values in space.axes.items()))
        if key not in self._default_entries:
            try:
                configs = space.expand(this).configs
            except EmptySpace as error:
                raise UnsupportedProblem(f"{problem} cannot run on {this.name}: {error}") from None
            self._default_entries[key] = tuple(Entry(config) for config in configs)
        return self._default_entries[key]

    def _forget_if_changed(self) -> None:
        if self.registry is not None and self.registry.version != self._version:
            with self._lock:
                self._version = self.registry.version
                self._forget()

    def _forget(self) -> None:
        """Drop what the registry's change may have made wrong."""
        self._plans.clear()


def _selector(given: Selector | Callable[..., Sequence[Any]] | None) -> Selector:
    if given is None:
        return Heuristic()
    if callable(given):
        return ByFunction(given)
    return given


def _bytes(limit: int | None) -> int | None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise BadArgument(f"max_workspace = {limit!r} is not a number of bytes, 0 or more")
    return limit


def _device(given: Device | str) -> Device:
    return given if isinstance(given, Device) else device(given)


live_device = cache(detect.live_device)
"""Fingerprinting asks the driver, which takes longer than a plan."""


@cache
def _planning_device() -> Device:
    try:
        return live_device(0)
    except NoDriver:
        return device(PLANNING_DEVICE)


def _nothing(
    problem: Any,
    target: Device,
    entries: Sequence[Entry],
    refused: Sequence[tuple[Entry, Verdict]],
) -> str:
    if not entries:
        return f"no kernel for {problem}: the registry is empty; register some, or give none"
    order = {rule: place for place, rule in enumerate(_NEARNESS)}
    near = sorted(refused, key=lambda r: -order.get(r[1].rule, len(order)))[:NEAREST_MISSES]
    misses = "; ".join(f"{entry.name} ({verdict})" for entry, verdict in near)
    return (
        f"none of {len(entries)} kernels serves {problem} on {target.name}; nearest: {misses}"
        if near
        else f"the selector has no choice among {len(entries)} kernels for {problem}"
    )


_NEARNESS = ("family", "signature")
"""Rules that say a kernel is for something else altogether; any other miss is nearer."""
