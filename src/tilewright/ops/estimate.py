"""`Estimate`: how long a family expects one kernel to take, and what that time is made of;
`Estimates`: of several kernels, as arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from tilewright.ops.pool import Each, Pool

LEAST_SHOWN_US = 0.05
"""Terms below this are left out of an estimate's sentence: they would be shown as 0.0."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected time of one kernel for one problem on one device. Times in microseconds.

    total_us: the whole. Only the family knows how its terms combine; terms that overlap add up to
        more than the total.
    limiter: what decides the total: a word of one of the terms.
    terms: the family's words for what takes time, each with its time.
    facts: what else the family says about how the kernel fills the device, in words
        (``132 tiles in 1 wave``).
    """

    total_us: float
    limiter: str
    terms: tuple[tuple[str, float], ...]
    facts: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line: the total, the facts, the limiter, and each term that is not negligible."""
        shown = [f"{word} {us:.1f}" for word, us in self.terms if us >= LEAST_SHOWN_US]
        parts = [", ".join(self.facts), f"bound by {self.limiter}"]
        if shown:
            parts.append(f"{', '.join(shown)} µs")
        return f"{self.total_us:.1f} µs: {'; '.join(filter(None, parts))}"


class Ranking(Sequence[tuple[Any, Estimate]]):
    """Configs with their estimates. An estimate is made when it is asked for: of hundreds of
    kernels, a plan needs one.

    pool: the configs.
    found: their estimates.
    places: of the configs in the pool, the best one's first.
    """

    def __init__(self, pool: Pool, found: Estimates, places: Sequence[int]) -> None:
        self.pool, self.found, self.places = pool, found, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, Estimate]: ...
    @overload
    def __getitem__(self, place: slice) -> Ranking: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return Ranking(self.pool, self.found, self.places[place])
        at = self.places[place]
        return self.pool[at], self.found.one(at)


class Considered(Pool):
    """The configs of `pool`, which several selectors are asked about for one problem, one after
    another: their estimates are worked out once."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool.columns, pool.columns)
        self._pool = pool
        self._ranked: tuple[Any, Any, Sequence[tuple[Any, Estimate]]] | None = None

    def ranked(self, family: Any, problem: Any, device: Any) -> Sequence[tuple[Any, Estimate]]:
        """See `ranked`."""
        known = self._ranked
        if known is None or known[0] is not problem or known[1] is not device:
            known = self._ranked = problem, device, family.rank(problem, self._pool, device)
        return known[2]


def ranked(
    family: Any, problem: Any, configs: Sequence[Any], device: Any
) -> Sequence[tuple[Any, Estimate]]:
    """As `Family.rank`, which is asked once about configs that are `Considered`."""
    if isinstance(configs, Considered):
        return configs.ranked(family, problem, device)
    found: Sequence[tuple[Any, Estimate]] = family.rank(problem, configs, device)
    return found


@dataclass(frozen=True, slots=True)
class Estimates:
    """The estimates of several kernels.

    total_us, terms: of each, arrays.
    one: makes the estimate of the kernel at a place.
    """

    total_us: Each
    terms: Mapping[str, Each]
    one: Callable[[int], Estimate]

    @classmethod
    def of(
        cls,
        total_us: Each,
        terms: Mapping[str, Each],
        facts: Callable[[int], tuple[str, ...]],
        limiter: Callable[[int], str] | None = None,
    ) -> Estimates:
        """facts, limiter: of the kernel at a place; by default the longest term is the limiter."""

        def one(place: int) -> Estimate:
            here = tuple((word, float(us[place])) for word, us in terms.items())
            word = limiter(place) if limiter else max(here, key=lambda term: term[1])[0]
            return Estimate(float(total_us[place]), word, here, facts(place))

        return cls(total_us, terms, one)

    @classmethod
    def each(cls, found: Sequence[Estimate]) -> Estimates:
        """The estimates in `found`, which were made one by one."""
        import numpy as np

        return cls(np.array([one.total_us for one in found]), _Told(found), found.__getitem__)

    @classmethod
    def joined(cls, parts: Sequence[tuple[Each, Estimates]]) -> Estimates:
        """Those of groups of kernels, each with its kernels' places, in the order of the places. A
        term that a group does not have is 0 of its kernels."""
        import numpy as np

        if len(parts) == 1:
            return parts[0][1]
        order = np.argsort(np.concatenate([places for places, _ in parts]))
        groups = [found for _, found in parts]
        own = [(found, i) for places, found in parts for i in range(len(places))]

        def one(place: int) -> Estimate:
            found, inside = own[order[place]]
            made: Estimate = found.one(inside)
            return made

        total_us = np.concatenate([found.total_us for found in groups])[order]
        return cls(total_us, _Joined(groups, order), one)

    def later(self, word: str, us: Each) -> Estimates:
        """The estimates with further microseconds, before or after each kernel: one number, or an
        array."""
        more = self.total_us * 0 + us

        def one(place: int) -> Estimate:
            found, here = self.one(place), float(more[place])
            return replace(
                found, total_us=found.total_us + here, terms=(*found.terms, (word, here)),
                limiter=word if here > max(time for _, time in found.terms) else found.limiter,
            )  # fmt: skip

        return Estimates(self.total_us + more, {**self.terms, word: more}, one)

    def ranking(self, pool: Pool, *before: Each, tie: str = "") -> Ranking:
        """The configs of `pool`, which are those that were estimated: the least time first, ties by
        name. before: what is ordered by before that, arrays. tie: a term whose least goes first
        among times that are alike to 10 ns."""
        import numpy as np

        keys = [pool.columns.by_name, self.total_us, *before]
        if tie in self.terms:
            keys[1:2] = self.terms[tie], np.round(self.total_us, 2)
        return Ranking(pool, self, np.lexsort(keys).tolist())


class _Terms(Mapping[str, Each]):
    """Terms of several kernels, each an array that is made when it is asked for: a plan asks for
    few. A term that a kernel does not have is 0."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = dict.fromkeys(words)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, word: str) -> Each:
        if word not in self._words:
            raise KeyError(word)
        return self._made(word)

    @abstractmethod
    def _made(self, word: str) -> Each: ...


class _Told(_Terms):
    """The terms of estimates that were made one by one."""

    def __init__(self, found: Sequence[Estimate]) -> None:
        super().__init__(word for one in found for word, _ in one.terms)
        self._found = found

    def _made(self, word: str) -> Each:
        import numpy as np

        return np.array([dict(one.terms).get(word, 0.0) for one in self._found])


class _Joined(_Terms):
    """The terms of groups of kernels. order: for each kernel, its place among the groups' kernels,
    one group behind the other."""

    def __init__(self, groups: Sequence[Estimates], order: Each) -> None:
        super().__init__(word for found in groups for word in found.terms)
        self._groups, self._order = groups, order

    def _made(self, word: str) -> Each:
        import numpy as np

        parts = [found.terms.get(word, found.total_us * 0) for found in self._groups]
        return np.concatenate(parts)[self._order]
