"""A sweep measures every kernel of a space on every problem of a list, on every device, and on GPUs
the vendor's library beside them.

    plan: pairs without those measured before → build (child processes, no GPU context here) →
    measure (a crew, which has a process for each device) → `Results`

Every measurement is on disk before the next is requested, and a plan leaves out pairs with results.
So an interrupted sweep continues where it stopped, and a kernel added to its space, or a problem
added to its list, costs only its own measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from tilewright import ops
from tilewright.arch import arch as arch_called
from tilewright.arch.model import Device
from tilewright.compile import BuildResult, Store, build, build_keys
from tilewright.compile.report import Progress as BuildProgress
from tilewright.errors import EmptySpace, TilewrightError
from tilewright.measure.crew import Task
from tilewright.measure.devices import Place
from tilewright.measure.measurement import (
    GOOD,
    Environment,
    Measurement,
    Settings,
    Status,
    digest,
    problem_text,
)
from tilewright.measure.results import Build, Results, now
from tilewright.measure.vendor import is_vendor, vendor_build, vendor_names
from tilewright.ops.library import library_of
from tilewright.ops.nouns import MAIN
from tilewright.verdict import Verdict


class Crew(Protocol):
    """Measures tasks; see `tilewright.measure.crew`."""

    def run(
        self, tasks: Iterable[Any], known: Collection[tuple[str, ...]] = frozenset()
    ) -> Iterator[Measurement]:
        """Measure each task on each kind of device of its architecture, except tasks with a key in
        `known`. Yields in any order, each measurement as soon as it is made."""

    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that are alike: a measurement on any of them is a measurement of `device` under
    `environment`.

    count: number of devices.
    interpreted: kernels run through the interpreter, and need no building.
    emulated: kernels run on emulated GPUs, which time nothing.
    place: one of them, to ask its driver and libraries.
    """

    device: Device
    environment: Environment
    count: int = 1
    interpreted: bool = False
    emulated: bool = False
    place: Place | None = field(default=None, compare=False)

    @property
    def real(self) -> bool:
        """Whether they are GPUs."""
        return not (self.interpreted or self.emulated)


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel, the key of its binary, and a problem. The vendor's library has no config."""

    kernel: str
    build: str
    problem: Any
    config: Any = None


@dataclass(frozen=True, slots=True)
class Part:
    """A sweep's work on one group of devices. Only `todo`, `vendor_known` and `again` count the
    vendor's library; all other counts are of kernels.

    settings: how it measures there: as requested, but by the wall clock in the interpreter, and
        without times on emulated GPUs.
    todo: pairs to be measured, grouped by problem, the vendor's first (so that it shares the
        batch).
    refused: pairs that a rule refuses, with its verdict.
    known: number of pairs with results.
    strangers: number of pairs whose kernel and problem belong to different operations.
    vendor_known: number of results of the vendor's library.
    again: number of pairs to be measured that already have results, the vendor's included.
    """

    group: Group
    settings: Settings
    kernels: int
    problems: int
    todo: tuple[Pair, ...]
    refused: tuple[tuple[Pair, Verdict], ...]
    known: int
    strangers: int
    vendor_known: int = 0
    again: int = 0

    @property
    def vendor(self) -> int:
        """How many of the pairs to be measured are the vendor's."""
        return sum(pair.config is None for pair in self.todo)

    @property
    def pairs(self) -> int:
        """Pairs of one operation, whatever their result."""
        return self.known + len(self.refused) + len(self.todo) - self.vendor

    def rules(self) -> dict[str, int]:
        """How many pairs each rule refused, most first."""
        return dict(Counter(verdict.rule for _, verdict in self.refused).most_common())


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep's work on each group."""

    parts: tuple[Part, ...]

    def to_build(self) -> list[tuple[Any, str]]:
        """Each (config, architecture) that needs a binary to be measured, once."""
        wanted: dict[tuple[Any, str], None] = {}
        for part in self.parts:
            if not part.group.interpreted:
                arch = part.group.device.arch
                needed = (p.config for p in part.todo if p.config is not None)
                wanted |= {(config, arch): None for config in needed if not library_of(config)}
        return list(wanted)

    @property
    def total(self) -> int:
        """Number of measurements to be made, the vendor's included."""
        return sum(len(part.todo) for part in self.parts)


