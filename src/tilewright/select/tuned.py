"""`Tuned`: the kernel that was measured to be best, from a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.select import Choice
from tilewright.tables.lookup import Found, Lookup, Versions
from tilewright.tables.table import Table


class Tuned:
    """Chooses what `table` says (see `tilewright.tables.lookup` for which row answers), the row's
    winner first, then those not told from it; nothing where no row answers.

    A borrowed row's kernel is said to lose what its family's estimate says, on this device, against
    the candidate that is best by the same estimate. `versions`: see `Versions`. Raises
    `BadArgument` for an unknown policy.
    """

    name = "tuned"

    def __init__(self, table: Table, versions: Versions = "any") -> None:
        self.table = table
        self._lookup = Lookup(table, versions)

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> list[Choice]:
        known, found = set(candidates), None
        for found in self._lookup.find(problem, device):
            configs = [config for config in found.configs if config in known]
            if configs:
                return [self._choice(found, c, problem, candidates, device) for c in configs]
        if found is None:
            self._lookup.missed(problem, device)
        return []

    def recall(self, problem: Any, device: Device) -> Iterator[Choice]:
        for found in self._lookup.find(problem, device):
            for config in found.configs:
                yield self._choice(found, config, problem, (), device)

    def _choice(
        self, found: Found, config: Any, problem: Any, candidates: Sequence[Any], device: Device
    ) -> Choice:
        row = found.row
        said = f"{found.where} of {self.table.where}: "
        if config.name == row.kernel:
            low, high = row.interval_us
            said += (
                f"{row.median_us:.4g} µs ± {(high - low) / 2 / row.median_us:.1%}, "
                f"{row.tflops:.4g} TFLOP/s"
            )
        else:
            said += f"not told from {row.kernel}"
        if found.origin == "borrowed" and candidates:
            said += f"; expected to lose {_loss(config, problem, candidates, device):.0%} here"
        return Choice(config, self.name, said, settled=found.origin != "borrowed")


def _loss(config: Any, problem: Any, candidates: Sequence[Any], device: Device) -> float:
    """The share of the best candidate's speed that `config` loses, by the family's estimate."""
    family = ops.family(problem.family)
    best = min(family.estimate(candidate, problem, device) for candidate in candidates)
    return 1 - best / family.estimate(config, problem, device)
