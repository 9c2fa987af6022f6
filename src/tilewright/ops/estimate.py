"""`Estimate`: how long a family expects one kernel to take, and what that time is made of;
`Estimates`: of several kernels, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

    places: of the configs in some order, the best one's first.
    made: makes the config and the estimate of a place.
    """

    def __init__(self, places: Sequence[int], made: Callable[[int], tuple[Any, Estimate]]) -> None:
        self._places, self._made = places, made

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> tuple[Any, Estimate]: ...
    @overload
    def __getitem__(self, place: slice) -> Ranking: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return Ranking(self._places[place], self._made)
        return self._made(self._places[place])


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
        """The estimates in `found`, which were made one by one: there are no arrays of terms."""
        import numpy as np

        return cls(np.array([one.total_us for one in found]), {}, found.__getitem__)

    @classmethod
    def joined(cls, parts: Sequence[tuple[Each, Estimates]]) -> Estimates:
        """Those of groups of kernels, each with its kernels' places, in the order of the places:
        arrays of the terms that all groups have."""
        import numpy as np

        if len(parts) == 1:
            return parts[0][1]
        order = np.argsort(np.concatenate([places for places, _ in parts]))
        groups = [found for _, found in parts]
        own = [(found, i) for places, found in parts for i in range(len(places))]

        def whole(columns: Iterable[Each]) -> Each:
            return np.concatenate([*columns])[order]

        def one(place: int) -> Estimate:
            found, inside = own[order[place]]
            made: Estimate = found.one(inside)
            return made

        words = [word for word in groups[0].terms if all(word in each.terms for each in groups)]
        terms = {word: whole(each.terms[word] for each in groups) for word in words}
        return cls(whole(each.total_us for each in groups), terms, one)

    def later(self, word: str, us: float) -> Estimates:
        """The same kernels, each after or before something that takes so many microseconds."""

        def one(place: int) -> Estimate:
            found = self.one(place)
            return replace(
                found, total_us=found.total_us + us, terms=(*found.terms, (word, us)),
                limiter=word if us > max(time for _, time in found.terms) else found.limiter,
            )  # fmt: skip

        return Estimates(self.total_us + us, self.terms, one)

    def ranking(self, pool: Pool, *before: Each) -> Ranking:
        """The configs of `pool`, which are those that were estimated: the least time first, ties by
        name. before: what is ordered by before that, arrays."""
        import numpy as np

        places = np.lexsort((pool.columns.by_name, self.total_us, *before)).tolist()
        return Ranking(places, lambda place: (pool[place], self.one(place)))
