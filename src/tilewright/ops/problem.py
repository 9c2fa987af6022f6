"""`Problem`: the common base of all families' problems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, lru_cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from tilewright import checks
from tilewright.dtypes import DTYPES, named
from tilewright.errors import BadArgument, TilewrightError, shown

T = TypeVar("T")
P = TypeVar("P", bound="Problem")


class Problem:
    """A frozen dataclass that is equal to another by the values of its fields. Of a field that may
    hold floats, the text counts: 0.0 is not -0.0, and in a field that also takes whole numbers 1
    is not 1.0. So whatever is kept under a problem is of problems that say the same.

    The values are kept as one tuple, with its hash: problems have dozens of fields, and every call
    looks problems up in dictionaries (tables, plans). A family's problem is a
    ``@dataclass(frozen=True, slots=True, eq=False)`` that completes and checks itself in
    `_complete`, and may not be hashed before that returns. Fields are numbers, text, flags, None
    and tuples of these. Numbers of other libraries become Python's (`checks.plain`), and element
    types get their names here (`dtypes.named`). A whole number in a float field becomes a float,
    so that equal problems have one text and one row.
    """

    __slots__ = ("_hash", "_kept", "_key", "_values")

    family: ClassVar[str]
    _values: tuple[Any, ...]
    _key: tuple[Any, ...]
    _hash: int
    _kept: dict[Callable[[Any], Any], Any]

    @property
    def batch_invariant(self) -> bool:
        """Whether the caller asks for a kernel that is the same whatever the batch is, as
        `Constraints.batch_invariant` does for all calls of a dispatcher. A family may make it a
        field."""
        return False

    @property
    def one_kernel(self) -> bool:
        """Whether the caller asks for results with the same bits whenever the problem is computed,
        so that no other kernel may stand in for the chosen one."""
        return self.batch_invariant

    def _complete(self) -> None:
        """Fill in the fields that were left out. Raises `BadArgument` for invalid fields."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        try:
            self._make()
        except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
            if isinstance(error, TilewrightError) or not (found := _misfit(self)):
                raise
            raise BadArgument(found) from error

    def _make(self) -> None:
        kind: Any = type(self)  # mypy takes the __hash__ of problems for that of their class
        for name in _unplain(kind, _types_in(_values_of(kind)(self))):
            value = getattr(self, name)
            if (own := checks.plain(name, value)) is not value:
                object.__setattr__(self, name, own)
        for name in _dtypes_of(kind):
            if (value := getattr(self, name)) not in DTYPES and value:
                object.__setattr__(self, name, named(value))
        for name in _floats_of(kind):
            if type(value := getattr(self, name)) is int:
                checks.number(name, value, -sys.float_info.max, sys.float_info.max)
                object.__setattr__(self, name, float(value))
        self._complete()
        values = _values_of(kind)(self)
        for place, elements, hint in _unsure(kind, _types_in(values)):
            plain = elements is not None and elements.issuperset(map(type, values[place]))
            if not plain and not _fits(values[place], hint):
                raise BadArgument(_misfit(self))
        self._keep(values)

    def _keep(self, values: tuple[Any, ...]) -> None:
        """Keep the values of a complete problem's fields."""
        kind: Any = type(self)
        key = (*values, *(_exact(values[place]) for place in _with_floats(kind)))
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash(key))
        object.__setattr__(self, "_kept", {})

    def once(self, function: Callable[[Any], T]) -> T:
        """What `function` gives of this problem, worked out once; before the problem is complete,
        each time."""
        try:
            found: T = self._kept[function]
        except AttributeError:
            return function(self)
        except KeyError:
            found = self._kept[function] = function(self)
        return found

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._key == other._key

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as the call that makes it."""
        return type(self), self._values


@cache
def _values_of(kind: Any) -> Callable[[Problem], tuple[Any, ...]]:
    """A function that gives the values of all fields of a `kind` of problem, in order."""
    names = [f.name for f in fields(kind)]
    if len(names) == 1:  # for a single name, attrgetter gives the value and no tuple
        return lambda problem: (getattr(problem, names[0]),)
    return attrgetter(*names)


@cache
def _names_of(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


@cache
def _dtypes_of(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in _names_of(kind) if name.startswith("dtype"))


@cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _floats_of(kind: Any) -> tuple[str, ...]:
    """The fields of a `kind` of problem that take floats and no whole numbers."""
    hints = _hints_of(kind)
    taken = {f.name: _types(hints[f.name]) for f in fields(kind)}
    return tuple(name for name, types in taken.items() if float in types and int not in types)


@cache
def _with_floats(kind: Any) -> tuple[int, ...]:
    """The places of the fields of a `kind` of problem that may hold floats."""
    hints = _hints_of(kind)
    return tuple(i for i, name in enumerate(_names_of(kind)) if float in _types(hints[name]))


def stated(problem: Problem) -> dict[str, Any]:
    """The values of all fields of a complete problem, by name."""
    kind: Any = type(problem)
    return dict(zip(_names_of(kind), problem._values, strict=True))


def changed(problem: P, changes: Mapping[str, Any]) -> P:
    """A problem with other values in some fields, which leave it complete: it is neither completed
    nor checked, and so made in a tenth of the time."""
    made = object.__new__(type(problem))
    values = {**stated(problem), **changes}
    for name, value in values.items():
        object.__setattr__(made, name, value)
    made._keep((*values.values(),))
    return made


def _types_in(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*map(type, values),)


@lru_cache(maxsize=4096)
def _unplain(kind: Any, types: tuple[Any, ...]) -> tuple[str, ...]:
    """The fields of a `kind` of problem whose values, of these types, `checks.plain` may change."""
    pairs = zip(_names_of(kind), types, strict=True)
    return tuple(name for name, one in pairs if one not in checks.PLAIN)


@lru_cache(maxsize=4096)
def _unsure(kind: Any, types: tuple[Any, ...]) -> list[tuple[int, frozenset[Any] | None, Any]]:
    """The fields of a `kind` of problem whose values may not fit, though they are of these types:
    the place, types that elements of a tuple may have whatever else is in it (None where the value
    is of none of the field's types), and the field's type hint."""
    hints = _hints_of(kind)
    found: list[tuple[int, frozenset[Any] | None, Any]] = []
    for place, (name, given) in enumerate(zip(_names_of(kind), types, strict=True)):
        hint = hints[name]
        allowed = {get_origin(one) or one for one in _either(hint)}
        allowed |= {int} if float in allowed else {bool} if int in allowed else set()
        if given not in allowed:
            found.append((place, None, hint))
        elif given is tuple:
            elements = {int, bool} if hint == tuple[int, ...] else set()
            found.append((place, frozenset(elements), hint))
    return found


def _either(hint: Any) -> tuple[Any, ...]:
    """The hints of which a value has one."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _misfit(problem: Problem) -> str:
    """A sentence on the first field that has a value of another type than it declares; "" if there
    is none."""
    kind: Any = type(problem)
    hints = _hints_of(kind)
    for name in _names_of(kind):
        value = getattr(problem, name, None)
        if not _fits(value, hints[name]):
            return f"{name} = {shown(value)} is not {_said(hints[name])}"
    return ""


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type that a hint of plain types and tuples declares."""
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        several = inner[:1] * len(value) if inner[1:] == (...,) and _is_tuple(value) else inner
        return _is_tuple(value) and len(several) == len(value) and all(map(_fits, value, several))
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, one) for one in _either(hint))
    if hint is float:
        return type(value) in (int, float)
    if hint is int:
        return type(value) in (int, bool)  # flags are checked by who reads them
    return value is None if hint is NoneType else not isinstance(hint, type) or type(value) is hint


def _is_tuple(value: Any) -> bool:
    return type(value) is tuple


def _said(hint: Any) -> str:
    """A hint in words."""
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    parts = _either(hint)
    said = (names.get(one, "a tuple") for one in parts if one is not NoneType)
    return " or ".join(dict.fromkeys(said)) + (", or None" if NoneType in parts else "")


def _types(hint: Any) -> tuple[Any, ...]:
    """A type hint and all hints in it."""
    return (hint, *(inner for part in get_args(hint) for inner in _types(part)))


def _exact(value: Any) -> Any:
    """A value that is equal to another's only if both have one text."""
    if isinstance(value, tuple):
        return (*map(_exact, value),)
    return (float, value.hex()) if isinstance(value, float) else value
