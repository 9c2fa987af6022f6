"""A sweep: every kernel of a space on every problem of a list, on every device, and the vendor's
library beside them on GPUs.

    plan: pairs, less those measured before → build (child processes, no GPU context here) →
    measure (a crew, which has a process for each device) → `Results`

Every measurement is on disk before the next is asked for, and a plan leaves out what results
have, so that a sweep that was stopped goes on where it was: a kernel added to its space, or a
problem to its list, costs what is new and nothing else.
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
from tilewright.measure.measurement import (
    Environment,
    Measurement,
    Settings,
    Status,
    digest,
    problem_text,
)
from tilewright.measure.results import Build, Results, now
from tilewright.measure.vendor import is_vendor, vendor_build, vendor_name
from tilewright.ops.nouns import MAIN
from tilewright.verdict import Verdict


class Crew(Protocol):
    """Who measures; see `tilewright.measure.crew`."""

    def run(
        self, tasks: Iterable[Any], known: Collection[tuple[str, ...]] = frozenset()
    ) -> Iterator[Measurement]:
        """Each task on each kind of device of its architecture, but for those whose key is
        `known`; in any order, each as soon as it is measured."""

    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that are alike: what is measured on any is a measurement of `device` under
    `environment`. count: of devices. interpreted: kernels run through the interpreter, and need no
    building.
    """

    device: Device
    environment: Environment
    count: int = 1
    interpreted: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel, the key of its binary, and a problem. The vendor's library has no config."""

    kernel: str
    build: str
    problem: Any
    config: Any = None


