"""`Pool`: configs that are judged and estimated together, as arrays (NumPy).

A rule or a term of an estimate is written once, element by element, and serves one config and
hundreds alike: `c.tile_m` is a number of a config, and an array of numbers of the `Columns` of a
pool; `each(c, function)` is what a function gives of either. A pool keeps its columns, so that a
new problem costs a few operations on arrays, whatever follows from the configs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

Each = Any
"""A number, a flag or a word of one config; or an array with an element for each config."""


Objections = Iterator[tuple[Each, Callable[..., Any]]]
"""What rules say of a config, or of the `Columns` of several: whether each is refused, and a
function that says why of one, given it (``c=``) and the problem (``p=``)."""


class Columns:
    """The attributes of several objects, each as an array. What was worked out for all is kept; a
    part, which has the objects at some places, takes it from the `whole`."""

    def __init__(
        self, objects: Sequence[Any], whole: Columns | None = None, places: Each = None
    ) -> None:
        self._objects, self._places, self.whole = objects, places, whole or self
        self._kept: dict[tuple[Any, Any], tuple[Any, Each]] = {}
        self._groups: dict[Any, Mapping[str, tuple[Each, Columns]]] = {}
        self._parts: dict[bytes, Columns] = {}

    def __len__(self) -> int:
        return len(self._objects if self.whole is self else self._places)

    def __getitem__(self, place: int) -> Any:
        return self._objects[place] if self.whole is self else self.whole[self._places[place]]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getattr__(self, name: str) -> Each:
        if self.whole is not self:
            found = _at(getattr(self.whole, name), self._places)
        else:
            found = _column([getattr(one, name) for one in self._objects])
        self.__dict__[name] = found
        return found

    def part(self, places: Each) -> Columns:
        """The objects at these places, in order, an array; these columns if that is all of them.
        The same places give the same part, so what was worked out for one problem is there for the
        next that these objects serve."""
        if len(places) == len(self):
            return self
        key = places.tobytes()
        found = self._parts.get(key)
        if found is None:
            if len(self._parts) >= MOST_PARTS:
                self._parts.clear()
            found = self._parts[key] = Columns((), self, places)
        return found

    @cached_property
    def by_name(self) -> Each:
        """Numbers in the order of the objects' names, which are sorted sooner than the names."""
        if self.whole is not self:
            return self.whole.by_name[self._places]
        import numpy as np

        return np.argsort(np.argsort(self.name))

    def each(self, function: Callable[..., Any], of: Any = None) -> Each:
        """As the function `each`."""
        key = function, of if type(of) in _PLAIN else id(of)
        if key not in self._kept:
            if self.whole is not self:
                found = _at(self.whole.each(function, of), self._places)
            else:
                given = () if of is None else (of,)
                found = _column([function(one, *given) for one in self._objects])
            self._kept[key] = of, found  # `of` is kept, so that no other object gets its identity
        return self._kept[key][1]

    def table(self, function: Callable[[Columns, Any], Each], of: Any) -> Each:
        """What `function` makes of all columns, and of `of`: an array with a column for each
        object. It is made once; a part takes its columns."""
        key = function, id(of)
        if key not in self._kept:
            if self.whole is not self:
                found = self.whole.table(function, of)[:, self._places]
            else:
                found = function(self, of)
            self._kept[key] = of, found
        return self._kept[key][1]

    def groups(self, word_of: Callable[[Any], str]) -> Mapping[str, tuple[Each, Columns]]:
        """The objects by the word that `word_of` gives of each: their places here, and columns for
        which nothing is worked out of the others."""
        if word_of not in self._groups:
            self._groups[word_of] = self._grouped(word_of)
        return self._groups[word_of]

    def _grouped(self, word_of: Callable[[Any], str]) -> dict[str, tuple[Each, Columns]]:
        import numpy as np

        if self.whole is not self:
            found = {}
            for word, (places, columns) in self.whole.groups(word_of).items():
                numbers = np.full(len(self.whole), -1)
                numbers[places] = np.arange(len(places))
                mine = numbers[self._places]
                at = np.flatnonzero(mine >= 0)
                if len(at):
                    found[word] = at, self if columns is self.whole else columns.part(mine[at])
            return found
        words = self.each(word_of)
        places = {word: np.flatnonzero(words == word) for word in np.unique(words).tolist()}
        if len(places) == 1:
            return {word: (at, self) for word, at in places.items()}
        return {word: (at, _columns([self[i] for i in at])) for word, at in places.items()}


