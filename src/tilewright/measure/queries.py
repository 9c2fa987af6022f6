"""Answers to a user's SQL about a results file: read-only, and within limits, since a query of one
line can take days or all memory."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tilewright.errors import BadArgument

MOST_SECONDS = 60.0
"""Processor time of a query."""

MOST_BYTES = 256 << 20
"""Memory of an answer, roughly."""

MOST_VALUE_BYTES = 16 << 20
"""Largest value of a query, in bytes, also while the query is at work. Python 3.10 cannot limit
it."""

_LENGTH = 0  # SQLITE_LIMIT_LENGTH, which Python 3.10 does not name
_CELL_BYTES = 64
_STEPS = 100_000
"""SQLite's instructions between two looks at the clock."""

_READING = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)


def answer(path: Path, sql: str, values: Sequence[Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names of columns, and rows, for SQL that only reads the database at `path`. Raises
    `BadArgument` for other SQL, before it does anything, and at a limit."""
    where = path.absolute().as_uri() + "?mode=ro"
    end = time.thread_time() + MOST_SECONDS
    with closing(sqlite3.connect(where, uri=True)) as db:
        db.set_authorizer(_only_reads)
        db.set_progress_handler(lambda: time.thread_time() > end, _STEPS)
        if hasattr(db, "setlimit"):
            db.setlimit(_LENGTH, MOST_VALUE_BYTES)
        try:
            found = db.execute(sql, values)
            return [c[0] for c in found.description or ()], _fetched(found)
        # A NUL or half a surrogate pair in a query raises ValueError.
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            if isinstance(error, BadArgument):
                raise
            raise BadArgument(f"the query cannot be answered: {_why(error)}") from error


def _fetched(found: sqlite3.Cursor) -> list[tuple[Any, ...]]:
    rows, size = [], 0
    for row in found:
        rows.append(row)
        size += sum(
            _CELL_BYTES + len(v) if isinstance(v, str | bytes) else _CELL_BYTES for v in row
        )
        if size > MOST_BYTES:
            raise BadArgument(
                f"the query's answer is over {MOST_BYTES >> 20} MiB after {len(rows):,} rows: add "
                "a LIMIT, or export the results"
            )
    return rows


def _why(error: Exception) -> str:
    said = str(error)
    if "authoriz" in said:
        return "it does more than read"
    if said == "interrupted":
        return f"it takes over {MOST_SECONDS:g} s; ask for less, or export the results"
    if isinstance(error, sqlite3.DataError) and "too big" in said:
        return f"a value has over {MOST_VALUE_BYTES >> 20} MiB"
    return said


def _only_reads(action: int, *_about: str | None) -> int:
    """SQLite asks this about every action of a statement before the statement runs: ATTACH and
    VACUUM INTO would write files beside a database that is only read."""
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY
