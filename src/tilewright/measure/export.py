"""Results as a table: CSV, or Parquet where pyarrow is installed.

The first columns are CK Tile Engine's: kernel, the problem's fields, device, latency_ms, tflops,
non_zero, max_rel, verified. non_zero counts the elements of the verified output that are not zero;
max_rel is the largest error over the rms of the reference. Tilewright's own columns follow. A
problem's field that has the name of another column is called ``problem.<field>``.

Cells are empty where nothing was timed or verified, and where a field is None. A field that is a
list, settings and environment are JSON. In a CSV, an apostrophe stands before text that a
spreadsheet would take for a formula (see `tilewright.cells`).
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from tilewright.cells import guarded
from tilewright.errors import BadArgument, TilewrightError
from tilewright.files import replacing
from tilewright.jsonfile import convert, parse_json
from tilewright.measure.measurement import Measurement, text
from tilewright.measure.results import Results

_NUMBERS = {
    "latency_ms", "tflops", "max_rel", "median_us", "low_us", "high_us", "gb_per_s",
    "within_tolerance", "worst", "max_error", "mean_error", "rms_error", "p99_error",
    "rms_reference", "power_w", "seconds",
}  # fmt: skip
_COUNTS = {
    "non_zero", "samples", "least_clock_mhz", "median_clock_mhz", "temperature_c", "others",
    "attempts",
}  # fmt: skip
_AFTER = (
    "device", "latency_ms", "tflops", "non_zero", "max_rel", "verified",
    "operation", "arch", "status", "reason", "median_us", "low_us", "high_us", "samples",
    "gb_per_s",
    "within_tolerance", "worst", "max_error", "mean_error", "rms_error", "p99_error",
    "rms_reference", "least_clock_mhz", "median_clock_mhz", "temperature_c", "power_w", "throttle",
    "others", "flags", "attempts", "build", "environment", "settings", "measured_at", "seconds",
)  # fmt: skip
_KINDS = {bool: "flag", int: "count", float: "number"}
_OWN = frozenset(("kernel", *_AFTER))
_CHUNK = 10_000


def _title(field: str) -> str:
    """The column of a problem's field."""
    return f"problem.{field}" if field in _OWN else field


def columns(results: Results) -> tuple[str, ...]:
    """The columns of a table of these results: every field of the problems among them, and the
    results' own columns."""
    fields: dict[str, None] = {}
    for said in _stated(results):
        fields |= dict.fromkeys(said)
    fields.pop("family", None)
    # With one kind of problem, the fields keep their order.
    first = next(results.measurements(), None)
    usual = [f for f in asdict(first.problem) if f in fields] if first is not None else []
    return ("kernel", *map(_title, dict.fromkeys([*usual, *fields])), *_AFTER)


def _stated(results: Results) -> Iterator[dict[str, Any]]:
    """The problems, field by field. Raises `BadFile`."""
    where = str(results.path)
    for (said,) in results.rows("SELECT text FROM problem ORDER BY id", tuple[str]):
        yield convert(parse_json(said, where), dict[str, Any], where)


def rows(results: Results) -> Iterator[dict[str, Any]]:
    """Each measurement as a row: values by column, without None."""
    for m in results.measurements():
        yield {name: value for name, value in _row(m).items() if value is not None}


