"""Which kernel: selectors order the candidates for a problem and say why.

A selector sees only kernels that can serve the problem, within the caller's `constraints`. It
returns those it has an opinion on, best first; a `Chain` then asks the next one about the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from tilewright.arch.model import Device
from tilewright.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate a selector has an opinion on, and why it stands where it does. `settled`: it
    would whatever the other candidates were."""

    config: Any
    selector: str
    reason: str
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a selector knew for a problem and cannot use: the name of a kernel, which may be none
    any more, and why; or no name, where it knew nothing, which `reason` says."""

    name: str
    selector: str
    reason: str


class Selector(Protocol):
    """Orders candidates. `name` stands in explanations."""

    @property
    def name(self) -> str:
        """The selector's name in explanations."""
        ...

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterable[Choice]:
        """The candidates it has an opinion on, best first; may be empty."""


@runtime_checkable
class Recalls(Protocol):
    """A selector that knows kernels of its own for a problem: these become candidates where the
    caller has not said which kernels there are."""

    def recall(self, problem: Any, device: Device) -> Iterable[Choice | Skipped]:
        """Kernels that may not be among the candidates, which `order` would put first, in its
        order; where it would skip something, that, for explanations."""


@dataclass(frozen=True, slots=True)
class FirstFit:
    """Takes candidates in the order they were registered."""

    name: str = "first fit"

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> list[Choice]:
        """Every candidate, in the order given."""
        return [
            Choice(config, self.name, f"number {number} in order of registration")
            for number, config in enumerate(candidates, 1)
        ]


@dataclass(frozen=True, slots=True)
class ByFunction:
    """Ranks by a user's function: `function(problem, configs, device)` returns configs, best
    first; those it leaves out are not used."""

    function: Callable[[Any, Sequence[Any], Device], Sequence[Any]]
    name: str = "user function"

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> list[Choice]:
        """The candidates that the function returned. Raises `BadArgument` for any other."""
        ordered = list(self.function(problem, candidates, device))
        known = set(candidates)
        for config in ordered:
            if config not in known:
                raise BadArgument(
                    f"the ranking function returned {config!r}, which is not one of the "
                    f"{len(candidates)} candidates it was given"
                )
        return [
            Choice(config, self.name, f"number {number} by {_called(self.function)}")
            for number, config in enumerate(ordered, 1)
        ]


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


@dataclass(frozen=True, slots=True)
class Chain:
    """Asks selectors in turn: first stand those the first has an opinion on, then, of the others,
    those the second has one on, and so on. None is asked before it is needed."""

    selectors: tuple[Selector, ...]
    name: str = "chain"

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterator[Choice]:
        """The first selector's choices, then those of the next among the candidates left."""
        placed = set()
        for selector in self.selectors:
            left = [config for config in candidates if config not in placed]
            for choice in selector.order(problem, left, device) if left else ():
                placed.add(choice.config)
                yield choice

    def recall(self, problem: Any, device: Device) -> Iterator[Choice | Skipped]:
        """The kernels that its first selectors know, up to the first that knows none of its own."""
        for selector in self.selectors:
            if not isinstance(selector, Recalls):
                break  # its order comes before what later ones know
            yield from selector.recall(problem, device)
