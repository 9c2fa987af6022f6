"""`Planner`: the kernel for a problem, with the reason; needs no GPU, torch or triton.

Problem → candidates → selector → Plan
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, tee
from typing import Any

from tilewright import ops
from tilewright.arch import arch, detect, device
from tilewright.arch.model import Device
from tilewright.bundle.shelf import Shelf
from tilewright.candidates import Asked, Candidates, Listed, Vendor
from tilewright.errors import (
    BadArgument,
    BuildFailed,
    LibraryRefused,
    NoDriver,
    NoKernelFound,
    TilewrightError,
    UnsupportedProblem,
    WrongDevice,
    shown,
)
from tilewright.explain import Explanation, Fate
from tilewright.ops.library import COMPILING, kind, library_of
from tilewright.ops.nouns import Launch
from tilewright.registry import Entry, Registry
from tilewright.select import Choice, Skipped, in_turn, recalled, silent
from tilewright.select.configured import Wanted, configured
from tilewright.select.constraints import Constraints
from tilewright.select.learned import Learned
from tilewright.select.model import GivenModels
from tilewright.tables.merge import Tables
from tilewright.verdict import YES, Verdict, no

PLANNING_DEVICE = "h200_sxm"
"""The GPU to plan for if the machine has none and none is named."""

STAND_IN = "stand-in"
"""The selector of a plan whose kernel answers calls while the chosen one is being built."""

KEPT = 4096
"""Most plans that a planner keeps, and most ready launches of a dispatcher. Beyond, the least
recently used are dropped: the lengths of a served model's batches can be any number."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The resolved launch for one problem on one device, who chose it, and why.

    ahead: `Choice.ahead`.
    measured_us: `Choice.measured_us`.
    """

    problem: Any
    device: Device
    config: Any
    launch: Launch
    selector: str
    reason: str
    ahead: bool = False
    measured_us: float = 0.0


class Planner:
    """Chooses kernels. `Dispatcher` builds and launches them too, and documents the parameters.

    bundles: their tables are read if no others are given.
    prebuilt: only kernels of `bundles` are candidates.
    vendor: the vendors' libraries.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        device: Device | str | None = None,
        selector: Wanted | None = None,
        max_workspace: int | None = None,
        constraints: Constraints | None = None,
        tables: Tables | None = None,
        bundles: Shelf | None = None,
        prebuilt: bool = False,
        vendor: Vendor | None = None,
        models: GivenModels | None = None,
    ) -> None:
        self.registry = registry
        self._device = _device(device) if device is not None else None
        vendor = vendor or Vendor()
        self._candidates = Candidates(registry, bundles if prebuilt else None, vendor)
        listed = registry is not None or prebuilt
        offers = None if listed else vendor.offered  # the caller says which kernels there are
        self._offers = offers
        usual = bundles.table if bundles else None
        self._configured = partial(configured, selector, tables, usual, offers, models)
        self.selector = self._configured()
        self._learned = any(isinstance(one, Learned) for one in in_turn(self.selector))
        self.constraints = constraints or Constraints()
        if max_workspace is not None:
            self.constraints = replace(self.constraints, max_workspace=max_workspace)
        self._lock = threading.Lock()
        self._version = registry.version if registry is not None else 0
        self._plans = _Plans()

    def device_for_planning(self) -> Device:
        """The device that `select`, `explain` and `is_supported` plan for."""
        return self._device or _planning_device()

    def read_tables(self) -> None:
        """Read the files of tables again, as for a new planner, and forget all plans. Raises as
        that does."""
        self.selector = self._configured()
        self._plans.clear()

    def live(self, index: int) -> Device:
        """The device to plan for where operands are on GPU `index`: its fingerprint, unless a
        device was named. Raises `WrongDevice` if that is of another architecture."""
        live = live_device(index)
        if self._device is None:
            return live
        if self._device.arch != live.arch:
            raise WrongDevice(
                f"this dispatcher plans for {self._device.name} ({self._device.arch}), but the "
                f"operands are on GPU {index}, a {live.name} ({live.arch})"
            )
        return self._device

    def select(self, problem: Any, constraints: Constraints | None = None) -> Plan:
        """The plan for `problem`, under `constraints` (by default the planner's). Raises
        `NoKernelFound` with the nearest misses, or `UnsupportedProblem` if even the family's
        default space has no kernel."""
        return self.plan(problem, self.device_for_planning(), constraints)

    def is_supported(self, problem: Any) -> Verdict:
        """Whether a candidate serves `problem`; if not, why the nearest one does not."""
        try:
            self.select(problem)
        except NoKernelFound as error:
            return no("no_kernel", str(error))
        except UnsupportedProblem as error:
            return no("unsupported", str(error))
        return YES

    def explain(self, problem: Any, constraints: Constraints | None = None) -> Explanation:
        """Every candidate's fate with its reason, in the order considered."""
        asked = self._asked(problem, self.device_for_planning(), constraints)
        known = [*self._recalled(asked)]
        listed = self._candidates.listed(asked, known)
        choices = [*self._consider(asked, listed)]
        entries, refused = listed.entries, self._candidates.refused(asked, listed)
        fates = [
            Fate(
                choice.config.name,
                "chosen" if place == 0 else "candidate",
                choice.selector,
                asked.reason(choice),
            )
            for place, choice in enumerate(choices)
        ]
        if choices and not (own := self._candidates.serves_itself(choices[0].config, asked)):
            fates[0] = replace(fates[0], fate="refused", by=own.rule, reason=own.reason)
        skipped, notes = self._skipped(asked, known, choices, entries, refused)
        configs = [choice.config for choice in choices]
        notes += silent(self.selector, asked.stated[0], configs, asked.target)
        fates += skipped
        fates += [Fate(e.name, "refused", verdict.rule, verdict.reason) for e, verdict in refused]
        seen = {fate.name for fate in fates}
        fates += [
            Fate(e.name, "passed over", self.selector.name, "the selector left it out")
            for e in entries
            if e.name not in seen
        ]
        return Explanation(problem, asked.target, tuple(fates), tuple(notes))

    def _skipped(
        self,
        asked: Asked,
        known: Iterable[Choice | Skipped],
        choices: Sequence[Choice],
        entries: Sequence[Entry],
        refused: Sequence[tuple[Entry, Verdict]],
    ) -> tuple[list[Fate], list[str]]:
        """The fates of kernels that the selector would have preferred but could not choose, and its
        notes if it knew of none."""
        fates: list[Fate] = []
        notes: list[str] = []
        listed = {entry.config for entry in entries}
        verdicts = {entry.config: verdict for entry, verdict in refused}
        for one in known:
            if isinstance(one, Skipped):
                if one.name:
                    fates.append(Fate(one.name, "skipped", one.selector, one.reason))
                else:
                    notes.append(f"{one.selector}: {one.reason}")
                continue
            if choices and one.config == choices[0].config:
                break
            why = verdicts.get(one.config)
            if one.config not in listed:
                why = self._candidates.absent(one.config, asked.target)
            if why is not None:
                reason = f"{one.reason}; {why}"
                fates.append(Fate(one.config.name, "skipped", one.selector, reason))
        return fates, notes

    def _asked(self, problem: Any, target: Device, constraints: Constraints | None) -> Asked:
        kept = constraints or self.constraints
        if not hasattr(problem, "family"):
            raise BadArgument(f"{shown(problem)} is no problem, such as GemmProblem(m, n, k) is")
        if problem.batch_invariant and not kept.batch_invariant:
            kept = replace(kept, batch_invariant=True)
        invariance = kept.invariance(problem)
        stated = (problem,) if invariance is None else invariance.problems
        return Asked(problem, target, kept, stated, invariance)

    def plan(self, problem: Any, target: Device, constraints: Constraints | None = None) -> Plan:
        """As `select`, for the device `target`."""
        self._forget_if_changed()
        # Constraints of None are the planner's own, and take no hashing.
        key = (problem, target, constraints)
        plan = self._plans.get(key)
        if plan is None:
            asked = self._asked(*key)
            choice = self._choice(asked)
            plan = _plan_of(replace(choice, reason=asked.reason(choice)), problem, target)
            self._plans.add(key, plan)
        return plan

    def knows(self, family: str, target: Device) -> bool:
        """Whether `ahead` may answer for a problem of the family."""
        knowing = (getattr(one, "knows", None) for one in in_turn(self.selector))
        return any(knows(family, target) for knows in knowing if knows is not None)

    def ahead(self, problem: Any, target: Device) -> Plan | None:
        """The plan for `problem` if its kernel is `Choice.ahead`. Where no table says so and there
        are no models, the default space is not read. Raises as `select` does."""
        asked = self._asked(problem, target, None)
        choice = self._settled(asked, self._recalled(asked))
        if choice is None and not self._learned:
            return None
        plan = self.plan(problem, target)
        return plan if plan.ahead else None

    def config(self, name: str) -> Any:
        """The kernel called `name`. Raises `UnknownName` if there is none."""
        if self.registry is not None:
            return self.registry.get(name).config
        return ops.family_of(name).parse_name(name)

    def named(self, config: Any, problem: Any, target: Device) -> Plan:
        """The plan for `problem` with the kernel `config`. Raises `UnsupportedProblem` if it cannot
        serve the problem within the planner's constraints."""
        verdict = ops.family(problem.family).supports(config, problem, arch(target.arch))
        if not verdict:
            raise UnsupportedProblem(f"{config.name} does not serve {problem}: {verdict}")
        allowed = self.constraints.allows(config, problem, target)
        if not allowed:
            raise UnsupportedProblem(
                f"{config.name} for {problem} {allowed.reason}: change the dispatcher's "
                f"{allowed.rule}, or let it choose another kernel"
            )
        return _plan_of(Choice(config, "name", "asked for by name"), problem, target)

    @property
    def torch_may_answer(self) -> bool:
        """Whether a call of torch's keeps to all that the caller asks of kernels: what it takes of
        memory is not known, nor what it would be called."""
        asked = self.constraints
        limited = asked.only_ours or asked.pipelines or asked.blocked
        return self._offers is not None and not limited and asked.max_workspace is None

    def stand_ins(self, plan: Plan) -> Iterator[Plan]:
        """Plans for the problem of `plan` with other kernels: the first algorithm that the vendor's
        library offers, if it is ready at once, then the other candidates, best first. All keep to
        the constraints."""
        asked = self._asked(plan.problem, plan.device, None)
        found: list[Choice] = []
        if self._offers is not None:
            theirs = self._offers(ops.family(plan.problem.family), plan.problem, plan.device, "")
            at_once = not isinstance(theirs, str) and kind(library_of(theirs)) not in COMPILING
            if at_once and self._candidates.usable(theirs, asked):
                found = [Choice(theirs, "", "first algorithm of the vendor's library")]
        for choice in chain(found, self._consider(asked, self._candidates.listed(asked, ()))):
            if choice.config != plan.config:
                why = f"stands in for {plan.config.name}, which is being built: {choice.reason}"
                yield _plan_of(Choice(choice.config, STAND_IN, why), plan.problem, plan.device)

    def avoid(self, plan: Plan, error: BuildFailed) -> None:
        """Choose the kernel of `plan` no more, which cannot be built; an algorithm that the
        vendor's library refused, no more for this problem."""
        of = plan.problem if isinstance(error, LibraryRefused) else plan.device.arch
        self._candidates.avoid(plan.config, of, str(error))
        self._plans.clear()

    def _choice(self, asked: Asked) -> Choice:
        first, known = tee(self._recalled(asked))
        choice = self._settled(asked, first)
        if choice is None:
            listed = self._candidates.listed(asked, known)
            choice = next(self._consider(asked, listed), None)
            if choice is None:
                raise self._candidates.none(asked, listed)
        own = self._candidates.serves_itself(choice.config, asked)
        if not own:
            raise NoKernelFound(
                f"{choice.config.name}, the kernel for {asked.over} (batch_invariant), does not "
                f"serve {asked.problem}: {own}"
            )
        return choice

    def _recalled(self, asked: Asked) -> Iterable[Choice | Skipped]:
        """What the selector knows of its own."""
        return recalled(self.selector, asked.stated[0], asked.target) or ()

    def _settled(self, asked: Asked, known: Iterable[Choice | Skipped]) -> Choice | None:
        """The selector's choice if it does not depend on the candidates; found without reading the
        default space."""
        if self._candidates.decide:
            return None
        for choice in known:
            if isinstance(choice, Skipped):
                continue
            if not choice.settled:
                break
            if self._candidates.usable(choice.config, asked):
                return choice
        return None

    def _consider(self, asked: Asked, listed: Listed) -> Iterator[Choice]:
        """The candidates that serve the problem, best first."""
        for pool in self._candidates.serving(asked, listed):
            yield from self.selector.order(asked.stated[0], pool, asked.target)

    def _forget_if_changed(self) -> None:
        if self.registry is not None and self.registry.version != self._version:
            with self._lock:
                self._version = self.registry.version
                self._plans.clear()
                self._candidates.forget()


