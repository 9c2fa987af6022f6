"""What is executed in emulation: kernels and problems that have every value of every axis.

For each AMD architecture and each of its pipelines, a list of cases is made: a config, a problem
that it serves, and the values that no case before had. The list is derived from the rules, so a new
pipeline, dtype, epilogue or instruction joins it by itself. A value that no rule lets a kernel have
is a `Refusal`, with the rule's words. Cases of a pipeline that come first have the most new values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.protocols import Family

Values = Mapping[str, Mapping[str, Any]]
"""The values of an axis: the fields of a config that each sets, by its word."""


@dataclass(frozen=True, slots=True)
class Axes:
    """A family's axes on one architecture.

    first: the axis that decides most, of which each case takes a new value as long as there is one.
    each: axes whose every value every pipeline shall have. once: those whose values are the same in
        every pipeline, so that one of them shall have each.
    starts: fields tried in turn until a value of `first` is legal.
    problems: functions of a legal config that state a problem for it, by word; they raise
        `BadArgument` where there is none. Every pipeline shall have each of them.
    needs: fields of a config that such a problem needs, by its word.
    """

    family: Family
    pipelines: Sequence[str]
    first: str
    each: Mapping[str, Values]
    once: Mapping[str, Values]
    starts: Sequence[Mapping[str, Any]]
    problems: Mapping[str, Callable[[Any], Any]]
    needs: Values


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel to be executed on a problem.

    covers: the values (axis, word) that no case of its pipeline before it has.
    """

    arch: str
    config: Any
    problem: Any
    covers: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """What a test's name says of it."""
        return f"{self.arch}-{self.config.name}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value that no kernel of a pipeline has, and why."""

    arch: str
    family: str
    pipeline: str
    axis: str
    word: str
    reason: str


PROBLEM = "problem"


@dataclass(slots=True)
class _Pipeline:
    """The cases of one pipeline so far.

    wanted: the values that no case has.
    roots: legal fields that have only a value of `Axes.first`. fields: those of the cases.
    refused: values that fields of a place among both cannot take; they are not asked again.
    """

    arch: Arch
    axes: Axes
    name: str
    wanted: dict[str, dict[str, Mapping[str, Any]]]
    roots: list[dict[str, Any]] = field(default_factory=list)
    fields: list[dict[str, Any]] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    refused: set[tuple[str, str, int]] = field(default_factory=set)

    def grow(self) -> None:
        """Add cases until no value that is wanted is legal."""
        self.roots = [
            fields for fields in map(self._root, self.wanted[self.axes.first].values()) if fields
        ]
        while (start := self._start()) is not None:
            self._add(*start)

    def reason(self, axis: str, word: str) -> str:
        """Why no kernel has a value."""
        defaults = {**self.axes.family.axes(), "pipeline": self.name, **self.axes.starts[0]}
        root = self.roots[0] if self.roots else defaults
        config = self._legal({**root, **self._fields(axis, word)})
        if isinstance(config, str) or axis != PROBLEM:
            return str(config)
        return str(self._problem(config, word))

    def _legal(self, fields: Mapping[str, Any]) -> Any | str:
        """The config of these fields, or why there is none."""
        try:
            config = self.axes.family.make_config(fields, self.arch)
        except BadArgument as error:
            return str(error)
        verdict = self.axes.family.judge(config, self.arch)
        return config if verdict else str(verdict)

    def _problem(self, config: Any, word: str) -> Any | str:
        """The problem of this kind for `config`, or why there is none."""
        try:
            problem = self.axes.problems[word](config)
        except BadArgument as error:
            return str(error)
        verdict = self.axes.family.supports(config, problem, self.arch)
        return problem if verdict else str(verdict)

    def _kind(self, fields: Mapping[str, Any], kept: str = "") -> str | None:
        """The kind of problem for the kernel of `fields`: `kept` if given, else one that is wanted,
        else any. None if the kernel is not legal, or serves no such problem."""
        config = self._legal(fields)
        if isinstance(config, str):
            return None
        kinds = [kept] if kept else [*self.wanted[PROBLEM], *self.axes.problems]
        return next((k for k in kinds if not isinstance(self._problem(config, k), str)), None)

    def _root(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """These fields with the first start that makes them legal."""
        defaults = {**self.axes.family.axes(), "pipeline": self.name}
        tried = ({**defaults, **start, **fields} for start in self.axes.starts)
        return next((fields for fields in tried if self._kind(fields)), None)

    def _fields(self, axis: str, word: str) -> Mapping[str, Any]:
        values = {**self.axes.each, **self.axes.once, PROBLEM: self.axes.needs}
        return values.get(axis, {}).get(word, {})

    def _start(self) -> tuple[dict[str, Any], str, str] | None:
        """Legal fields with a value that is wanted, its axis and its word."""
        for word, fields in self.wanted[self.axes.first].items():
            for root in self.roots:
                if _has(root, fields):
                    return root, self.axes.first, word
        for axis, values in self.wanted.items():
            for word, fields in values.items():
                for place, known in enumerate((*self.roots, *self.fields)):
                    if (axis, word, place) in self.refused:
                        continue
                    if self._kind({**known, **fields}, word if axis == PROBLEM else ""):
                        return {**known, **fields}, axis, word
                    self.refused.add((axis, word, place))
        return None

    def _add(self, fields: dict[str, Any], axis: str, word: str) -> None:
        """A case from these fields, which have the value of `axis` called `word`, with as many
        more values that are wanted as go together."""
        kept = word if axis == PROBLEM else ""
        own = self._fields(axis, word)
        for other, values in self.wanted.items():
            for changes in values.values():
                changed = {**fields, **changes}
                if other != axis and _has(changed, own) and self._kind(changed, kept):
                    fields = changed
                    break
        kind = self._kind(fields, kept)
        assert kind is not None
        new = [
            (other, name)
            for other, values in self.wanted.items()
            for name, changes in values.items()
            if (name == kind if other == PROBLEM else _has(fields, changes))
        ]
        for other, name in new:
            del self.wanted[other][name]
        config = self._legal(fields)
        self.cases.append(Case(self.arch.name, config, self._problem(config, kind), tuple(new)))
        self.fields.append(fields)


def _has(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    return all(fields[name] == value for name, value in changes.items())


def made(arch: Arch, families: Sequence[Axes]) -> tuple[list[Case], list[Refusal]]:
    """The cases of an architecture, the first of every pipeline, the second of every one, and so
    on; and the values that no kernel has. A value of `Axes.once` that none has stands with the
    pipeline that was asked first."""
    lists: list[list[Case]] = []
    refused: list[Refusal] = []
    for axes in families:
        once = {axis: dict(values) for axis, values in axes.once.items()}
        grown: list[_Pipeline] = []
        for name in axes.pipelines:
            each = {axis: dict(values) for axis, values in axes.each.items()}
            problems = {word: axes.needs.get(word, {}) for word in axes.problems}
            grown.append(_Pipeline(arch, axes, name, {**each, PROBLEM: problems, **once}))
            grown[-1].grow()
        lists += [each.cases for each in grown]
        refused += [
            Refusal(arch.name, axes.family.name, each.name, axis, word, each.reason(axis, word))
            for each in grown
            for axis, values in each.wanted.items()
            if axis not in once or each is grown[0]
            for word in values
        ]
    longest = max(map(len, lists))
    turns = [each[turn] for turn in range(longest) for each in lists if turn < len(each)]
    return turns, refused
