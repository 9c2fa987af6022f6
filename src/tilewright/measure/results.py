"""`Results`: the measurements of a sweep, in one SQLite file, safe against a kill at any moment.

Each measurement is committed before `add` returns (write-ahead log, synchronous). Problems,
kernels, devices, environments and settings are stored once, by a digest; the measurements refer to
them. A sweep directory has one writer, which holds a lock on a file beside the database. Readers
need no lock.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, TypeVar, get_args

import msgspec

from tilewright.arch.model import Device
from tilewright.checks import LEAST_US, MOST_SECONDS, MOST_US, MOST_WHOLE
from tilewright.errors import BadArgument, BadFile, shown
from tilewright.jsonfile import convert, parse_json
from tilewright.measure import queries
from tilewright.measure.database import FILE, cannot_write, opened, take
from tilewright.measure.measurement import (
    STATUSES,
    Environment,
    Flag,
    Measurement,
    Settings,
    Status,
    Telemetry,
    digest,
    problem_text,
    text,
)
from tilewright.tables.row import meant
from tilewright.verify import Check

T = TypeVar("T")

_ALL = """
SELECT kernel.name, kernel.build, problem.text, device.text, environment.text, settings.text,
    status, reason, samples_us, low_us, high_us, "check", telemetry, flags, attempts,
    measured_at, seconds
FROM measurement LEFT JOIN problem ON problem.id = measurement.problem
    LEFT JOIN kernel ON kernel.id = measurement.kernel
    LEFT JOIN device ON device.id = measurement.device
    LEFT JOIN environment ON environment.id = measurement.environment
    LEFT JOIN settings ON settings.id = measurement.settings
"""
"""LEFT: a measurement whose kernel is missing is damage, and must not vanish."""

Us = Annotated[float, msgspec.Meta(ge=LEAST_US, le=MOST_US)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]
"""Types of columns, for `Results.rows`."""

_Row = tuple[
    str, str, str, str, str, str, Status, str, bytes, Us | None, Us | None, str | None, str, str,
    int, str, Seconds,
]  # fmt: skip
_Key = tuple[int, int, int, int, int]


_KEY = "kernel, problem, device, environment, settings"


@dataclass(frozen=True, slots=True)
class Outline:
    """A measurement in short. id: its number among a directory's results."""

    key: tuple[str, ...]
    id: int
    status: str
    measured_at: str
    median_us: float | None


@dataclass(frozen=True, slots=True)
class Build:
    """The result of building a kernel.

    key: the key of its binary.
    status: as in a `BuildResult`.
    reason: why it failed.
    seconds: compile time.
    """

    kernel: str
    key: str
    arch: str
    status: str
    reason: str
    seconds: float


