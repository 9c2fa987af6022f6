"""`Problem`: what the problems of all families are, apart from what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar


class Problem:
    """A frozen dataclass that is equal to another by the values of its fields.

    The values are kept as one tuple, with its hash: problems have dozens of fields, and
    dictionaries of problems (tables, plans) are on the way of every call. A family's problem is a
    ``@dataclass(frozen=True, slots=True, eq=False)`` that completes and checks itself in
    `_complete`, and may not be hashed before that returns.
    """

    __slots__ = ("_hash", "_values")

    family: ClassVar[str]
    _values: tuple[Any, ...]
    _hash: int

    def _complete(self) -> None:
        """Fill in the fields that were left out. Raises `BadArgument` for what cannot be meant."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        self._complete()
        # mypy takes the __hash__ of problems for that of their class
        values = _values_of(type(self))(self)  # type: ignore[arg-type]
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values == other._values

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as the call that makes it."""
        return type(self), self._values


@cache
def _values_of(kind: Any) -> Callable[[Problem], tuple[Any, ...]]:
    """What gives the values of all fields of a `kind` of problem, in order."""
    return attrgetter(*(f.name for f in fields(kind)))