_Key = tuple[Any, Device, Constraints | None]


class _Plans:
    """Plans by (problem, device, constraints), at most `KEPT`: the least recently used is dropped.
    Thread-safe."""

    def __init__(self) -> None:
        self._plans: OrderedDict[_Key, Plan] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, key: _Key) -> Plan | None:
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
            return plan

    def add(self, key: _Key, plan: Plan) -> None:
        with self._lock:
            self._plans[key] = plan
            if len(self._plans) > KEPT:
                self._plans.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._plans.clear()


def _plan_of(choice: Choice, problem: Any, target: Device) -> Plan:
    launch = ops.family(problem.family).launch(choice.config, problem, target)
    return Plan(
        problem,
        target,
        choice.config,
        launch,
        choice.selector,
        choice.reason,
        choice.ahead,
        choice.measured_us,
    )


def _device(given: Device | str) -> Device:
    return given if isinstance(given, Device) else device(given)


def live_device(index: int) -> Device:
    """As `detect.live_device`, asked once: the driver, or the search for one, takes as long as a
    part of a plan."""
    found = _live_device(index)
    if isinstance(found, Device):
        return found
    raise found.with_traceback(None)


@cache
def _live_device(index: int) -> Device | TilewrightError:
    try:
        return detect.live_device(index)
    except TilewrightError as error:
        return error


@cache
def _planning_device() -> Device:
    try:
        return live_device(0)
    except NoDriver:
        return device(PLANNING_DEVICE)
