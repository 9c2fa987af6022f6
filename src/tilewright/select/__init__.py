"""Selectors: they order the candidates for a problem and give reasons.

A selector sees only kernels that can serve the problem and keep to the caller's `constraints`. It
returns the kernels that it can judge, best first. A `Chain` asks the next selector about the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.arch.model import Device
from tilewright.errors import BadArgument
from tilewright.ops.estimate import Considered
from tilewright.ops.pool import Pool

Offers = Callable[[Any, Any, Device, str], Any]
"""Called with a family, a problem of it, a device and the kind of a library (``cudnn``): the config
of the first algorithm that this library offers there, or, as a string, why it offers none."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate in a selector's order, and the reason for its place.

    settled: the place does not depend on the other candidates.
    ahead: a measurement on this device, or a model of measurements, has it ahead of the algorithms
        of the vendor's library.
    measured_us: the median that was measured of this kernel for this problem on this device, in
        microseconds; 0 if none was.
    """

    config: Any
    selector: str
    reason: str
    settled: bool = False
    ahead: bool = False
    measured_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A kernel that a selector knew for a problem and cannot use, with the reason. The name may be
    of a kernel that no longer exists. An empty name: the selector knew no kernel, and `reason` says
    so."""

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
        """The candidates that the selector can judge, best first; may be empty."""


class Recalls(Protocol):
    """A selector that knows kernels of its own for a problem. They become candidates where the
    caller did not list the kernels to choose from. An attribute `ranks_all` that is true says that
    its order has every candidate."""

    def recall(self, problem: Any, device: Device) -> Iterable[Choice | Skipped]:
        """The kernels that `order` would put first, in its order, whether or not they are among
        the candidates; and, for explanations, what it would skip."""


class Knows(Protocol):
    """A selector some of whose choices are `Choice.ahead`."""

    def knows(self, family: str, device: Device) -> bool:
        """Whether there may be such a choice for a problem of the family on the device."""


def in_turn(selector: Any) -> tuple[Any, ...]:
    """The selectors of a chain; any other one alone."""
    return selector.selectors if isinstance(selector, Chain) else (selector,)


def recalled(selector: Any, problem: Any, device: Device) -> Iterable[Choice | Skipped] | None:
    """What a selector recalls; None of one that knows no kernels of its own."""
    recall = getattr(selector, "recall", None)  # a check against `Recalls` takes 10 µs
    return None if recall is None else recall(problem, device)


def silent(selector: Any, problem: Any, configs: Sequence[Any], device: Device) -> Iterable[str]:
    """Why a selector, or any in a chain, says nothing about these candidates: a sentence of each
    that says why (a method `silence`), which begins with its name."""
    for one in in_turn(selector):
        silence = getattr(one, "silence", None)
        if silence is not None and (why := silence(problem, configs, device)):
            yield f"{one.name}: {why}"


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
    first. Configs that it leaves out are not used."""

    function: Callable[[Any, Sequence[Any], Device], Sequence[Any]]
    name: str = "user function"

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> list[Choice]:
        """The candidates that the function returned. Raises `BadArgument` for any other."""
        ordered = list(self.function(problem, [*candidates], device))
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
    """Asks selectors in turn: the candidates that the first selector can judge come first, then,
    of the rest, those that the second can judge, and so on. A selector is asked only when its turn
    is needed."""

    selectors: tuple[Selector, ...]
    name: str = "chain"

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterator[Choice]:
        """The first selector's choices, then those of the next among the candidates left."""
        placed: set[Any] = set()
        # Of a pool more is known than of a list: what one selector estimated, the next need not.
        candidates = Considered(Pool.of(candidates))
        for selector in self.selectors:
            left: Sequence[Any] = candidates
            if placed:
                left = [config for config in candidates if config not in placed]
            for choice in selector.order(problem, left, device) if left else ():
                placed.add(choice.config)
                yield choice

    def recall(self, problem: Any, device: Device) -> Iterator[Choice | Skipped]:
        """The kernels that its first selectors know, up to the first that knows none of its own or
        ranks every candidate."""
        for selector in self.selectors:
            known = recalled(selector, problem, device)
            if known is None:
                break  # its order comes before the kernels that later selectors know
            yield from known
            if getattr(selector, "ranks_all", False):
                break
