"""Compact copies of shipped tables, in the folder for what can be recreated.

Shipped tables are JSON, which people read and compare. Each row of it is read and checked when a
process first needs the table: 7,962 rows take 1.2 s of one core, their compact copy 0.021 s.

A copy is replaced when the JSON file, the package's version or its definitions of problems change,
when it is damaged, and when somebody else could have written it. If no copy can be written, the
JSON is read each time.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from tilewright import home, ops
from tilewright.errors import BadFile, StoreError
from tilewright.files import WRITE, check_own, make_own
from tilewright.reading import MOST_BYTES, content, regular
from tilewright.tables import file
from tilewright.tables.table import Table
from tilewright.version import __version__

_OPERATIONS = Path(ops.__file__).parent


def load(path: Path) -> Table:
    """The table in the JSON file at `path`, from its copy if there is one. Raises `BadFile` as
    `file.load` does."""
    parts = [f"{__version__} {file.SCHEMA}".encode(), *map(Path.read_bytes, _sources())]
    digest = hashlib.sha256(b"\0".join([*parts, content(path)])).hexdigest()
    name = f"{path.parent.name}-{path.stem}"
    copy = home.cache() / "shipped" / f"{name}-{digest[:16]}{file.COMPACT}"
    found = _kept(copy)
    if found is None:
        found = file.load(path)
        _keep(found, copy, name)
    return found


def _sources() -> list[Path]:
    """The files that define problems. A developer may change them without changing the version."""
    return sorted(_OPERATIONS.glob("*/problem.py"))


def _kept(copy: Path) -> Table | None:
    def judge(status: os.stat_result) -> None:
        check_own(copy, status, WRITE)

    try:
        return file.from_bytes(regular(copy, MOST_BYTES, os.O_NOFOLLOW, judge), str(copy))
    except (OSError, ValueError, BadFile, StoreError):
        return None


def _keep(table: Table, copy: Path, name: str) -> None:
    """Write `copy`, and remove those of the same table that it replaces."""
    with suppress(OSError, StoreError):
        make_own(home.cache())
        make_own(copy.parent)
        file.save(table, copy)
        for other in copy.parent.glob(f"{name}-{'[0-9a-f]' * 16}{file.COMPACT}"):
            if other != copy:
                other.unlink(missing_ok=True)