def _row(m: Measurement) -> dict[str, Any]:
    timed, check, seen = bool(m.samples_us), m.check, m.telemetry
    row: dict[str, Any] = {
        "kernel": m.kernel,
        **{
            _title(field): json.dumps(value) if isinstance(value, tuple) else value
            for field, value in asdict(m.problem).items()
        },
        "device": m.device.name,
        "operation": m.problem.family,
        "arch": m.device.arch,
        "status": m.status,
        "reason": m.reason,
        "samples": len(m.samples_us),
        "throttle": " ".join(seen.throttle),
        "others": seen.others,
        "flags": " ".join(m.flags),
        "attempts": m.attempts,
        "build": m.build,
        "environment": text(m.environment),
        "settings": text(m.settings),
        "measured_at": m.measured_at,
        "seconds": m.seconds,
        "temperature_c": seen.temperature_c,
        "power_w": seen.power_w,
    }
    if timed:
        row |= {
            "latency_ms": m.median_us / 1e3,
            "tflops": m.tflops,
            "median_us": m.median_us,
            "low_us": m.interval_us[0],
            "high_us": m.interval_us[1],
            "gb_per_s": m.gb_per_s,
        }
    if check is not None:
        row |= {
            "max_rel": check.max / check.rms_reference if check.rms_reference else None,
            "verified": check.ok,
            "non_zero": check.non_zero,
            "within_tolerance": check.share,
            "worst": check.worst,
            "max_error": check.max,
            "mean_error": check.mean,
            "rms_error": check.rms,
            "p99_error": check.p99,
            "rms_reference": check.rms_reference,
        }
    if seen.clock_mhz is not None:
        row |= {"least_clock_mhz": seen.clock_mhz[0], "median_clock_mhz": seen.clock_mhz[1]}
    return row


def export(results: Results, path: str | os.PathLike[str]) -> int:
    """Write the table to `path`, ``.csv`` or ``.parquet``. Returns its number of rows.

    The file appears whole or not at all. Raises `BadArgument` for another ending, and
    `TilewrightError` if pyarrow is missing for Parquet.
    """
    target = Path(path)
    if target.suffix == ".csv":
        return _csv(results, target)
    if target.suffix == ".parquet":
        return _parquet(results, target)
    raise BadArgument(f"{target}: results are exported as .csv or .parquet")


def _csv(results: Results, target: Path) -> int:
    count = 0
    with replacing(target) as written, _text(written) as file:
        names = columns(results)
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        # Before Python 3.13, csv does not quote a carriage return, where readers end a row.
        quoting = csv.DictWriter(
            file, names, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL
        )
        writer.writeheader()
        for row in rows(results):
            cells = {k: _cell(v) for k, v in row.items()}
            returns = any("\r" in cell for cell in cells.values() if isinstance(cell, str))
            (quoting if returns else writer).writerow(cells)
            count += 1
    return count


@contextmanager
def _text(file: BinaryIO) -> Iterator[TextIO]:
    """An open file as one of UTF-8 text, which is left open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    yield text
    text.detach()  # writes the rest


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return guarded(value) if isinstance(value, str) else value


def _parquet(results: Results, target: Path) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TilewrightError(
            "Parquet needs pyarrow: pip install 'tilewright[parquet]'; CSV needs nothing"
        ) from None
    names = columns(results)
    types = _types(results, names)
    arrow = {"number": pa.float64(), "count": pa.int64(), "flag": pa.bool_(), "text": pa.string()}
    schema = pa.schema([(name, arrow[types[name]]) for name in names])
    count = 0
    with replacing(target) as written, pq.ParquetWriter(written, schema) as writer:
        chunk: list[dict[str, Any]] = []

        def flush() -> None:
            data = {name: [_typed(row.get(name), types[name]) for row in chunk] for name in names}
            writer.write_table(pa.table(data, schema=schema))
            chunk.clear()

        for row in rows(results):
            chunk.append(row)
            count += 1
            if len(chunk) == _CHUNK:
                flush()
        flush()
    return count


def _typed(value: Any, kind: str) -> Any:
    """A value for a column of Parquet: text if the field has values of several kinds."""
    if kind != "text" or value is None or isinstance(value, str):
        return value
    return str(_cell(value))


def _types(results: Results, names: tuple[str, ...]) -> dict[str, str]:
    """The kind of each column's cells. A problem's field is text if its values are of several
    kinds. Whole numbers and other numbers together are numbers; None has no kind."""
    found = dict.fromkeys(names, "text")
    found |= dict.fromkeys(_NUMBERS, "number") | dict.fromkeys(_COUNTS, "count")
    found["verified"] = "flag"
    kinds: dict[str, set[str]] = {}
    for stated in _stated(results):
        for field, value in stated.items():
            if value is not None:
                kinds.setdefault(_title(field), set()).add(_KINDS.get(type(value), "text"))
    for column, said in kinds.items():
        if said == {"count", "number"}:
            said.discard("count")
        if column in found and len(said) == 1:
            found[column] = said.pop()
    return found