class Results:
    """The measurements of the sweep directory `folder`.

    write: take the directory's lock, and make missing files; otherwise nothing is changed.

    Raises `ResultsInUse` (another writer), `BadFile` (no results there, damaged, or of a newer
    version) and `BadArgument` (the folder cannot be made).
    """

    def __init__(self, folder: str | os.PathLike[str], *, write: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        self._lock: int | None = None
        self._ids: dict[tuple[str, str], int] = {}
        if write:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadArgument(f"{self.folder} cannot be made: {error.strerror}") from error
            except ValueError as error:  # a NUL or half a surrogate pair in its name
                raise BadArgument(f"{shown(str(folder))} cannot be made: {error}") from error
            who = f"{os.getpid()} on {socket.gethostname()} since {now()}"
            self._lock = take(self.folder, who)
        elif not _is_file(self.path):
            raise BadFile(f"{self.folder} has no results ({FILE}); a sweep writes them there")
        try:
            self._db = opened(self.path, write)
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        """Release the file, and the directory's lock."""
        self._db.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- writing ----------------------------------------------------------------------------

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Store these, all or none; they are on disk when this returns. A measurement replaces an
        earlier one with the same key."""
        with self._writing():
            for m in measurements:
                self._insert(m)

    def add_builds(self, builds: Iterable[Build]) -> None:
        """Store the results of building kernels; a kernel's last result stays."""
        with self._writing():
            for b in builds:
                kernel = self._id("kernel", f"{b.kernel} {b.key}", "name, build", (b.kernel, b.key))
                self._db.execute(
                    "INSERT OR REPLACE INTO build (kernel, arch, status, reason, seconds) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (kernel, b.arch, b.status, b.reason, b.seconds),
                )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction: all of its writes happen, or none."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # A full disk may have ended the transaction already.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._ids.clear()
                raise
        except sqlite3.DatabaseError as error:
            raise cannot_write(self.path, error) from error

    def _insert(self, m: Measurement) -> None:
        problem = self._id(
            "problem",
            problem_text(m.problem),
            "family, text, flops, min_bytes",
            (
                m.problem.family,
                problem_text(m.problem),
                _stored(m.problem.flops),
                _stored(m.problem.min_bytes),
            ),
        )
        values = (
            problem,
            self._id("kernel", f"{m.kernel} {m.build}", "name, build", (m.kernel, m.build)),
            self._id(
                "device",
                digest(m.device),
                "digest, name, arch, text",
                (digest(m.device), m.device.name, m.device.arch, text(m.device)),
            ),
            *(
                self._id(table, x.digest, "digest, text", (x.digest, text(x)))
                for table, x in (("environment", m.environment), ("settings", m.settings))
            ),
            m.status,
            m.reason,
            m.median_us if m.samples_us else None,
            *(m.interval_us if m.samples_us else (None, None)),
            array.array("d", m.samples_us).tobytes(),
            None if m.check is None else m.check.ok,
            None if m.check is None else m.check.worst,
            None if m.check is None else json.dumps(asdict(m.check)),
            text(m.telemetry),
            " ".join(m.flags),
            m.attempts,
            m.measured_at,
            m.seconds,
        )
        marks = ", ".join("?" * len(values))
        self._db.execute(
            "INSERT OR REPLACE INTO measurement (problem, kernel, device, environment, settings, "
            "status, reason, median_us, low_us, high_us, samples_us, verified, worst, "
            f'"check", telemetry, flags, attempts, measured_at, seconds) VALUES ({marks})',
            values,
        )

    def _id(self, table: str, key: str, columns: str, values: Sequence[Any]) -> int:
        """The id of the row of `table` with these values. A missing row is made."""
        found = self._ids.get((table, key))
        if found is None:
            marks = ", ".join("?" * len(values))
            self._db.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", values)
            same = " AND ".join(f"{c} = ?" for c in columns.split(", "))
            (found,) = self._db.execute(f"SELECT id FROM {table} WHERE {same}", values).fetchone()
            self._ids[table, key] = found
        return int(found)

    # --- reading ----------------------------------------------------------------------------

    def __len__(self) -> int:
        ((count,),) = self.rows("SELECT count(*) FROM measurement", tuple[int])
        return int(count)

    def keys(
        self, statuses: Collection[Status] = STATUSES, problems: Collection[str] | None = None
    ) -> set[tuple[str, ...]]:
        """The keys (`Measurement.key`) of measurements with one of `statuses`.

        problems: only of these, as `problem_text` writes them.
        """
        named = self._namer()
        query, values = f"SELECT status, {_KEY} FROM measurement", []
        if problems is not None:
            listed = "SELECT value FROM json_each(?)"
            query += f" WHERE problem IN (SELECT id FROM problem WHERE text IN ({listed}))"
            values = [json.dumps([*problems])]
        rows = self.rows(query, tuple[str, int, int, int, int, int], values)
        return {named(row[1:]) for row in rows if row[0] in statuses}

    def outlines(self) -> Iterator[Outline]:
        """Each measurement in short: its key, and the fields to choose the better of two."""
        named = self._namer()
        columns = f"{_KEY}, measurement.id, status, measured_at, median_us"
        kind = tuple[int, int, int, int, int, int, str, str, Us | None]
        for row in self.rows(f"SELECT {columns} FROM measurement", kind):
            yield Outline(named(row[:5]), *row[5:])

    def _namer(self) -> Callable[[Sequence[int]], tuple[str, ...]]:
        """A function from the columns `_KEY` of a row to its `Measurement.key`. Each text is in
        memory once, however many measurements refer to it."""
        listed = self.rows("SELECT id, name, build FROM kernel", tuple[int, str, str])
        kernels = self.numbered_in("kernel", ((i, (name, build)) for i, name, build in listed))
        texts, devices, environments, settings = (
            self.numbered_in(table, self.rows(f"SELECT id, {column} FROM {table}", tuple[int, str]))
            for table, column in (
                ("problem", "text"),
                ("device", "digest"),
                ("environment", "digest"),
                ("settings", "digest"),
            )
        )

        def named(row: Sequence[int]) -> tuple[str, ...]:
            k, p, d, e, s = row
            return (*kernels[k], texts[p], devices[d], environments[e], settings[s])

        return named

    def numbered_in(self, table: str, pairs: Iterable[tuple[int, T]]) -> Mapping[int, T]:
        """The values of rows of `table`, by id. A missing id raises `BadFile`."""
        return _Numbered(f"{self.path}: is damaged: {table} has no row", pairs)

    def builds(self) -> Iterator[Build]:
        """The results of building kernels."""
        rows = self.rows(
            "SELECT kernel.name, kernel.build, arch, status, reason, seconds FROM build "
            "LEFT JOIN kernel ON kernel.id = kernel ORDER BY kernel",
            tuple[str, str, str, str, str, Seconds],
        )
        return (Build(*row) for row in rows)

    def measurements(self, where: str = "", values: Sequence[Any] = ()) -> Iterator[Measurement]:
        """Measurements, in the order in which they were added.

        where: SQL over the tables, such as ``status = ?``.
        values: for the placeholders.

        Raises `BadArgument` for invalid SQL.
        """
        asked = f"{_ALL} {f'WHERE {where}' if where else ''} ORDER BY measurement.id"
        try:
            self._db.execute(f"EXPLAIN {asked}", values).close()
        except sqlite3.OperationalError as error:
            raise BadArgument(f"'{where}' does not say which measurements: {error}") from error
        for row in self.rows(asked, _Row, values):
            yield self._read(row)

    def numbered(self) -> Iterator[tuple[int, Measurement]]:
        """All measurements with their numbers (`Outline.id`)."""
        columns = _ALL.replace("SELECT", "SELECT measurement.id,", 1)
        kind = GenericAlias(tuple, (int, *get_args(_Row)))
        for number, *row in self.rows(f"{columns} ORDER BY measurement.id", kind):
            yield number, self._read(row)

    def rows(self, sql: str, kind: Any, values: Sequence[Any] = ()) -> Iterator[Any]:
        """The rows of a query of this program, one by one, as tuples of type `kind`. Raises
        `BadFile` for a damaged file, and for a value of another type: SQLite takes any value in any
        column."""
        try:
            for row in self._db.execute(sql, values):
                yield msgspec.convert(row, kind, builtin_types=(bytes,))
        except (sqlite3.DatabaseError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise BadFile(f"{self.path}: is damaged: {error}") from error

    def query(
        self, sql: str, values: Sequence[Any] = ()
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Names of columns, and rows, for any SQL that only reads this file. Raises `BadArgument`
        for other SQL, before it does anything, and for a query that takes more processor time or
        gives a larger answer than `queries` allows."""
        return queries.answer(self.path, sql, values)

    def _read(self, row: Sequence[Any]) -> Measurement:
        where = os.fspath(self.path)
        taken = samples(row[8], where)
        check = row[11]  # its errors may be infinite
        if check is not None:
            check = convert(parse_json(check, where, non_finite=True), Check, where)
        flags: tuple[Flag, ...] = tuple(f for f in get_args(Flag) if f in row[13].split())
        try:
            return Measurement(
                kernel=row[0],
                build=row[1],
                problem=read_problem(row[2], where),
                device=convert(parse_json(row[3], where), Device, where),
                environment=convert(parse_json(row[4], where), Environment, where),
                settings=convert(parse_json(row[5], where), Settings, where),
                status=row[6],
                reason=row[7],
                samples_us=tuple(taken),
                interval_us=(row[9], row[10]) if taken else (0.0, 0.0),
                check=check,
                telemetry=convert(parse_json(row[12], where), Telemetry, where),
                flags=flags,
                attempts=row[14],
                measured_at=row[15],
                seconds=row[16],
            )
        except BadArgument as error:
            raise BadFile(f"{where}: is damaged: {row[0]}: {error}") from None


class _Numbered(dict[int, T]):
    """Rows by id. A missing id raises `BadFile` with the message `wrong`."""

    def __init__(self, wrong: str, pairs: Iterable[tuple[int, T]]) -> None:
        super().__init__(pairs)
        self._wrong = wrong

    def __missing__(self, number: int) -> T:
        raise BadFile(f"{self._wrong} {number}")


def samples(stored: bytes, where: str) -> Sequence[float]:
    """The samples in the column `samples_us`. Raises `BadFile`, beginning with `where`."""
    taken = array.array("d")
    if len(stored) % taken.itemsize:
        raise BadFile(f"{where}: is damaged: samples of {len(stored)} bytes")
    taken.frombytes(stored)
    return taken


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except ValueError:  # half a surrogate pair in its name
        return False


def read_problem(said: str, where: str) -> Any:
    """The problem with this `problem_text`. Raises `BadFile`."""
    return meant(parse_json(said, where), where)


def _stored(count: int) -> int | float:
    """A count within SQLite's integers, which end at 2⁶³."""
    return count if count <= MOST_WHOLE else float(count)


def now() -> str:
    """The time for measurements: UTC, ISO 8601, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
