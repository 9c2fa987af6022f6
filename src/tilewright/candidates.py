"""`Candidates`: the kernels that a problem's kernel is chosen from, and why others are not.

Registry, bundles or the family's default space, and what the selector knows of its own
→ rules, constraints, what can be had here → pools of kernels that serve the problem
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Arch, Device
from tilewright.bundle.lacking import lacking
from tilewright.bundle.shelf import Shelf
from tilewright.errors import EmptySpace, NoKernelFound, NotInBundle, UnsupportedProblem
from tilewright.ops.library import library_of
from tilewright.ops.nearby import Invariance
from tilewright.ops.pool import Pool, each
from tilewright.registry import Entry, Registry
from tilewright.select import Choice, Skipped
from tilewright.select.constraints import Constraints
from tilewright.verdict import YES, Verdict, no
from tilewright.wording import many

NEAREST_MISSES = 3

_NEARNESS = ("family", "signature")
"""Rules that refuse a kernel made for another purpose; a miss by any other rule is nearer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to a planner.

    A kernel must serve every problem of `stated`, and is chosen for the first: the problem itself
    or, for a batch-invariant choice, the problems of `invariance`.
    """

    problem: Any
    target: Device
    constraints: Constraints
    stated: Sequence[Any]
    invariance: Invariance | None = None

    @property
    def over(self) -> str:
        """The property that a batch-invariant choice does not depend on, in words."""
        return "" if self.invariance is None else self.invariance.over

    def reason(self, choice: Choice) -> str:
        """The reason for `choice`, with the problem it was made for if that is another problem."""
        if self.invariance is None:
            return choice.reason
        return (
            f"{choice.reason}; chosen for {self.invariance.chosen_for}, "
            f"as for {self.invariance.over}"
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """The kernels to choose from.

    entries: all of them. pools: their configs, by family and priority.
    """

    entries: tuple[Entry, ...]
    pools: Mapping[tuple[str, int], Pool]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Listed:
        entries, alike = tuple(entries), defaultdict(list)
        for entry in entries:
            alike[entry.config.family, entry.priority].append(entry.config)
        return cls(entries, {key: Pool(configs) for key, configs in alike.items()})

    def pools_of(self, family: str) -> list[Pool]:
        """The family's, of the highest priority first."""
        keys = [key for key in self.pools if key[0] == family]
        return [self.pools[key] for key in sorted(keys, reverse=True)]


class Vendor:
    """The vendors' libraries, where choices are planned alone: none is asked."""

    def lacking(self, library: str, target: Device) -> str:
        """Why a library cannot be used here; ``""`` if it can, or if plans are made for another
        machine."""
        return ""

    def offered(self, family: Any, problem: Any, target: Device, kind: str = "") -> Any:
        """The config of the first algorithm that a library offers, or why it offers none. kind: of
        the library; ``""`` for any."""
        return "no GPU's library is at hand where choices are planned alone"


