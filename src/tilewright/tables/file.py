"""Tables in files: compact (``.twt``), which loads fast, and JSON, to read and to compare by line.

A compact file is 8 bytes that say what it is, its schema's number in 4 (little-endian), the SHA-256
of the rest, and the rest (see `tilewright.tables.packed`). A JSON file is one object whose rows
stand one to a line, sorted. Each says all that the other does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tilewright.build.files import write_whole
from tilewright.errors import BadArgument, BadFile
from tilewright.jsonfile import parse_json
from tilewright.tables.row import Row, from_data, to_data
from tilewright.tables.table import Table

SCHEMA = 1
"""Version of both forms; a file of a newer one is refused."""

COMPACT, JSON = ".twt", ".json"
_MAGIC = b"twtable\n"
_HEAD = len(_MAGIC) + 4 + 32

PathLike = str | os.PathLike[str]


def save(table: Table, path: PathLike) -> None:
    """Write `table` to `path`, whole or not at all, in the form that its ending says. The same rows
    give the same bytes. Raises `BadArgument` for another ending, `StoreError`."""
    target = Path(path)
    if form(target) == COMPACT:
        head = _MAGIC + SCHEMA.to_bytes(4, "little") + bytes.fromhex(table.digest)
        content = head + table.data
    else:
        content = to_json(table).encode()
    write_whole(target, content, target.parent)


def load(path: PathLike) -> Table:
    """The table in a file of either form. Raises `BadFile`, which names the file and what is wrong
    with it: damage, a newer schema, two rows of one problem."""
    where, content = os.fspath(path), _content(path)
    if form(Path(path)) == COMPACT:
        return _compact(content, where)
    try:
        return Table.of((row for _, row in _json_rows(content, where)), where)
    except BadArgument as error:
        raise BadFile(str(error)) from None


def rows(path: PathLike) -> Iterator[tuple[str, Row]]:
    """Each row of a file of either form, with where it stands; a JSON file may have several of one
    problem. Raises `BadFile`."""
    where, content = os.fspath(path), _content(path)
    if form(Path(path)) == JSON:
        yield from _json_rows(content, where)
        return
    for number, row in enumerate(_compact(content, where), 1):
        yield f"{where}: row {number}", row


def to_json(table: Table) -> str:
    """The table as JSON, one row a line."""
    lines = (json.dumps(to_data(row), separators=(", ", ": ")) for row in table)
    return f'{{"schema": {SCHEMA}, "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def _json_rows(content: bytes, where: str) -> Iterator[tuple[str, Row]]:
    try:
        document = parse_json(content.decode(), where)
    except UnicodeDecodeError as error:
        raise BadFile(f"{where}: not UTF-8 at byte {error.start}") from None
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise BadFile(f"{where}: is no table: a table is an object with schema and rows")
    _check_schema(document.get("schema"), where)
    for number, data in enumerate(document["rows"], 1):
        place = f"{where}: row {number}"
        yield place, from_data(data, place)


def _compact(content: bytes, where: str) -> Table:
    if not content.startswith(_MAGIC):
        raise BadFile(f"{where}: is no table: it does not begin as one")
    _check_schema(int.from_bytes(content[len(_MAGIC) : _HEAD - 32], "little"), where)
    return Table(content[_HEAD:], where, content[_HEAD - 32 : _HEAD].hex())


def _check_schema(schema: object, where: str) -> None:
    if type(schema) is not int or schema < 1:
        raise BadFile(f"{where}: its schema is {schema!r}, which is no version of tables")
    if schema > SCHEMA:
        raise BadFile(
            f"{where}: its schema is {schema}, made by a newer Tilewright; this one reads up to "
            f"{SCHEMA}"
        )


def _content(path: PathLike) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadFile(f"{os.fspath(path)}: cannot be read: {error.strerror}") from None


def form(path: Path) -> str:
    if path.suffix not in (COMPACT, JSON):
        raise BadArgument(f"{path}: a table's file ends in {COMPACT} or {JSON}")
    return path.suffix
