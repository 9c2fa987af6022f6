"""`KernelSpace`: a declared set of kernel configs, and its expansion on an architecture."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright import checks, ops
from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch
from tilewright.dtypes import named
from tilewright.errors import BadArgument, EmptySpace, nearest, shown
from tilewright.ops.protocols import Family
from tilewright.verdict import YES, Verdict, no

WILDCARDS: tuple[Any, ...] = ("*", -1)
"""Axis values that stand for every value in the architecture's data."""

MAX_COMBINATIONS = 1_000_000
"""Most combinations of a space: judging them takes about ten seconds."""

Constraint = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A combination that is no kernel on this architecture: its fields, and the rule that refused
    it."""

    fields: Mapping[str, Any]
    verdict: Verdict


def _several(axis: str, given: Any, known: Mapping[str, Any]) -> Sequence[Any]:
    """The values of an axis given as a list or as a single value. For an axis of tuples, one tuple
    is a single value."""
    given = checks.plain(axis, given) if getattr(given, "ndim", 1) == 0 else given
    one = isinstance(given, str | bytes) or not isinstance(given, Iterable)
    if not one and isinstance(known[axis], tuple):
        given = [*given]
        one = len(given) == len(known[axis]) and all(type(value) is int for value in given)
        given = tuple(given) if one else given
    values = [given] if one else given if isinstance(given, Sequence) else [*given]
    if axis.startswith("dtype"):
        values = [value if value in WILDCARDS else named(value) for value in values]
    return [_value(axis, value, known[axis] is None) for value in values]


def _value(axis: str, value: Any, or_none: bool) -> Any:
    """A value of an axis. Raises `BadArgument` for one that no axis has, and for None unless
    `or_none`."""
    own = checks.plain(axis, value)
    if not (is_value(own) or (own is None and or_none)):
        raise BadArgument(f"axis {axis} cannot have the value {shown(value)}: {A_VALUE}")
    return own


def _column(axis: str, values: Sequence[Any], known: Mapping[str, Any]) -> Sequence[Any]:
    """The values of an axis in all rows of linked ones, of which there are thousands."""
    if _VALUES.issuperset(map(type, values)):
        return values
    return [_value(axis, value, known[axis] is None) for value in values]


def is_value(value: Any) -> bool:
    """Whether `value` is of a type that axes have."""
    flat = isinstance(value, list | tuple) and _VALUES.issuperset(map(type, value))
    return type(value) in _VALUES or flat


A_VALUE = "a value is a number, text, true or false, or a list of these"
"""What errors say of values."""


_VALUES = frozenset({int, float, str, bool})


class _Fields(Mapping[str, Any]):
    """The fields of a combination, small enough for a space with a million of them. `fixed`, and
    `places` (positions of axes among `values`), are shared by the whole space."""

    __slots__ = ("_fixed", "_places", "_values")

    def __init__(
        self, fixed: Mapping[str, Any], places: Mapping[str, int], values: tuple[Any, ...]
    ) -> None:
        self._fixed, self._places, self._values = fixed, places, values

    def __getitem__(self, axis: str) -> Any:
        place = self._places.get(axis)
        return self._fixed[axis] if place is None else self._values[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fixed)

    def __len__(self) -> int:
        return len(self._fixed)


@dataclass(frozen=True, slots=True)
class Expansion:
    """The expansion of a space on one architecture.

    configs: the legal configs, in the order of the axes, without repeats.
    dropped: every other combination, with its verdict.
    duplicates: number of combinations that repeat an earlier config.
    """

    arch: str
    configs: tuple[Any, ...]
    dropped: tuple[Dropped, ...]
    duplicates: int

    def summary(self) -> dict[str, int]:
        """How many combinations each rule dropped, most first."""
        return dict(Counter(d.verdict.rule for d in self.dropped).most_common())

    def raise_if_empty(self) -> Expansion:
        """Return the expansion. Raises `EmptySpace`, with the counts and an example of each, if no
        config is legal."""
        if self.configs:
            return self
        if not self.dropped:
            raise EmptySpace(
                "the space has an axis without values; give every axis at least one", self
            )
        examples = {d.verdict.rule: d.verdict.reason for d in reversed(self.dropped)}
        reasons = "; ".join(f"{n} by {r} ({examples[r]})" for r, n in self.summary().items())
        raise EmptySpace(f"no config of the space is legal on {self.arch}: {reasons}", self)


class _Key(tuple[Any, ...]):
    """A tuple that keeps its hash: a space's has thousands of values, and each plan looks it up."""

    @functools.cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class KernelSpace:
    """Axes of values whose combinations are kernels of one family.

    axes: maps config fields to a list of values or to a single value. An axis left out has the
    family's default. Element types may have torch's or NumPy's names. ``"*"`` or -1 among the
    values stands for every value in the architecture's data.
    constraints: named predicates on a config. A combination that fails one is dropped, with this
    name as the rule.
    linked: axes whose values go together instead of crossing, without wildcards: ``{("pipeline",
    "num_stages"): [("basic", 2), ("tma", 4)]}``.

    Raises `BadArgument` for an axis that the family does not have, or that is declared twice.
    """

    family: str
    axes: Mapping[str, Sequence[Any]]
    constraints: Mapping[str, Constraint] = field(default_factory=dict)
    linked: Mapping[tuple[str, ...], Sequence[tuple[Any, ...]]] = field(default_factory=dict)
    _key: _Key | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = ops.family(self.family).axes()
        declared = [*self.axes, *itertools.chain.from_iterable(self.linked)]
        for axis in declared:
            if axis not in known:
                raise BadArgument(
                    f"{self.family} kernels have no axis '{axis}'{nearest(axis, known)};"
                    f" they have {', '.join(known)}"
                )
        for axis, times in Counter(declared).items():
            if times > 1:
                raise BadArgument(f"axis '{axis}' is declared {times} times")
        values = {axis: _several(axis, given, known) for axis, given in self.axes.items()}
        object.__setattr__(self, "axes", values)
        for group, rows in self.linked.items():
            for row in rows:
                if len(row) != len(group):
                    raise BadArgument(f"linked axes {group} cannot have the values {row}")
        linked = {}
        for group, rows in self.linked.items():
            columns = zip(group, zip(*rows, strict=True), strict=False)  # none without rows
            checked = [_column(axis, values, known) for axis, values in columns]
            linked[group] = [*zip(*checked, strict=True)]
        object.__setattr__(self, "linked", linked)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for spaces that expand to the same kernels in the same order."""
        if self._key is None:
            parts = (*self.axes.items(), *self.linked.items())
            values = ((axes, tuple(listed)) for axes, listed in parts)
            key = _Key((self.family, *values, *self.constraints.items()))
            object.__setattr__(self, "_key", key)
        assert self._key is not None
        return self._key

    def expand(self, arch: Arch | str) -> Expansion:
        """Judge every combination on `arch`. Raises `EmptySpace` if none is legal, and
        `BadArgument`, with the count, for more than `MAX_COMBINATIONS`."""
        arch = arch_called(arch)
        family = ops.family(self.family)
        configs: dict[Any, None] = {}
        dropped: list[Dropped] = []
        duplicates = 0
        fixed = dict(family.axes())
        axes, combinations = self._combinations(fixed, family, arch)
        places = {axis: place for place, axis in enumerate(axes)}
        doubtful = self._doubtful(fixed)
        for values in combinations:
            try:
                for axis in doubtful:
                    if type(value := values[places[axis]]) is not str:
                        raise BadArgument(f"{axis} = {shown(value)} is no text")
                config = family.make_config({**fixed, **dict(zip(axes, values, strict=True))}, arch)
            except BadArgument as error:
                verdict = no("expressible", str(error))
                dropped.append(Dropped(_Fields(fixed, places, values), verdict))
                continue
            verdict = family.judge(config, arch)
            if verdict.ok and self.constraints:
                verdict = self._constrained(config)
            if not verdict.ok:
                dropped.append(Dropped(_Fields(fixed, places, values), verdict))
                continue
            before = len(configs)
            configs.setdefault(config)  # a config's hash takes as long as its verdict
            duplicates += len(configs) == before
        return Expansion(arch.name, tuple(configs), tuple(dropped), duplicates).raise_if_empty()

    def _combinations(
        self, fixed: Mapping[str, Any], family: Family, arch: Arch
    ) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """The declared axes, and the values of every combination. The family's first axis varies
        slowest."""
        names: list[tuple[str, ...]] = []
        choices: list[list[tuple[Any, ...]]] = []
        group_of = {axis: group for group in self.linked for axis in group}
        for axis in fixed:
            group = group_of.get(axis, (axis,))
            if axis in self.axes:
                names.append(group)
                choices.append([(value,) for value in self._values(axis, family, arch)])
            elif axis in group_of and group not in names:
                names.append(group)
                choices.append(list(dict.fromkeys(self.linked[group])))
        flat = list(itertools.chain.from_iterable(names))
        check_count({" and ".join(n): len(c) for n, c in zip(names, choices, strict=True)})
        rows = itertools.product(*choices)
        return flat, (tuple(itertools.chain.from_iterable(row)) for row in rows)

    def _values(self, axis: str, family: Family, arch: Arch) -> list[Any]:
        values: dict[Any, None] = {}
        for value in self.axes[axis]:
            if value in WILDCARDS:
                values.update(dict.fromkeys(family.wildcard(axis, arch)))
            else:
                values[value] = None
        return list(values)

    def _doubtful(self, known: Mapping[str, Any]) -> list[str]:
        """The axes of text that have another value."""
        declared = [*self.axes.items()]
        for group, rows in self.linked.items():
            declared += zip(group, zip(*rows, strict=True), strict=False)
        return [
            axis
            for axis, values in declared
            if isinstance(known[axis], str) and any(type(value) is not str for value in values)
        ]

    def _constrained(self, config: Any) -> Verdict:
        for name, keep in self.constraints.items():
            if not keep(config):
                return no(name, f"the space's own constraint '{name}' refuses it")
        return YES


def of_rows(
    family: str,
    fixed: Mapping[str, Any],
    axes: tuple[str, ...],
    rows: Iterable[tuple[Any, ...]],
) -> KernelSpace:
    """The space with the values of `axes` that each of `rows` has, and with one value for each axis
    of `fixed`. The same rows get the same object, which is checked and hashed once."""
    return _of_rows(family, (*fixed.items(),), axes, tuple(rows))


@functools.lru_cache(maxsize=1024)
def _of_rows(
    family: str,
    fixed: tuple[tuple[str, Any], ...],
    axes: tuple[str, ...],
    rows: tuple[tuple[Any, ...], ...],
) -> KernelSpace:
    return KernelSpace(family, {axis: [value] for axis, value in fixed}, {}, {axes: rows})


def check_count(counts: Mapping[str, int]) -> None:
    """Raise `BadArgument`, with the count, for more than `MAX_COMBINATIONS` combinations.

    counts: number of values of each axis.
    """
    total = math.prod(counts.values())
    if total > MAX_COMBINATIONS:
        parts = " × ".join(f"{count} of {name}" for name, count in counts.items() if count > 1)
        raise BadArgument(
            f"{total:,} combinations ({parts}) are over {MAX_COMBINATIONS:,}: give fewer values"
        )