@dataclass(frozen=True, slots=True)
class Part:
    """What a sweep does on one group of devices.

    settings: how it measures there: as asked, but by the wall clock in the interpreter. todo: to be
    measured, the pairs of one problem one after the other, the vendor's first (so that it shares
    its batch). refused: pairs that a rule says no to, and which one. known: pairs in the results.
    strangers: pairs of different operations. Pairs that are counted are of kernels; vendor_known
    counts the vendor's in the results. again: of those to be done, how many results have already,
    the vendor's among them.
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
        """How many of those to be measured are the vendor's."""
        return sum(pair.config is None for pair in self.todo)

    @property
    def pairs(self) -> int:
        """Pairs of one operation, whatever becomes of them."""
        return self.known + len(self.refused) + len(self.todo) - self.vendor

    def rules(self) -> dict[str, int]:
        """How many pairs each rule refused, most first."""
        return dict(Counter(verdict.rule for _, verdict in self.refused).most_common())


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep does on each group."""

    parts: tuple[Part, ...]

    def to_build(self) -> list[tuple[Any, str]]:
        """Each (config, architecture) that something is to be measured with, once."""
        wanted: dict[tuple[Any, str], None] = {}
        for part in self.parts:
            if not part.group.interpreted:
                arch = part.group.device.arch
                wanted |= {(p.config, arch): None for p in part.todo if p.config is not None}
        return list(wanted)

    @property
    def total(self) -> int:
        """How many measurements are to be made, the vendor's among them."""
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
    """What is to be done where: `kernels` (configs) and `problems` by architecture, less the
    `known` (`Results.keys`). vendor: on GPUs, the vendor's library too, on every problem of an
    operation that a kernel is of. again: keys among the `known` that are to be measured once more
    (`Results.keys` of some statuses). Raises `EmptySpace` if no kernel is of any problem's
    operation.
    """
    wanted = [
        (group, [(p, kernels[group.device.arch]) for p in problems[group.device.arch]])
        for group in groups
    ]
    parts = plan_some(wanted, settings, known, vendor, again).parts
    if all(part.strangers == part.kernels * part.problems for part in parts):
        raise EmptySpace("no kernel is of an operation that a problem is of; nothing to measure")
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
    """As `plan`, with kernels of its own for each problem on each group."""
    left = (known or set()).difference(again)
    return Plan(
        tuple(
            _part(group, pairs, settings, left, again, vendor and not group.interpreted)
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
    lists = {id(chosen): chosen for _, chosen in wanted}  # most problems share one
    built = {i: [(c, (c.name, keys[c])) for c in chosen] for i, chosen in lists.items()}
    todo: list[Pair] = []
    refused: list[tuple[Pair, Verdict]] = []
    old = strangers = vendor_known = once_more = 0
    families = {config.family for config in configs}
    for problem, chosen in wanted:
        family, rest = ops.family(problem.family), _rest_of_key(group, problem, settings)
        if vendor and problem.family in families and (name := vendor_name(problem)):
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
"""Called with each measurement that is on disk, how many are, and how many there will be."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a sweep did: measurements of kernels by status, and of the vendor's library; and how
    many pairs a rule said no to."""

    statuses: Mapping[Status, int]
    refused: int
    vendor: Mapping[Status, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every kernel that was measured came out right."""
        return set(self.statuses) <= {"ok"}


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
    """Do what the plan says, into `results`. `crew` is called if there is something to measure.

    building, measuring: contexts that show how far each is, entered one after the other
    (`build.show_progress`, `progress.show_measuring`).

    Kernels that cannot be built are measurements too (``build_failed``). Stopping it at any time,
    by Ctrl-C or harder, loses nothing that was measured. Raises what building, writing and the
    crew raise.
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
    """Every measurement that the plan asks for, once it is kept."""
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
    # Less what is there and asked for again. A crew may have devices that a pair is not asked of.
    known = results.keys(problems={problem_text(t.problem) for t in tasks}).difference(asked)
    with closing(crew()) as at_work, closing(_run(at_work, tasks, known)) as measured:
        for m in measured:
            results.add([m])
            if asked.pop(m.key, None) is None:
                raise TilewrightError(
                    f"{m.kernel} on {m.problem} was measured and not asked for, or twice (on "
                    f"{m.device}, under {m.environment}, with {m.settings}): did devices change?"
                )
            yield m
    if asked:
        raise TilewrightError(f"{len(asked)} measurements were not made; run it again")


def _run(
    crew: Crew, tasks: Sequence[Task], known: set[tuple[str, ...]]
) -> Generator[Measurement, None, None]:
    """A crew's work, in a form that can be ended before the crew is closed."""
    yield from crew.run(tasks, known)


def settings_on(group: Group, settings: Settings) -> Settings:
    """How is measured there if asked to do it so."""
    return settings.interpreted if group.interpreted else settings


def _rest_of_key(group: Group, problem: Any, settings: Settings) -> tuple[str, str, str, str]:
    """What follows kernel and binary in the key of a measurement there (`Measurement.key`)."""
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
    """Have all kernels in the store; why not, for those that cannot be."""
    requests = this.to_build()
    builds = {
        (pair.config, part.group.device.arch): pair.build
        for part in this.parts
        for pair in part.todo
    }
    done: list[BuildResult] = []

    def keep(result: BuildResult, finished: int, total: int) -> None:
        if result.status != "cached":
            done.append(result)
        if progress:
            progress(result, finished, total)

    try:
        report = build(requests, store=store, workers=workers, timeout=timeout, progress=keep)
    finally:
        by_config: dict[tuple[Any, str], list[BuildResult]] = {}
        for result in done:
            by_config.setdefault((result.config, result.arch.name), []).append(result)
        results.add_builds(_kept(parts, builds[key]) for key, parts in by_config.items())
    return {(r.config, r.arch.name): r.reason or r.status for r in report.failures}


def _kept(parts: Sequence[BuildResult], key: str) -> Build:
    """What building all kernels of a config came to: the first failure, if there is one."""
    first = min(parts, key=lambda part: part.ok)
    seconds = sum(part.seconds for part in parts)
    reason = first.reason if first.part == MAIN else f"part {first.part}: {first.reason}"
    return Build(
        first.name, key, first.arch.name, first.status, reason if first.reason else "", seconds
    )
