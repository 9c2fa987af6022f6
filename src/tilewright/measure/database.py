"""The file that keeps results: its tables, their version, and the lock of its single writer."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path

from tilewright.errors import BadFile, TilewrightError, shown

FILE = "results.db"
_SAID = b"process "
"""The beginning of the text in a lock."""
SCHEMA = 1
"""Version of the tables. A file with a newer version is refused."""

_TABLES = """
CREATE TABLE problem (id INTEGER PRIMARY KEY, family TEXT NOT NULL, text TEXT NOT NULL UNIQUE,
    flops INTEGER NOT NULL, min_bytes INTEGER NOT NULL);
CREATE TABLE kernel (id INTEGER PRIMARY KEY, name TEXT NOT NULL, build TEXT NOT NULL,
    UNIQUE (name, build));
CREATE TABLE device (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
    arch TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE environment (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, text TEXT NOT NULL);
CREATE TABLE settings (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, text TEXT NOT NULL);
CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    problem INTEGER NOT NULL REFERENCES problem, kernel INTEGER NOT NULL REFERENCES kernel,
    device INTEGER NOT NULL REFERENCES device,
    environment INTEGER NOT NULL REFERENCES environment,
    settings INTEGER NOT NULL REFERENCES settings,
    status TEXT NOT NULL, reason TEXT NOT NULL,
    median_us REAL, low_us REAL, high_us REAL, samples_us BLOB NOT NULL,
    verified INTEGER, worst REAL, "check" TEXT,
    telemetry TEXT NOT NULL, flags TEXT NOT NULL, attempts INTEGER NOT NULL,
    measured_at TEXT NOT NULL, seconds REAL NOT NULL,
    UNIQUE (problem, kernel, device, environment, settings));
CREATE INDEX ranked ON measurement
    (problem, device, environment, settings, low_us, median_us, high_us, kernel)
    WHERE status = 'ok';
CREATE INDEX fate ON measurement (device, environment, settings, status);
CREATE TABLE build (kernel INTEGER PRIMARY KEY REFERENCES kernel, arch TEXT NOT NULL,
    status TEXT NOT NULL, reason TEXT NOT NULL, seconds REAL NOT NULL);
"""


class ResultsInUse(TilewrightError):
    """Another process writes to this sweep directory. The message names the process."""


def opened(path: Path, write: bool) -> sqlite3.Connection:
    """Open the database at `path` for reading or writing. With `write`, a missing file is made.
    Raises `BadFile`, and `TilewrightError` if it cannot be written (on a full disk, for example).
    """
    if write and path.is_symlink():
        raise BadFile(f"{path} is a link; put the file itself there, or take another directory")
    where = path.absolute().as_uri() + ("" if write else "?mode=ro")
    try:
        db = sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < 0:
            raise BadFile(f"{path} has version {version}, which no sweep writes")
        if version > SCHEMA:
            raise BadFile(
                f"{path} has version {version}, this Tilewright knows {SCHEMA}: use a newer one"
            )
        if write and version == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise BadFile(f"{path} is another program's database; take another directory")
        if write:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
        if version == 0 and write:
            db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        elif version == 0:
            raise BadFile(f"{path} holds no results: the sweep that made it never began")
        _check_tables(db, path)
    except UnicodeDecodeError as error:  # the SQL is not text
        raise BadFile(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        # A damaged file, or a file that is not a database, raises another error.
        if write and isinstance(error, sqlite3.OperationalError):
            raise cannot_write(path, error) from error
        raise BadFile(f"{path}: {error}") from error
    return db


def _check_tables(db: sqlite3.Connection, path: Path) -> None:
    """Raise `BadFile` unless the tables are a sweep's. A view or a trigger in a stranger's file
    would run code of the stranger under the tables' names."""
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(_TABLES)
        wanted = _described(empty)
    found = _described(db)
    for name, (kind, sql) in found.items():
        if kind in ("view", "trigger"):
            raise BadFile(f"{path} has a {kind}, {shown(name)}, which no sweep makes")
        if name in wanted and wanted[name] != (kind, sql):
            raise BadFile(f"{path}: {kind} {name} is not as a sweep makes it")
    if missing := wanted.keys() - found.keys():
        raise BadFile(f"{path} has no {', '.join(sorted(missing))}, as a sweep's file has")


def _described(db: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """The contents of a database: kind and SQL by name."""
    rows = db.execute("SELECT name, type, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    return {str(name): (str(kind), " ".join(str(sql).split())) for name, kind, sql in rows}


def cannot_write(path: Path, error: sqlite3.DatabaseError) -> TilewrightError:
    """The error for a full or failing disk."""
    return TilewrightError(
        f"{path} cannot be written ({error}); its contents are whole: make room and run again"
    )


def take(folder: Path, who: str) -> int:
    """Lock a sweep directory. Returns the lock as an open file, which names its owner `who`. Raises
    `ResultsInUse`, and `TilewrightError` if no lock can be made or another program's file has its
    name."""
    path = folder / "sweep.lock"
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else f"cannot be made: {error.strerror}"
        raise TilewrightError(f"{path} {why}; remove it, or take another directory") from error
    said = os.read(held, 1000) if stat.S_ISREG(os.fstat(held).st_mode) else b"?"
    if not _SAID.startswith(said[: len(_SAID)]):
        os.close(held)
        raise TilewrightError(
            f"{path} was not made by a sweep; move it away, or take another directory"
        )
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = said.decode(errors="replace").strip() or "another process"
        os.close(held)
        raise ResultsInUse(
            f"{folder} is being written by {other}; wait for it, stop it, or take another directory"
        ) from None
    os.ftruncate(held, 0)
    with suppress(OSError):  # on a full disk the lock still holds
        os.pwrite(held, _SAID + who.encode(), 0)
    return held
