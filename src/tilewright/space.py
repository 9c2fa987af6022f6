"""`KernelSpace`: a declared set of kernel configs, and what becomes of each on an architecture."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch
from tilewright.errors import BadArgument, BadFile, EmptySpace, nearest
from tilewright.jsonfile import load_json
from tilewright.ops.family import Family
from tilewright.verdict import YES, Verdict, no

WILDCARDS: tuple[Any, ...] = ("*", -1)
"""Axis values that stand for every value the architecture's data suggests."""

MAX_RANGE = 10_000
"""Most values of one axis written as a range; more can only be a slip."""

Constraint = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A combination that is no kernel on this architecture: its fields, and the rule against it."""

    fields: Mapping[str, Any]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a space means on one architecture.

    `configs`: the legal ones, in the order of the axes, each once. `dropped`: every other
    combination with its verdict. `duplicates`: combinations that said an earlier config again.
    """

    arch: str
    configs: tuple[Any, ...]
    dropped: tuple[Dropped, ...]
    duplicates: int

    def summary(self) -> dict[str, int]:
        """How many combinations each rule dropped, most first."""
        return dict(Counter(d.verdict.rule for d in self.dropped).most_common())

    def raise_if_empty(self) -> Expansion:
        """Itself. Raises `EmptySpace`, with the counts and an example of each, when no config is
        legal."""
        if self.configs:
            return self
        if not self.dropped:
            raise EmptySpace(
                "the space has an axis without values; give every axis at least one", self
            )
        examples = {d.verdict.rule: d.verdict.reason for d in reversed(self.dropped)}
        reasons = "; ".join(f"{n} by {r} ({examples[r]})" for r, n in self.summary().items())
        raise EmptySpace(f"no config of the space is legal on {self.arch}: {reasons}", self)


@dataclass(frozen=True, slots=True)
class KernelSpace:
    """Axes of values whose combinations are kernels of one family.

    `axes` maps config fields to the values to try; an axis left out has the family's default.
    ``"*"`` or -1 among the values stands for all the architecture's data suggests.
    `constraints` are predicates on a config, named; a combination that fails one is dropped by
    that name. `linked` holds axes whose values go together instead of crossing:
    ``{("pipeline", "num_stages"): [("basic", 2), ("tma", 4)]}``, without wildcards.

    Raises `BadArgument` for an axis the family does not have, or one that is declared twice.
    """

    family: str
    axes: Mapping[str, Sequence[Any]]
    constraints: Mapping[str, Constraint] = field(default_factory=dict)
    linked: Mapping[tuple[str, ...], Sequence[tuple[Any, ...]]] = field(default_factory=dict)

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
        for axis, values in self.axes.items():
            if isinstance(values, str):
                raise BadArgument(f"axis '{axis}' needs a list of values, not '{values}'")
        for group, rows in self.linked.items():
            for row in rows:
                if len(row) != len(group):
                    raise BadArgument(f"linked axes {group} cannot have the values {row}")

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for spaces that expand to the same kernels in the same order."""
        parts = (*self.axes.items(), *self.linked.items())
        values = ((axes, tuple(listed)) for axes, listed in parts)
        return (self.family, *values, *self.constraints.items())

    def expand(self, arch: Arch | str) -> Expansion:
        """Judge every combination on `arch`. Raises `EmptySpace` if none is legal."""
        arch = arch_called(arch)
        family = ops.family(self.family)
        configs: dict[Any, None] = {}
        dropped: list[Dropped] = []
        duplicates = 0
        for fields in self._combinations(family, arch):
            try:
                config = family.make_config(fields, arch)
            except BadArgument as error:
                dropped.append(Dropped(fields, no("expressible", str(error))))
                continue
            if config in configs:
                duplicates += 1
                continue
            verdict = family.judge(config, arch)
            if verdict.ok and self.constraints:
                verdict = self._constrained(config)
            if verdict.ok:
                configs[config] = None
            else:
                dropped.append(Dropped(fields, verdict))
        return Expansion(arch.name, tuple(configs), tuple(dropped), duplicates).raise_if_empty()

    def _combinations(self, family: Family, arch: Arch) -> Iterator[dict[str, Any]]:
        """The fields of every combination; the family's first axis varies slowest."""
        fixed = dict(family.axes())
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
        for rows in itertools.product(*choices):
            values = itertools.chain.from_iterable(rows)
            yield {**fixed, **dict(zip(flat, values, strict=True))}

    def _values(self, axis: str, family: Family, arch: Arch) -> list[Any]:
        values: dict[Any, None] = {}
        for value in self.axes[axis]:
            if value in WILDCARDS:
                values.update(dict.fromkeys(family.wildcard(axis, arch)))
            else:
                values[tuple(value) if isinstance(value, list) else value] = None
        return list(values)

    def _constrained(self, config: Any) -> Verdict:
        for name, keep in self.constraints.items():
            if not keep(config):
                return no(name, f"the space's own constraint '{name}' says no")
        return YES


