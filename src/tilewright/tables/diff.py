"""Two tables, problem by problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tilewright.arch.model import Device
from tilewright.tables.row import Row
from tilewright.tables.table import Table

Outcome = Literal["same", "faster", "slower", "unclear", "added", "removed"]
"""What became of a row. same: the rows are equal. faster, slower: the second table's time lies
wholly outside the first's confidence interval and the other way round. unclear: the intervals
overlap. added, removed: only the second, or only the first, has one."""


@dataclass(frozen=True, slots=True)
class Change:
    """A problem on a device, with the row of each table, as far as it has one."""

    problem: Any
    device: Device
    before: Row | None
    after: Row | None

    @property
    def outcome(self) -> Outcome:
        """How the rows differ, and whether their times can be told apart."""
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
        """The least and the most speedup that the two intervals leave room for."""
        if self.before is None or self.after is None:
            return None
        (low, high), (new_low, new_high) = self.before.interval_us, self.after.interval_us
        return low / new_high, high / new_low


def diff(before: Table, after: Table) -> list[Change]:
    """Every problem on every device that either table has a row of, in the first's order, then in
    the second's."""
    changes = [
        Change(row.problem, row.device, row, after.get(row.problem, row.device)) for row in before
    ]
    changes += [
        Change(row.problem, row.device, None, row)
        for row in after
        if before.get(row.problem, row.device) is None
    ]
    return changes
