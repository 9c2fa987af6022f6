"""Two tables, problem by problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tilewright.arch.model import Device
from tilewright.tables.row import Row
from tilewright.tables.table import Table

Outcome = Literal["same", "faster", "slower", "unclear", "added", "removed"]
"""How the second table's row compares with the first's. same: the rows are equal. faster, slower:
the confidence intervals of the times do not overlap. unclear: the intervals overlap. added,
removed: only the second, or only the first, table has a row."""


@dataclass(frozen=True, slots=True)
class Change:
    """A problem on a device, with its row in each table; None where a table has none."""

    problem: Any
    device: Device
    before: Row | None
    after: Row | None

    @property
    def outcome(self) -> Outcome:
        """How the second row compares with the first."""
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        if self.before == self.after:
            return "same"
        (low, high), (new_low, new_high) = self.before.interval_us, self.after.interval_us
        if new_high < low:
            return "faster"
        return "slower" if new_low > high else "unclear"

    @property
    def speedup(self) -> float | None:
        """The first's median over the second's; None unless both tables have a row."""
        if self.before is None or self.after is None:
            return None
        return self.before.median_us / self.after.median_us

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """The least and the greatest speedup that the two intervals allow."""
        if self.before is None or self.after is None:
            return None
        (low, high), (new_low, new_high) = self.before.interval_us, self.after.interval_us
        return low / new_high, high / new_low


def diff(before: Table, after: Table) -> list[Change]:
    """Every problem and device that has a row in either table: in the first table's order, then
    those of the second table alone, in its order."""
    changes = [
        Change(row.problem, row.device, row, after.get(row.problem, row.device)) for row in before
    ]
    changes += [
        Change(row.problem, row.device, None, row)
        for row in after
        if before.get(row.problem, row.device) is None
    ]
    return changes
