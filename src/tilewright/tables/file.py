"""Tables in files of two forms: compact (``.twt``), which loads fast, and JSON, which people read
and compare by line.

A compact file has 8 magic bytes, the schema's number in 4 bytes (little-endian), the SHA-256 of the
content, and the content (see `tilewright.tables.packed`). A JSON file is one object with the
devices, the ways in which rows were made (versions, driver, timing), and the rows: sorted, one to a
line, with their device and way by number, from 0. Both forms hold the same information.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile, shown
from tilewright.files import write_whole
from tilewright.jsonfile import convert, load_json, parse_json
from tilewright.reading import content, decoded, located
from tilewright.tables.named import file_of
from tilewright.tables.row import Row, meant, said
from tilewright.tables.table import Table

SCHEMA = 1
"""Version of both forms; a file of a newer one is refused."""

COMPACT, JSON = ".twt", ".json"
_MAGIC = b"twtable\n"
_HEAD = len(_MAGIC) + 4 + 32

PathLike = str | os.PathLike[str]
T = TypeVar("T")


def save(table: Table, path: PathLike) -> None:
    """Write `table` to `path`, whole or not at all, in the form of its ending. The same rows give
    the same bytes. Raises `BadArgument` for another ending, and `StoreError`."""
    target = Path(path)
    written = to_bytes(table) if form(target) == COMPACT else to_json(table).encode()
    write_whole(target, written)


def to_bytes(table: Table) -> bytes:
    """The content of a compact file of `table`."""
    return _MAGIC + SCHEMA.to_bytes(4, "little") + bytes.fromhex(table.digest) + table.data


def from_bytes(content: bytes, where: str) -> Table:
    """The table in the content of a compact file; `where` names the file in errors. Raises
    `BadFile`."""
    if not content.startswith(_MAGIC):
        raise BadFile(f"{where}: is no table: it does not begin as one")
    _check_schema(int.from_bytes(content[len(_MAGIC) : _HEAD - 32], "little"), where)
    return Table(content[_HEAD:], where, content[_HEAD - 32 : _HEAD].hex())


def load(path: PathLike) -> Table:
    """The table in a file of either form, or a shipped one by its name (``shipped:gemm_bf16``).
    Raises `BadFile`, which names the file and what is wrong with it: damage, a newer schema, two
    rows of one problem; and `UnknownName`."""
    where, file = located(path), file_of(path)
    read = content(file)
    if form(file) == COMPACT:
        return from_bytes(read, where)
    try:
        return Table.of((row for _, row in _json_rows(read, where)), where)
    except BadArgument as error:
        raise BadFile(str(error)) from None


def rows(path: PathLike) -> Iterator[tuple[str, Row]]:
    """Each row of the table at `path` (as for `load`), with its place. A JSON file may have several
    rows of one problem. Raises as `load` does."""
    where, file = os.fspath(path), file_of(path)
    read = content(file)
    if form(file) == JSON:
        yield from _json_rows(read, where)
        return
    for number, row in enumerate(from_bytes(read, where), 1):
        yield f"{where}: row {number}", row


def to_json(table: Table) -> str:
    """The table as JSON, one device, way of making and row a line."""
    devices = {device: number for number, device in enumerate(table.devices)}
    ways = sorted({_way(row) for row in table})
    way_of = {way: number for number, way in enumerate(ways)}
    parts = {
        "devices": map(asdict, devices),
        "made": ({"versions": dict(v), "driver": d, "timed": t} for v, d, t in ways),
        "rows": (
            {**_stated(row), "device": devices[row.device], "made": way_of[_way(row)]}
            for row in table
        ),
    }
    said = (f'"{name}": [\n{_lines(objects)}\n]' for name, objects in parts.items())
    return f'{{"schema": {SCHEMA}, {", ".join(said)}}}\n'


def _lines(objects: Iterable[dict[str, Any]]) -> str:
    return ",\n".join(json.dumps(one, separators=(", ", ": ")) for one in objects)


@dataclass(frozen=True, slots=True)
class _Way:
    """How rows were made; see `Row`."""

    versions: dict[str, str]
    driver: str = ""
    timed: str = ""


@dataclass(frozen=True, slots=True)
class _Line:
    """A row as a JSON file states it; see `Row`."""

    problem: dict[str, Any]
    kernel: str
    ties: tuple[str, ...]
    median_us: float
    interval_us: tuple[float, float]
    error: float | None
    measured_at: str
    device: int
    made: int
    ours: str = ""


def _way(row: Row) -> tuple[tuple[tuple[str, str], ...], str, str]:
    return row.versions, row.driver, row.timed


def _stated(row: Row) -> dict[str, Any]:
    return {
        "problem": said(row.problem),
        "kernel": row.kernel,
        "ties": row.ties,
        **({"ours": row.ours} if row.ours else {}),
        "median_us": row.median_us,
        "interval_us": row.interval_us,
        "error": row.error,
        "measured_at": row.measured_at,
    }


def _json_rows(read: bytes, where: str) -> Iterator[tuple[str, Row]]:
    document = parse_json(decoded(read, where), where)
    lists = ("devices", "made", "rows")
    if not isinstance(document, dict) or "schema" not in document:
        raise BadFile(f"{where}: is no table: a table is an object with schema, {', '.join(lists)}")
    _check_schema(document["schema"], where)
    for name in lists:
        if not isinstance(document.get(name), list):
            raise BadFile(f"{where}: its {name} are no list")
    devices = convert(document["devices"], list[Device], f"{where}: devices")
    ways = convert(document["made"], list[_Way], f"{where}: made")
    for number, data in enumerate(document["rows"], 1):
        place = f"{where}: row {number}"
        line = convert(data, _Line, place)
        device = _numbered(devices, line.device, f"{place}: device")
        way = _numbered(ways, line.made, f"{place}: made")
        try:
            row = Row(
                device,
                meant(line.problem, f"{place}: problem"),
                line.kernel,
                line.ties,
                line.median_us,
                line.interval_us,
                line.error,
                line.measured_at,
                tuple(sorted(way.versions.items())),
                way.driver,
                way.timed,
                line.ours,
            )
        except BadArgument as error:
            raise BadFile(f"{place}: {error}") from None
        yield place, row


def _numbered(listed: Sequence[T], number: int, place: str) -> T:
    if 0 <= number < len(listed):
        return listed[number]
    raise BadFile(f"{place}: there is no number {number} among {len(listed)}")


def _check_schema(schema: object, where: str) -> None:
    if type(schema) is not int or schema < 1:
        raise BadFile(f"{where}: its schema is {shown(schema)}, which is no version of tables")
    if schema > SCHEMA:
        raise BadFile(
            f"{where}: its schema is {schema}, made by a newer Tilewright; this one reads up to "
            f"{SCHEMA}"
        )


def is_json(path: Path) -> bool:
    """Whether a JSON file looks like a table rather than anything else in JSON."""
    with suppress(BadFile):
        document = load_json(path)
        return isinstance(document, dict) and {"schema", "made", "rows"} <= document.keys()
    return False


def form(path: Path) -> str:
    if path.suffix not in (COMPACT, JSON):
        raise BadArgument(f"{path}: a table's file ends in {COMPACT} or {JSON}")
    return path.suffix