def plan(
    groups: Sequence[Group],
    kernels: Mapping[str, Sequence[Any]],
    problems: Mapping[str, Sequence[Any]],
    settings: Settings,
    known: set[tuple[str, ...]] | None = None,
    vendor: bool = True,
    again: Collection[tuple[str, ...]] = frozenset(),
) -> Plan:
    """The work on each group: all pairs without the known ones.

    kernels, problems: configs and problems by architecture.
    known: keys with results (`Results.keys`).
    vendor: on GPUs, also measure the vendor's library on every problem of an operation that some
        kernel has.
    again: keys among the `known` that are to be measured once more (`Results.keys` of some
        statuses).

    Raises `EmptySpace` if no kernel belongs to the operation of any problem.
    """
    wanted = [
        (group, [(p, kernels[group.device.arch]) for p in problems[group.device.arch]])
        for group in groups
    ]
    parts = plan_some(wanted, settings, known, vendor, again).parts
    if all(part.strangers == part.kernels * part.problems for part in parts):
        raise EmptySpace("no kernel has the operation of any problem; nothing to measure")
    return Plan(parts)


Wanted = Sequence[tuple[Any, Sequence[Any]]]
"""Problems, each with the configs to measure on it."""


def plan_some(
    wanted: Sequence[tuple[Group, Wanted]],
    settings: Settings,
    known: set[tuple[str, ...]] | None = None,
    vendor: bool = True,
    again: Collection[tuple[str, ...]] = frozenset(),
) -> Plan:
    """As `plan`, but each problem on each group has its own kernels."""
    left = (known or set()).difference(again)
    return Plan(
        tuple(
            _part(group, pairs, settings, left, again, vendor and group.real)
            for group, pairs in wanted
        )
    )


def _part(
    group: Group,
    wanted: Wanted,
    settings: Settings,
    known: set[tuple[str, ...]],
    again: Collection[tuple[str, ...]],
    vendor: bool,
) -> Part:
    this, settings = arch_called(group.device.arch), settings_on(group, settings)
    configs = list(dict.fromkeys(config for _, chosen in wanted for config in chosen))
    keys = dict(zip(configs, build_keys(configs, this, group.interpreted), strict=True))
    lists = {id(chosen): chosen for _, chosen in wanted}  # most problems share one list
    built = {i: [(c, (c.name, keys[c])) for c in chosen] for i, chosen in lists.items()}
    todo: list[Pair] = []
    refused: list[tuple[Pair, Verdict]] = []
    old = strangers = vendor_known = once_more = 0
    families = {config.family for config in configs}
    for problem, chosen in wanted:
        family, rest = ops.family(problem.family), _rest_of_key(group, problem, settings)
        beside = vendor and problem.family in families
        for name in vendor_names(problem) if beside else ():
            if (key := (name, vendor_build(), *rest)) in known:
                vendor_known += 1
            else:
                once_more += key in again
                todo.append(Pair(name, vendor_build(), problem))
        for config, binary in built[id(chosen)]:
            if config.family != problem.family:
                strangers += 1
            elif known and binary + rest in known:
                old += 1
            else:
                once_more += bool(again) and binary + rest in again
                pair = Pair(*binary, problem, config)
                verdict = family.supports(config, problem, this)
                if verdict:
                    todo.append(pair)
                else:
                    refused.append((pair, verdict))
    return Part(
        group,
        settings,
        len(configs),
        len(wanted),
        tuple(todo),
        tuple(refused),
        old,
        strangers,
        vendor_known,
        once_more,
    )


