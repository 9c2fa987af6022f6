"""Compares two tables as dispatchers use them: are the kernels of the second faster than those of
the first?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Device
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, TilewrightError
from tilewright.measure.compare import Comparison, compare
from tilewright.measure.contenders import dispatched, prepared
from tilewright.measure.measurement import Method
from tilewright.tables.row import Row
from tilewright.tables.table import Table


@dataclass(frozen=True, slots=True)
class Changed:
    """A problem whose rows name different kernels.

    found: how the second table's kernel compares with the first's; None if one of them could not
        run or was wrong.
    failed: the reason if `found` is None.
    """

    problem: Any
    before: Row
    after: Row
    found: Comparison | None
    failed: str = ""

    def improves(self, threshold: float) -> bool:
        """Whether the second kernel is certainly faster by `threshold`: the interval of the ratio
        of times, first over second, lies above 1 + `threshold`."""
        return self.found is not None and self.found.interval[0] >= 1 + threshold


def changed(before: Table, after: Table, device: Device) -> list[tuple[Row, Row]]:
    """The rows of `device` that both tables have for one problem, with different kernels."""
    pairs = ((row, after.get(row.problem, device)) for row in before if row.device == device)
    return [(row, other) for row, other in pairs if other and other.kernel != row.kernel]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where two tables are compared.

    device: the fingerprint of the device at `on`.
    on: ``cuda:0``, ``cpu``.
    method: how kernels are timed.
    seed: for the operands.
    rounds: number of pairs of samples.
    """

    device: Device
    on: str
    store: Store
    method: Method
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
            l2 = self.device.l2_bytes
            calls, timer = prepared(sides, problem, self.seed, self.on, l2, self.method)
            return compare(calls[0], calls[1], timer, self.rounds), ""
        except TilewrightError as error:
            return None, str(error)


def updated(before: Table, changes: Iterable[Changed], threshold: float) -> Table:
    """`before`, with the second table's rows where they improve by `threshold`. Raises
    `BadArgument` for a negative threshold."""
    if threshold < 0:
        raise BadArgument(f"threshold = {threshold} is less than 0")
    better = {(c.after.device, c.problem): c.after for c in changes if c.improves(threshold)}
    return Table.of((better.get((row.device, row.problem), row) for row in before), before.where)
