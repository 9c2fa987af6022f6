"""`Results`: the measurements of a sweep, in one SQLite file, safe against a kill at any moment.

Each measurement is committed before `add` returns (write-ahead log, synchronous). What repeats
(problems, kernels, devices, environments, settings) stands once, by a digest; the measurements
refer to it. A sweep directory has one writer, which holds a lock on a file beside the database;
readers need none.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile
from tilewright.jsonfile import convert, parse_json
from tilewright.tables.row import meant
from tilewright.tune.database import FILE, cannot_write, opened, take
from tilewright.tune.measurement import (
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
from tilewright.verify import Check

_ALL = """
SELECT kernel.name, kernel.build, problem.text, device.text, environment.text, settings.text,
    status, reason, samples_us, low_us, high_us, "check", telemetry, flags, attempts,
    measured_at, seconds
FROM measurement JOIN problem ON problem.id = measurement.problem
    JOIN kernel ON kernel.id = measurement.kernel JOIN device ON device.id = measurement.device
    JOIN environment ON environment.id = measurement.environment
    JOIN settings ON settings.id = measurement.settings
"""


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
    """What building a kernel came to: the key of its binary, `status` (as of a `BuildResult`),
    why it failed, and the seconds it took to compile."""

    kernel: str
    key: str
    arch: str
    status: str
    reason: str
    seconds: float


class Results:
    """The measurements of the sweep directory `folder`.

    write: take the directory's lock, and make what is not there yet; otherwise nothing is changed.
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
            who = f"{os.getpid()} on {socket.gethostname()} since {now()}"
            self._lock = take(self.folder, who)
        elif not self.path.is_file():
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
        """Keep these, all or none, on disk when this returns. One of the same key as one that is
        there takes its place."""
        with self._writing():
            for m in measurements:
                self._insert(m)

    def add_builds(self, builds: Iterable[Build]) -> None:
        """Keep what building kernels came to; of one kernel, the last."""
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
        """A transaction: all that is written in it, or nothing."""
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
            (m.problem.family, problem_text(m.problem), m.problem.flops, m.problem.min_bytes),
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
        """The row of `table` with these values, made if there is none."""
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
        (count,) = self._db.execute("SELECT count(*) FROM measurement").fetchone()
        return int(count)

    def keys(
        self, statuses: Collection[Status] = STATUSES, problems: Collection[str] | None = None
    ) -> set[tuple[str, ...]]:
        """The keys (`Measurement.key`) of what was measured, and came to one of `statuses`.
        problems: of these alone, as `problem_text` says them."""
        named = self._namer()
        query, values = f"SELECT status, {_KEY} FROM measurement", []
        if problems is not None:
            listed = "SELECT value FROM json_each(?)"
            query += f" WHERE problem IN (SELECT id FROM problem WHERE text IN ({listed}))"
            values = [json.dumps([*problems])]
        return {named(row[1:]) for row in self._db.execute(query, values) if row[0] in statuses}

    def outlines(self) -> Iterator[Outline]:
        """What tells each measurement from others, and which of two is better."""
        named = self._namer()
        columns = f"{_KEY}, measurement.id, status, measured_at, median_us"
        for row in self._all("measurement", columns):
            yield Outline(named(row[:5]), *row[5:])

    def _namer(self) -> Callable[[Sequence[int]], tuple[str, ...]]:
        """From the columns `_KEY` of a row to its `Measurement.key`. Texts stand once in memory,
        however many measurements say them."""
        kernels = {i: (name, build) for i, name, build in self._all("kernel", "id, name, build")}
        texts = dict(self._all("problem", "id, text"))
        devices, environments, settings = (
            dict(self._all(table, "id, digest")) for table in ("device", "environment", "settings")
        )

        def named(row: Sequence[int]) -> tuple[str, ...]:
            k, p, d, e, s = row
            return (*kernels[k], texts[p], devices[d], environments[e], settings[s])

        return named

    def _all(self, table: str, columns: str) -> sqlite3.Cursor:
        return self._db.execute(f"SELECT {columns} FROM {table}")

    def builds(self) -> Iterator[Build]:
        """What building kernels came to."""
        rows = self._db.execute(
            "SELECT kernel.name, kernel.build, arch, status, reason, seconds FROM build "
            "JOIN kernel ON kernel.id = kernel ORDER BY kernel"
        )
        return (Build(*row) for row in rows)

    def measurements(self, where: str = "", values: Sequence[Any] = ()) -> Iterator[Measurement]:
        """Measurements, in the order they were added; `where` is SQL over the tables, such as
        ``status = ?``. Raises `BadArgument` for SQL that cannot be read."""
        condition = f"WHERE {where}" if where else ""
        try:
            rows = self._db.execute(f"{_ALL} {condition} ORDER BY measurement.id", values)
        except sqlite3.OperationalError as error:
            raise BadArgument(f"'{where}' does not say which measurements: {error}") from error
        for row in rows:
            yield self._read(row)

    def numbered(self) -> Iterator[tuple[int, Measurement]]:
        """All measurements with their numbers (`Outline.id`)."""
        columns = _ALL.replace("SELECT", "SELECT measurement.id,", 1)
        for number, *row in self._db.execute(f"{columns} ORDER BY measurement.id"):
            yield number, self._read(row)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """The rows of a query of this program's own, one by one."""
        return self._db.execute(sql, values)

    def query(
        self, sql: str, values: Sequence[Any] = ()
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Names of columns, and rows, of any reading SQL. Raises `BadArgument`."""
        where = self.path.absolute().as_uri() + "?mode=ro"
        with closing(sqlite3.connect(where, uri=True)) as db:
            try:
                answer = db.execute(sql, values)
                return [c[0] for c in answer.description or ()], answer.fetchall()
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise BadArgument(f"the query cannot be answered: {error}") from error

    def _read(self, row: Sequence[Any]) -> Measurement:
        taken = samples(row[8])
        where = os.fspath(self.path)
        check = None if row[11] is None else convert(json.loads(row[11]), Check, where)
        flags: tuple[Flag, ...] = tuple(f for f in get_args(Flag) if f in row[13].split())
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


def samples(stored: bytes) -> Sequence[float]:
    """Of the column `samples_us`."""
    taken = array.array("d")
    taken.frombytes(stored)
    return taken


def read_problem(said: str, where: str) -> Any:
    """The problem whose `problem_text` this is. Raises `BadFile`."""
    return meant(parse_json(said, where), where)


def now() -> str:
    """The time, as measurements say it: UTC, ISO 8601, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
