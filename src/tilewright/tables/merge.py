"""Several tables as one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tilewright.arch.model import Device
from tilewright.errors import BadArgument
from tilewright.tables import file
from tilewright.tables.row import Row
from tilewright.tables.table import Table

log = logging.getLogger("tilewright")

ENVIRONMENT = "TILEWRIGHT_TABLES"
"""The variable that names table files, separated as in PATH."""

Policy = Literal["fail", "fastest"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
"""What becomes of rows that say different things of one problem on one device. fail: an error that
names them all. fastest: the one with the least median is kept (of equal ones the newest, then the
first by kernel)."""

Tables = Table | file.PathLike | Sequence[file.PathLike]

Placed = tuple[str, Row]
"""A row, and where it stands."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Rows that say different things of one problem on one device, the one to keep first."""

    rows: tuple[Placed, ...]

    def __str__(self) -> str:
        row = self.rows[0][1]
        said = (f"{place} has {r.kernel}, {r.median_us:.4g} µs" for place, r in self.rows)
        return f"{row.problem} on {row.device.name}: {', '.join(said)}"


@dataclass(frozen=True, slots=True)
class Merged:
    """A table of all rows; how many stood in several places, saying the same; and those that did
    not, of which it has the fastest."""

    table: Table
    repeated: int
    duplicates: tuple[Duplicate, ...]


def merge(paths: Sequence[file.PathLike], policy: Policy = "fail") -> Merged:
    """The rows of the files `paths`, which stay as they are, as one table. Raises `BadArgument` for
    duplicates under ``fail``, naming every row and file, and what `file.rows` raises."""
    placed = (one for path in paths for one in file.rows(path))
    return combine(placed, ", ".join(os.fspath(path) for path in paths), policy)


def combine(placed: Iterable[Placed], where: str, policy: Policy) -> Merged:
    """The rows as one table from `where`. Raises as `merge` does."""
    if policy not in POLICIES:
        raise BadArgument(f"policy '{policy}' is not one of {', '.join(POLICIES)}")
    rows, repeated, duplicates = sort_out(placed)
    if duplicates and policy == "fail":
        listed = "; ".join(map(str, duplicates))
        raise BadArgument(
            f"{len(duplicates)} problems have rows that say different things; keep the fastest "
            f"(policy fastest), or take all but one of each away: {listed}"
        )
    return Merged(Table.of(rows, where), repeated, duplicates)


def sort_out(placed: Iterable[Placed]) -> tuple[list[Row], int, tuple[Duplicate, ...]]:
    """One row for each problem on each device, the fastest; how many others say just the same; and
    those that say something else."""
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


def gather(tables: Tables | None) -> Table | None:
    """The table to choose by: one given, or what the given files have together; where nothing is
    given, the files that ``TILEWRIGHT_TABLES`` names; None if it names none.

    Of duplicates in several files the fastest is kept, with one warning. Raises `BadFile`.
    """
    if isinstance(tables, Table):
        return tables
    if tables is None:
        paths: list[file.PathLike] = [
            path for path in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if path
        ]
    else:
        paths = [tables] if isinstance(tables, str | os.PathLike) else [*tables]
    if not paths:
        return None
    if len(paths) == 1:
        return file.load(paths[0])
    merged = merge(paths, "fastest")
    if merged.duplicates:
        log.warning(
            "%d problems have different rows in several tables; the fastest is used: %s%s",
            len(merged.duplicates),
            merged.duplicates[0],
            "; …" if len(merged.duplicates) > 1 else "",
        )
    return merged.table