_PLAIN = frozenset({int, str, tuple})
MOST_PARTS = 16
"""Parts that are kept of the same objects."""

MOST_KEPT = 512
_kept: dict[tuple[int, ...], Columns] = {}
"""Columns by the identities of their objects, which they keep."""


def _columns(objects: Sequence[Any]) -> Columns:
    """Columns of some of several objects; the same for the same objects, so that what follows from
    them is worked out once: pools of different problems often differ in few of their configs."""
    key = tuple(map(id, objects))
    found = _kept.get(key)
    if found is None:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        found = _kept[key] = Columns(objects)
    return found


def each(c: Any, function: Callable[..., Any], of: Any = None) -> Each:
    """`function` of a config, and of `of` unless it is None; of `Columns` an array of what it gives
    of each, or columns where that is neither numbers nor words."""
    if isinstance(c, Columns):
        return c.each(function, of)
    return function(c) if of is None else function(c, of)


def any_of(flag: Each) -> bool:
    """Whether a flag holds, or any of an array."""
    return bool(flag.any() if getattr(flag, "ndim", 0) else flag)


def either(flag: Each, yes: Each, no: Each) -> Each:
    """`yes` where a flag holds, else `no`: a value, or an array of them."""
    if not getattr(flag, "ndim", 0):
        return yes if flag else no
    import numpy as np

    return np.where(flag, yes, no)


def least(one: Each, other: Each) -> Each:
    """The smaller of two values, or of those of arrays."""
    if not (getattr(one, "ndim", 0) or getattr(other, "ndim", 0)):
        return min(one, other)
    import numpy as np

    return np.minimum(one, other)


def most(one: Each, other: Each) -> Each:
    """The larger one."""
    if not (getattr(one, "ndim", 0) or getattr(other, "ndim", 0)):
        return max(one, other)
    import numpy as np

    return np.maximum(one, other)


def because(reason: str) -> Callable[..., str]:
    """A reason that does not depend on the config, as `Objections` has it."""
    return lambda **_: reason


class Pool(Sequence[Any]):
    """Configs of one family, in order, with their `columns`."""

    def __init__(self, configs: Iterable[Any], columns: Columns | None = None) -> None:
        given: Any = configs if isinstance(configs, Columns) else tuple(configs)
        self._configs, self.columns = given, columns or Columns(given)

    @classmethod
    def of(cls, configs: Iterable[Any]) -> Pool:
        """`configs` as a pool; a pool itself. Columns of configs keep what was worked out."""
        if isinstance(configs, Columns):
            return cls(configs, configs)
        return configs if isinstance(configs, Pool) else cls(configs)

    def part(self, places: Each) -> Pool:
        """The configs at these places, in order; the pool itself if that is all of them."""
        import numpy as np

        columns = self.columns.part(np.asarray(places, int))
        return self if columns is self.columns else Pool(columns, columns)

    def __len__(self) -> int:
        return len(self._configs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._configs)

    def __getitem__(self, place: Any) -> Any:
        return self._configs[place]


def _column(values: Sequence[Any]) -> Each:
    import numpy as np

    plain = isinstance(values[0], bool | int | float | str)
    return np.array(values) if plain else Columns(values)


def _at(column: Each, places: Each) -> Each:
    return column.part(places) if isinstance(column, Columns) else column[places]
