"""`Defaults`: what a family need not state, where the usual answer is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from tilewright.arch.model import Device
from tilewright.ops.estimate import Estimate
from tilewright.ops.nouns import Call, Operand
from tilewright.ops.protocols import Rng
from tilewright.verdict import YES, Verdict


class Defaults:
    """A base class for families. What it has may be overridden; all else of `Family` is the
    family's to state."""

    reads_unnamed = False
    variants: tuple[str, ...] = ()
    helpers: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    scalars: tuple[str, ...] = ()

    def foreign(self, titles: frozenset[str]) -> Any:
        """No other library's tables are read."""
        return None

    def repeats(self, config: Any) -> Verdict:
        """Every kernel repeats: none adds in an order that changes."""
        return YES

    def rank(
        self, problem: Any, configs: Iterable[Any], device: Device
    ) -> list[tuple[Any, Estimate]]:
        """By estimate; ties by name."""
        family: Any = self
        found = [(config, family.estimate(config, problem, device)) for config in configs]
        return sorted(found, key=lambda pair: (pair[1].total_us, pair[0].name))

    def interpreted(self, config: Any) -> Any:
        """Every kernel is in Triton."""
        return config

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        """As the problem that the call states has them."""
        family: Any = self
        return tuple(o for o in family.operands(family.problem_of(call)) if o.role == "out")

    def options(self, problem: Any) -> dict[str, Any]:
        """The operands say all of a problem."""
        return {}

    def scalar_defaults(self, problem: Any) -> Mapping[str, int | float]:
        """A call gives all scalars."""
        return {}

    def make_inputs(self, problem: Any, rng: Rng) -> Mapping[str, Any]:
        """Every operand drawn independently, as its `Operand.values` says."""
        family: Any = self
        return rng.independent(o for o in family.operands(problem) if o.read)

    def vendor(self, problem: Any) -> Any:
        """There is no call of the vendor's library."""
        return None
