"""`KernelSpace`: a declared set of kernel configs, and its expansion on an architecture."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright import checks, ops
from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch
from tilewright.dtypes import named
from tilewright.errors import BadArgument, BadFile, EmptySpace, nearest, shown
from tilewright.jsonfile import load_json
from tilewright.ops.protocols import Family
from tilewright.verdict import YES, Verdict, no

WILDCARDS: tuple[Any, ...] = ("*", -1)
"""Axis values that stand for every value in the architecture's data."""

MAX_RANGE = 10_000
"""Most values of one axis of a file; more are surely a mistake."""

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
    if not (_is_value(own) or (own is None and or_none)):
        raise BadArgument(f"axis {axis} cannot have the value {shown(value)}: {_A_VALUE}")
    return own


def _column(axis: str, values: Sequence[Any], known: Mapping[str, Any]) -> Sequence[Any]:
    """The values of an axis in all rows of linked ones, of which there are thousands."""
    if _VALUES.issuperset(map(type, values)):
        return values
    return [_value(axis, value, known[axis] is None) for value in values]


def _is_value(value: Any) -> bool:
    flat = isinstance(value, list | tuple) and _VALUES.issuperset(map(type, value))
    return type(value) in _VALUES or flat


_A_VALUE = "a value is a number, text, true or false, or a list of these"


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


def load_space(
    path: str | os.PathLike[str],
    arch: Arch,
    family: str | None = None,
    signature: Mapping[str, str] | None = None,
) -> tuple[KernelSpace, list[str]]:
    """The space that the sweep file at `path` declares, and a note for each part of the file
    without a counterpart here.

    family: by default the file's ``"family"`` (or ``"op"``), else the family of the file's variant,
    else the family that reads such files, some of which it knows by their names. The variant is the
    file's ``"variant"``, else the folder in which CK Tile Engine has the file
    (``batched_gemm/configs/default_config.json``).
    signature: values that a file may leave to the command line (its dtypes and layout).

    Raises `BadFile`, with the file and the place in it, for any fault of the file, and
    `UnknownName` for an unknown `family`.
    """
    document = load_json(path)
    where = os.fspath(path)
    if not isinstance(document, dict):
        raise BadFile(f"{where}: $: a sweep is an object, not {_json_type(document)}")
    for one in ops.families() if family is None else (family,):
        by_name = ops.family(one).formats.by_name
        try:
            theirs = by_name(Path(where).name, document, arch, signature) if by_name else None
        except BadFile as error:
            raise BadFile(f"{where}: {error}") from error
        if theirs is not None:
            return theirs
    word = document.get("variant", _folder(where))
    has = next((f for f in ops.families() if word in ops.family(f).formats.folders), None)
    name = family or _family_of(document, where, has)
    if name == has:
        document = {**document, "variant": word}
    try:
        read = ops.family(name).formats.read
        if read is None:
            return read_axes(name, document, signature), []
        space, notes = read(document, arch, signature)
    except BadFile as error:
        raise BadFile(f"{where}: {error}") from error
    return space, notes


def _folder(where: str) -> str:
    """The name of the folder that holds the file's folder ``configs``, as in CK Tile Engine; else
    ""."""
    folder = Path(where).parent
    return folder.parent.name if folder.name == "configs" else ""


def _family_of(document: Mapping[str, Any], where: str, usual: str | None) -> str:
    known = ops.families()
    for key in ("family", "op"):
        if key in document:
            word = document[key]
            if not isinstance(word, str) or word not in known:
                hint = nearest(word, known)
                raise BadFile(
                    f"{where}: $.{key}: no operation family {shown(word)}{hint};"
                    f" known: {', '.join(known)}"
                )
            return word
    if usual is not None:
        return usual
    for name in known:
        if ops.family(name).formats.unnamed:
            return name
    raise BadFile(f"{where}: $: no 'family'; it must be one of {', '.join(known)}")


