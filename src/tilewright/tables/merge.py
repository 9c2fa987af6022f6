"""Several tables as one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile, shown
from tilewright.tables import file, own
from tilewright.tables.row import Row
from tilewright.tables.table import Table

log = logging.getLogger("tilewright")

Policy = Literal["fail", "fastest"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
"""What to do with different rows for one problem and device. fail: an error names some of them.
fastest: keep the row with the least median; ties go to the newest row, then to the first by
kernel."""

NAMED = 5
"""At most so many problems whose rows differ are named in an error."""

Tables = Table | file.PathLike | Sequence[file.PathLike]

Placed = tuple[str, Row]
"""The place that a row came from (a file and a row's number), and the row."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Different rows of one problem on one device; the row to keep is first."""

    rows: tuple[Placed, ...]

    def __str__(self) -> str:
        row = self.rows[0][1]
        said = (f"{place} has {r.kernel}, {r.median_us:.4g} µs" for place, r in self.rows)
        return f"{row.problem} on {row.device.name}: {', '.join(said)}"


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged table.

    table: all rows; of different rows for one problem and device, the fastest.
    repeated: how many rows were equal to another row.
    duplicates: the rows that differed.
    """

    table: Table
    repeated: int
    duplicates: tuple[Duplicate, ...]


def merge(paths: Sequence[file.PathLike], policy: Policy = "fail") -> Merged:
    """The rows of the files `paths` as one table; the files stay as they are. Raises `BadArgument`
    for different rows of one problem under ``fail``, naming up to `NAMED` problems, and what
    `file.rows` raises."""
    placed = (one for path in paths for one in file.rows(path))
    return combine(placed, ", ".join(os.fspath(path) for path in paths), policy)


def combine(placed: Iterable[Placed], where: str, policy: Policy) -> Merged:
    """The rows as one table from `where`. Raises as `merge` does."""
    if policy not in POLICIES:
        raise BadArgument(f"policy '{policy}' is not one of {', '.join(POLICIES)}")
    rows, repeated, duplicates = sort_out(placed)
    if duplicates and policy == "fail":
        said = [*map(str, duplicates[:NAMED])]
        if len(duplicates) > NAMED:
            said.append(f"and {len(duplicates) - NAMED} more")
        raise BadArgument(
            f"{len(duplicates)} problems have rows that say different things; keep the fastest "
            f"(policy fastest), or remove all but one of each: {'; '.join(said)}"
        )
    return Merged(Table.of(rows, where), repeated, duplicates)


def sort_out(placed: Iterable[Placed]) -> tuple[list[Row], int, tuple[Duplicate, ...]]:
    """The fastest row for each problem on each device; how many rows were repeated; and the rows
    that differ from another row of their problem and device."""
    by_key: dict[tuple[Device, Any], list[Placed]] = {}
    for place, row in placed:
        by_key.setdefault((row.device, row.problem), []).append((place, row))
    rows, repeated, duplicates = [], 0, []
    for same in by_key.values():
        different = {row: (place, row) for place, row in reversed(same)}
        repeated += len(same) - len(different)
        ordered = sorted(different.values(), key=lambda one: one[1].kernel)
        ordered.sort(key=lambda one: one[1].measured_at, reverse=True)
        ordered.sort(key=lambda one: one[1].median_us)
        rows.append(ordered[0][1])
        if len(ordered) > 1:
            duplicates.append(Duplicate(tuple(ordered)))
    return rows, repeated, tuple(duplicates)


class Several:
    """Several tables in use as one. Where they have different rows of one problem on one device,
    the fastest row answers, with one warning for each such problem.

    Look-ups search the tables one by one. A merge would have to make every row, at some 70 µs each.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._told: set[tuple[Any, Device]] = set()
        self.where = ", ".join(table.where for table in tables)
        self.devices = tuple(dict.fromkeys(d for table in tables for d in table.devices))

    @cached_property
    def digest(self) -> str:
        """The digest of one table with the same rows."""
        placed = [(table.where, row) for table in self._tables for row in table]
        return combine(placed, self.where, "fastest").table.digest

    def types(self, family: str, device: Device) -> frozenset[str] | None:
        """As `Table.types`."""
        found = [table.types(family, device) for table in self._tables]
        have = [types for types in found if types is not None]
        return frozenset().union(*have) if have else None

    def get(self, problem: Any, device: Device) -> Row | None:
        """As `Table.get`."""
        found = self.placed(problem, device)
        return found[1] if found else None

    def placed(self, problem: Any, device: Device) -> Placed | None:
        """As `Table.placed`."""
        found = [one for table in self._tables if (one := table.placed(problem, device))]
        if len(found) < 2:
            return found[0] if found else None
        [row], _, duplicates = sort_out(found)
        if duplicates and (problem, device) not in self._told:
            self._told.add((problem, device))
            log.warning("different rows in several tables; the fastest is used: %s", duplicates[0])
        return next(one for one in found if one[1] == row)


def gather(tables: Tables | None) -> Table | Several | None:
    """The tables to choose by: `tables`, loaded where they are files; for None, the files that
    ``TILEWRIGHT_TABLES`` names, or None if it names none. Raises `BadFile`."""
    if isinstance(tables, Table):
        return tables
    if tables is None:
        try:
            return _loaded(own.stated() or ())
        except BadFile as error:
            raise BadFile(f"{own.ENVIRONMENT}: {error}") from error
    return _loaded([tables] if isinstance(tables, str | os.PathLike) else _several(tables))


def gather_kept() -> Table | Several | None:
    """The tables in the user's folder (`own.kept`) where ``TILEWRIGHT_TABLES`` is not set; None if
    it is, or if there are none. Raises `BadFile`."""
    return _loaded(own.kept()) if own.stated() is None else None


def _loaded(paths: Sequence[file.PathLike]) -> Table | Several | None:
    """The tables of these files; None for no file."""
    loaded = [file.load(path) for path in paths]
    if not loaded:
        return None
    return loaded[0] if len(loaded) == 1 else Several(loaded)


def _several(paths: Any) -> list[file.PathLike]:
    if not isinstance(paths, Sequence):
        raise BadArgument(f"{shown(paths)} is neither a table nor the path of one")
    return [*paths]