class Candidates:
    """Which kernels there are, and which of them serve a problem.

    registry: the only candidates, if there is one.
    prebuilt: bundles whose kernels are the only candidates, if there are any and no registry.
    vendor: the vendors' libraries.
    """

    def __init__(self, registry: Registry | None, prebuilt: Shelf | None, vendor: Vendor) -> None:
        self._registry = registry
        self._prebuilt = prebuilt
        self._vendor = vendor
        self.unbuildable: dict[tuple[str, Any], str] = {}
        """Why kernels cannot be launched, by name and architecture; why the vendor's library
        refuses algorithms, by name and problem."""
        self._known: dict[Any, Listed] = {}

    @property
    def decide(self) -> bool:
        """Whether a choice depends on the candidates in any case: a registry and some bundles say
        which kernels exist, with which priorities."""
        if self._registry is not None:
            return True
        return self._prebuilt is not None and self._prebuilt.prioritised

    def avoid(self, config: Any, of: Any, why: str) -> None:
        """Refuse a kernel on an architecture, or an algorithm of a library for a problem."""
        self.unbuildable[config.name, of] = why

    def forget(self) -> None:
        """Forget which kernels there are: the registry has changed."""
        self._known.clear()

    def listed(self, asked: Asked, recalled: Iterable[Choice | Skipped]) -> Listed:
        """All, whatever they serve: the registry's kernels; without a registry, a bundle's; without
        both, the kernels of the default space, and those that the selector `recalled`."""
        found = self._without_recalled(asked.stated[-1], asked.target)
        if self._registry is not None or self._prebuilt is not None:
            return found
        theirs = dict.fromkeys(one.config for one in recalled if isinstance(one, Choice))
        if not theirs:
            return found
        listed = {entry.config for entry in found.entries}
        more = (Entry(config) for config in theirs if config not in listed)
        return Listed.of((*found.entries, *more))

    def _without_recalled(self, problem: Any, target: Device) -> Listed:
        """All but those that only the selector knows."""
        if self._registry is not None:
            return self._kept(self._registry.version, self._registry.__iter__)
        if self._prebuilt is not None:
            return self._kept(target.arch, partial(self._prebuilt.entries, target.arch))
        this = arch(target.arch)
        space = ops.family(problem.family).default_space(problem, this)
        return self._kept((this.name, space.key), partial(_expanded, space, this, problem))

    def _kept(self, key: Any, entries: Callable[[], Iterable[Entry]]) -> Listed:
        """Those of `key`, made once, with all that is worked out of them."""
        if key not in self._known:
            self._known[key] = Listed.of(entries())
        return self._known[key]

    def serving(self, asked: Asked, listed: Listed) -> Iterator[Pool]:
        """Those that serve the problem, priority by priority."""
        problem, target = asked.problem, asked.target
        family, this = ops.family(problem.family), arch(target.arch)
        for pool in listed.pools_of(problem.family):
            for stated in asked.stated:
                pool = pool.part(family.serving(stated, pool, this))
            refused = {
                place
                for place in self._doubtful(asked, pool)
                if not self._at_hand(pool[place], asked)
                or not asked.constraints.allows(pool[place], problem, target)
            }
            pool = pool.part([place for place in range(len(pool)) if place not in refused])
            if pool:
                yield pool

    def _doubtful(self, asked: Asked, pool: Pool) -> Iterable[int]:
        """The places of kernels that may be refused though they serve the problem: all of them, or
        algorithms of a library where that alone is asked."""
        asked_of_all = self.unbuildable or asked.constraints != Constraints()
        if asked_of_all or self._prebuilt is not None or not pool:
            return range(len(pool))
        theirs: Iterable[int] = (each(pool.columns, library_of) != "").nonzero()[0]
        return theirs

    def refused(self, asked: Asked, listed: Listed) -> list[tuple[Entry, Verdict]]:
        """Those that do not serve the problem, with the reasons."""
        judged = ((entry, self.usable(entry.config, asked)) for entry in listed.entries)
        return [(entry, verdict) for entry, verdict in judged if not verdict]

    def usable(self, config: Any, asked: Asked) -> Verdict:
        """Whether a kernel, be it a candidate or not, may be chosen."""
        problem, target = asked.problem, asked.target
        if config.family != problem.family:
            return no("family", f"is a {config.family} kernel")
        if not (verdict := self._at_hand(config, asked)):
            return verdict
        family, this = ops.family(problem.family), arch(target.arch)
        for stated in asked.stated:
            if not (verdict := family.supports(config, stated, this)):
                return verdict
        return asked.constraints.allows(config, problem, target)

    def _at_hand(self, config: Any, asked: Asked) -> Verdict:
        """Whether a kernel can be had here, whatever it serves."""
        target = asked.target
        # Without broken ones no names are made: for hundreds of candidates they take time.
        if self.unbuildable and (config.name, target.arch) in self.unbuildable:
            return no("build", self.unbuildable[config.name, target.arch])
        if library := library_of(config):
            if (config.name, asked.stated[0]) in self.unbuildable:
                return no("library", self.unbuildable[config.name, asked.stated[0]])
            if lacking := self._vendor.lacking(library, target):
                return no("library", lacking)
        elif self._prebuilt is not None:
            return self._present(config.name, target)
        return YES

    def absent(self, config: Any, target: Device) -> Verdict:
        """Why a kernel that the selector knows is no candidate."""
        if self._registry is not None or self._prebuilt is None:
            return no("registry", "is not registered")
        return self._present(config.name, target)

    def _present(self, name: str, target: Device) -> Verdict:
        """Whether the prebuilt kernels, if they are the only candidates, include this one."""
        kept = self._prebuilt
        if kept is None or kept.find(name, target.arch) is not None:
            return YES
        return no("bundle", f"is not in {kept.where} for {target.arch}")

    def serves_itself(self, config: Any, asked: Asked) -> Verdict:
        """Whether a kernel that was chosen for other problems serves the problem asked about."""
        if asked.problem in asked.stated:
            return YES
        return self.usable(config, replace(asked, stated=(asked.problem,)))

    def none(self, asked: Asked, listed: Listed) -> NoKernelFound:
        """The error if no candidate serves the problem."""
        problem, target = asked.problem, asked.target
        entries, refused = listed.entries, self.refused(asked, listed)
        if self._prebuilt is None:
            return NoKernelFound(_nothing(problem, target, entries, refused))
        why = f"no kernel for {problem} on {target.name}"
        if entries:
            why = _nothing(problem, target, entries, refused)
        return NotInBundle(f"{why}; {lacking(self._prebuilt, problem, target)}")


def _expanded(space: Any, this: Arch, problem: Any) -> Iterator[Entry]:
    try:
        return map(Entry, space.expand(this).configs)
    except EmptySpace as error:
        raise UnsupportedProblem(f"{problem} cannot run on {this.name}: {error}") from None


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
    count = len(entries)
    if near:
        none = f"none of {count} kernels serves" if count > 1 else "the only kernel does not serve"
        return f"{none} {problem} on {target.name}; nearest: {misses}"
    return f"the selector has no choice among {many(count, 'kernel')} for {problem}"