Progress = Callable[[Measurement, int, int], None]
"""Called with each measurement after it is written to disk, the number written, and the total."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a sweep in short.

    statuses: measurements of kernels, by status.
    refused: number of pairs that a rule refused.
    vendor: measurements of the vendor's library, by status.
    """

    statuses: Mapping[Status, int]
    refused: int
    vendor: Mapping[Status, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every measured kernel was right."""
        return set(self.statuses) <= set(GOOD)


def sweep(
    this: Plan,
    results: Results,
    store: Store,
    crew: Callable[[], Crew],
    *,
    building: Callable[[], AbstractContextManager[BuildProgress | None]] = nullcontext,
    measuring: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
    workers: int | None = None,
    build_timeout: float = 120.0,
) -> Outcome:
    """Carry out the plan and write into `results`.

    crew: is called if there is something to measure.
    building, measuring: contexts that show progress, entered one after the other
        (`build.show_progress`, `progress.show_measuring`).

    A kernel that cannot be built gives a measurement too (``build_failed``). You may stop a sweep
    at any time, by Ctrl-C or harder: no finished measurement is lost. Raises the errors of
    building, writing and the crew.
    """
    refused = 0
    for part in this.parts:
        refused += len(part.refused)
        rows = (_not_run(part, pair, "unsupported", str(verdict)) for pair, verdict in part.refused)
        while some := list(islice(rows, 1000)):
            results.add(some)
    failed: dict[tuple[Any, str], str] = {}
    if this.to_build():
        with building() as build_progress:
            failed = _build(this, results, store, build_progress, workers, build_timeout)
    statuses: Counter[Status] = Counter()
    vendor: Counter[Status] = Counter()
    if this.total:
        measured = _measure(this, results, crew, failed)
        with measuring() as progress, closing(measured):
            for m in measured:
                (vendor if is_vendor(m.kernel) else statuses)[m.status] += 1
                if progress:
                    progress(m, statuses.total() + vendor.total(), this.total)
    return Outcome(dict(statuses), refused, dict(vendor))


def _measure(
    this: Plan,
    results: Results,
    crew: Callable[[], Crew],
    failed: Mapping[tuple[Any, str], str],
) -> Generator[Measurement, None, None]:
    """Every measurement that the plan requests, after it is written."""
    asked: dict[tuple[str, ...], Task] = {}
    for part in this.parts:
        group = part.group
        unbuilt: list[Measurement] = []
        for pair in part.todo:
            why = failed.get((pair.config, group.device.arch)) if not group.interpreted else None
            if why is not None:
                unbuilt.append(_not_run(part, pair, "build_failed", why))
            else:
                rest = _rest_of_key(group, pair.problem, part.settings)
                key = (pair.kernel, pair.build, *rest)
                asked[key] = Task(pair.kernel, pair.problem, group.device.arch)
        results.add(unbuilt)
        yield from unbuilt
    if not asked:
        return
    tasks = list(dict.fromkeys(asked.values()))
    # Without the keys to be measured again. A crew may have devices on which a pair is not wanted.
    known = results.keys(problems={problem_text(t.problem) for t in tasks}).difference(asked)
    with closing(crew()) as at_work, closing(_run(at_work, tasks, known)) as measured:
        for m in measured:
            results.add([m])
            if asked.pop(m.key, None) is None:
                raise TilewrightError(
                    f"{m.kernel} on {m.problem} was measured without being requested, or twice (on "
                    f"{m.device}, under {m.environment}, with {m.settings}): did devices change?"
                )
            yield m
    if asked:
        raise TilewrightError(f"{len(asked)} measurements were not made; run it again")


def _run(
    crew: Crew, tasks: Sequence[Task], known: set[tuple[str, ...]]
) -> Generator[Measurement, None, None]:
    """A crew's work as a generator that can be ended before the crew is closed."""
    yield from crew.run(tasks, known)


def settings_on(group: Group, settings: Settings) -> Settings:
    """The settings as this group applies them."""
    if group.emulated:
        return settings.emulated
    return settings.interpreted if group.interpreted else settings


def _rest_of_key(group: Group, problem: Any, settings: Settings) -> tuple[str, str, str, str]:
    """The part after kernel and binary in the key of a measurement there (`Measurement.key`)."""
    return (
        problem_text(problem),
        digest(group.device),
        group.environment.digest,
        settings.digest,
    )


def _not_run(part: Part, pair: Pair, status: Status, reason: str) -> Measurement:
    return Measurement(
        pair.kernel,
        pair.problem,
        part.group.device,
        part.group.environment,
        part.settings,
        status,
        build=pair.build,
        reason=reason,
        measured_at=now(),
    )


def _build(
    this: Plan,
    results: Results,
    store: Store,
    progress: BuildProgress | None,
    workers: int | None,
    timeout: float,
) -> dict[tuple[Any, str], str]:
    """Have all kernels in the store. Returns, for each kernel that failed, the reason."""
    requests = this.to_build()
    done: list[BuildResult] = []

    def keep(result: BuildResult, finished: int, total: int) -> None:
        done.append(result)
        if progress:
            progress(result, finished, total)

    try:
        report = build(requests, store=store, workers=workers, timeout=timeout, progress=keep)
    finally:
        keep_builds(results, done)
    return {(r.config, r.arch.name): r.reason or r.status for r in report.failures}


def keep_builds(results: Results, done: Iterable[BuildResult]) -> None:
    """Write what became of builds into `results`, but for what was there before."""
    by_config: dict[tuple[Any, str], list[BuildResult]] = {}
    for one in done:
        if one.status != "cached":
            by_config.setdefault((one.config, one.arch.name), []).append(one)
    results.add_builds(
        _kept(parts, build_keys([config], arch)[0]) for (config, arch), parts in by_config.items()
    )


def _kept(parts: Sequence[BuildResult], key: str) -> Build:
    """The result of building all kernels of a config: the first failure, if there is one."""
    first = min(parts, key=lambda part: part.ok)
    seconds = sum(part.seconds for part in parts)
    reason = first.reason if first.part == MAIN else f"part {first.part}: {first.reason}"
    return Build(
        first.name, key, first.arch.name, first.status, reason if first.reason else "", seconds
    )