def load_space(
    path: str | os.PathLike[str],
    arch: Arch,
    family: str | None = None,
    signature: Mapping[str, str] | None = None,
) -> tuple[KernelSpace, list[str]]:
    """The space that the sweep file at `path` declares, and a note for each part of it that has
    no counterpart here.

    The family is `family`, else the file's ``"family"`` (or ``"op"``), else that of its variant,
    else the one that reads such files. The variant is the file's ``"variant"``, else the folder
    that CK Tile Engine has it in (``batched_gemm/configs/default_config.json``). `signature` gives
    what a file may leave to the command line (its dtypes and layout).
    Raises `BadFile`, naming the file and the place in it, for whatever is wrong with the file,
    and `UnknownName` for an unknown `family`.
    """
    document = load_json(path)
    where = os.fspath(path)
    if not isinstance(document, dict):
        raise BadFile(f"{where}: $: a sweep is an object, not {_json_type(document)}")
    word = document.get("variant", _folder(where))
    has = next((f for f in ops.families() if word in ops.family(f).variants), None)
    name = family or _family_of(document, where, has)
    if name == has:
        document = {**document, "variant": word}
    try:
        space, notes = ops.family(name).read_sweep(document, arch, signature)
    except BadFile as error:
        raise BadFile(f"{where}: {error}") from error
    return space, notes


def _folder(where: str) -> str:
    """The folder of the file's folder ``configs``, as CK Tile Engine has its documents; else ""."""
    folder = Path(where).parent
    return folder.parent.name if folder.name == "configs" else ""


def _family_of(document: Mapping[str, Any], where: str, usual: str | None) -> str:
    known = ops.families()
    for key in ("family", "op"):
        if key in document:
            word = document[key]
            if word not in known:
                hint = nearest(word, known) if isinstance(word, str) else ""
                raise BadFile(
                    f"{where}: $.{key}: no operation family {word!r}{hint};"
                    f" known: {', '.join(known)}"
                )
            return str(word)
    if usual is not None:
        return usual
    for name in known:
        if ops.family(name).reads_unnamed:
            return name
    raise BadFile(f"{where}: $: no 'family'; it must be one of {', '.join(known)}")


def space_to_json(space: KernelSpace) -> dict[str, Any]:
    """`space` as a sweep document; its family's `read_sweep` reads it back.

    Raises `BadArgument` for a space with constraints or linked axes, which the form cannot say.
    """
    if space.constraints or space.linked:
        inexpressible = ", ".join([*space.constraints, *map(str, space.linked)])
        raise BadArgument(f"a sweep document cannot say constraints and links: {inexpressible}")
    axes = {axis: {"values": list(values)} for axis, values in space.axes.items()}
    return {"family": space.family, **axes}


def axis_values(axis: Any, place: str) -> list[Any]:
    """The values of one axis of a sweep document.

    ``{"values": [...]}``, ``{"min": 64, "max": 256, "step": 64, "exclude": [192]}`` (`max`
    included, `exclude` optional), a bare list, or a bare value. `place` names the axis in
    errors. Raises `BadFile`.
    """
    if isinstance(axis, dict):
        values = _listed(axis, place) if "values" in axis else _ranged(axis, place)
    elif isinstance(axis, list):
        values = axis
    elif axis is None:
        raise BadFile(f"{place}: an axis needs values, not null")
    else:
        values = [axis]
    if not values:
        raise BadFile(f"{place}: the axis has no values; leave it out or give at least one")
    return values


def _listed(axis: dict[str, Any], place: str) -> list[Any]:
    _only(axis, ("values",), place)
    values = axis["values"]
    if not isinstance(values, list):
        raise BadFile(f"{place}.values: must be a list, not {_json_type(values)}")
    return values


def _ranged(axis: dict[str, Any], place: str) -> list[Any]:
    _only(axis, ("min", "max", "step", "exclude"), place, instead="values")
    for key in ("min", "max", "step"):
        if key not in axis:
            raise BadFile(f"{place}: an axis has 'values', or 'min', 'max' and 'step'; no '{key}'")
        if type(axis[key]) is not int:
            raise BadFile(f"{place}.{key}: must be a whole number, not {_json_type(axis[key])}")
    low, high, step = axis["min"], axis["max"], axis["step"]
    if step < 1:
        raise BadFile(f"{place}.step: must be 1 or more, not {step}")
    if low > high:
        raise BadFile(f"{place}: min {low} is over max {high}")
    if (high - low) // step >= MAX_RANGE:
        raise BadFile(f"{place}: {low} to {high} by {step} is over {MAX_RANGE} values")
    exclude = axis.get("exclude", [])
    if not isinstance(exclude, list):
        raise BadFile(f"{place}.exclude: must be a list, not {_json_type(exclude)}")
    return [value for value in range(low, high + 1, step) if value not in exclude]


def _only(axis: dict[str, Any], known: tuple[str, ...], place: str, instead: str = "") -> None:
    for key in axis:
        if key not in known:
            hint = nearest(key, (*known, instead) if instead else known)
            raise BadFile(f"{place}: unknown field '{key}'{hint}; known: {', '.join(known)}")


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