def read_axes(
    family: str, document: Mapping[str, Any], signature: Mapping[str, str] | None = None
) -> KernelSpace:
    """The space of a document whose fields are the family's own axes.

    signature: values of axes that the document leaves out.

    A field of several axes, separated by commas, has a list of values of all of them in each row:
    ``"head_dim,mask": [[64, "none"], [128, "causal"]]``. Fields that begin with an underscore are
    comments. Raises `BadFile`, and `BadArgument` for the signature.
    """
    said = {
        axis: values
        for axis, values in document.items()
        if axis not in ("family", "op") and not axis.startswith("_")
    }
    known = ops.family(family).axes()
    groups = {axes: tuple(axis.strip() for axis in axes.split(",")) for axes in said if "," in axes}
    single = [axis for axis in said if axis not in groups]
    declared = [*single, *itertools.chain.from_iterable(groups.values())]
    for axis in declared:
        if declared.count(axis) > 1:
            raise BadFile(f"$: axis '{axis}' is declared {declared.count(axis)} times")
        if axis not in known:
            listed = ", ".join(known)
            raise BadFile(
                f"$: {family} kernels have no axis {shown(axis)}{nearest(axis, known)}; they have "
                f"{listed}"
            )
    axes = {axis: axis_values(said[axis], f"$.{axis}") for axis in single}
    linked = {group: _rows(said[axes], len(group), f"$.{axes}") for axes, group in groups.items()}
    left_open = {
        axis: word
        for axis, word in (signature or {}).items()
        if not any(axis in group for group in linked)
    }
    for axis, word in left_open.items():
        if not isinstance(known.get(axis, word), str):
            raise BadArgument(f"{axis}={word}: give numbers in the document, not in the signature")
        axes.setdefault(axis, [word])
    return KernelSpace(family, axes, linked=linked)


def _rows(rows: Any, width: int, place: str) -> list[tuple[Any, ...]]:
    """The rows of axes whose values go together. Raises `BadFile`."""
    if not isinstance(rows, list) or not rows:
        raise BadFile(f"{place}: axes that go together have a list of rows")
    for row in rows:
        if not isinstance(row, list) or len(row) != width:
            raise BadFile(f"{place}: each row is a list of {width} values, not {shown(row)}")
        for value in row:
            if not (_is_value(value) or value is None):  # null is judged by the axis
                raise BadFile(f"{place}: no axis has the value {shown(value)}: {_A_VALUE}")
    return [tuple(row) for row in rows]


def space_to_json(space: KernelSpace) -> dict[str, Any]:
    """`space` as a sweep document, which `load_space` reads back.

    Raises `BadArgument` for a space with constraints or linked axes, which not every family's form
    can express.
    """
    if space.constraints or space.linked:
        inexpressible = ", ".join([*space.constraints, *map(str, space.linked)])
        raise BadArgument(f"a sweep document cannot express constraints and links: {inexpressible}")
    axes = {axis: {"values": list(values)} for axis, values in space.axes.items()}
    return {"family": space.family, **axes}


def axis_values(axis: Any, place: str) -> list[Any]:
    """The values of one axis of a sweep document.

    axis: ``{"values": [...]}``, ``{"min": 64, "max": 256, "step": 64, "exclude": [192]}`` (`max`
    included, `exclude` optional), a bare list, or a bare value.
    place: names the axis in errors.

    Raises `BadFile`.
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
    if len(values) > MAX_RANGE:
        raise BadFile(f"{place}: {len(values)} values are over {MAX_RANGE}")
    for value in values:
        if not (_is_value(value) or value is None):  # null is judged by the axis
            raise BadFile(f"{place}: the axis cannot have the value {shown(value)}: {_A_VALUE}")
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
    if any(type(value) is not int for value in exclude):
        raise BadFile(f"{place}.exclude: must be a list of whole numbers")
    excluded = set(exclude)
    return [value for value in range(low, high + 1, step) if value not in excluded]


def _only(axis: dict[str, Any], known: tuple[str, ...], place: str, instead: str = "") -> None:
    for key in axis:
        if key not in known:
            hint = nearest(key, (*known, instead) if instead else known)
            raise BadFile(f"{place}: unknown field {shown(key)}{hint}; known: {', '.join(known)}")


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
