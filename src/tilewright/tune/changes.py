"""Two tables on the production path: is what the second runs faster than what the first runs?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Device
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, TilewrightError
from tilewright.measure.compare import Comparison, compare
from tilewright.measure.contenders import dispatched, verified
from tilewright.measure.timing import Timer
from tilewright.tables.row import Row
from tilewright.tables.table import Table


@dataclass(frozen=True, slots=True)
class Changed:
    """A problem whose rows name different kernels, and how these compare: `found` is about the
    second table's. None if one could not be run, or was wrong: `failed` says why."""

    problem: Any
    before: Row
    after: Row
    found: Comparison | None
    failed: str = ""

    def improves(self, threshold: float) -> bool:
        """Whether the second is surely faster by `threshold`: the interval of the ratio of times,
        first's over second's, lies above 1 + `threshold`."""
        return self.found is not None and self.found.interval[0] >= 1 + threshold


def changed(before: Table, after: Table, device: Device) -> list[tuple[Row, Row]]:
    """The rows of `device` in both tables, of one problem each, that name different kernels."""
    pairs = ((row, after.get(row.problem, device)) for row in before if row.device == device)
    return [(row, other) for row, other in pairs if other and other.kernel != row.kernel]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where two tables are compared. device: the one at `on` (``cuda:0``, ``cpu``). seed: makes
    the operands. rounds: pairs of samples."""

    device: Device
    on: str
    store: Store
    timer: Timer
    seed: int
    rounds: int

    def measured(
        self, pairs: Iterable[tuple[Row, Row]], before: Table, after: Table
    ) -> Iterator[Changed]:
        """Each pair of rows, run by a dispatcher with each table, verified and timed in turns."""
        first, second = (
            Dispatcher(device=self.device, store=self.store, tables=table)
            for table in (before, after)
        )
        for old, new in pairs:
            found, failed = self._found(old.problem, first, second)
            yield Changed(old.problem, old, new, found, failed)

    def _found(
        self, problem: Any, before: Dispatcher, after: Dispatcher
    ) -> tuple[Comparison | None, str]:
        try:
            sides = [dispatched("after", after, problem), dispatched("before", before, problem)]
            calls = verified(sides, problem, self.seed, self.on)
            return compare(calls[0], calls[1], self.timer, self.rounds), ""
        except TilewrightError as error:
            return None, str(error)


def updated(before: Table, changes: Iterable[Changed], threshold: float) -> Table:
    """`before`, with the second table's rows where they improve by `threshold`. Raises
    `BadArgument` for a negative one."""
    if threshold < 0:
        raise BadArgument(f"threshold = {threshold} is less than 0")
    better = {(c.after.device, c.problem): c.after for c in changes if c.improves(threshold)}
    return Table.of((better.get((row.device, row.problem), row) for row in before), before.where)
