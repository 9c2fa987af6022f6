"""What models learn from: for each problem the times of several kernels, those that lost included.

They are read from directories of sweeps and tunings, and from Parquet files, which hold the same in
one file with its provenance: a row for each kernel on each problem, with device, versions, driver,
way of timing, number of samples, status and time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import checks, ops
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile, TilewrightError, UnknownName
from tilewright.files import replacing
from tilewright.jsonfile import convert, parse_json
from tilewright.measure.measurement import Environment, Settings, digest
from tilewright.measure.results import Results
from tilewright.measure.vendor import is_vendor
from tilewright.ops.library import library_of
from tilewright.tables.row import meant, said

PARQUET = ".parquet"
SCHEMA = b"1"
_KEY = b"tilewright_matrix"
COLUMNS = (
    "problem", "kernel", "build", "device", "versions", "driver", "settings", "status", "us",
    "low_us", "high_us", "samples", "measured_at",
)  # fmt: skip
LEAST = 2
"""Fewer kernels of a problem teach nothing of their order."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A kernel on a problem. us: the median; None if it was not timed. interval_us: the median's
    confidence interval. samples: how many, without the first runs, which warm up."""

    problem: Any
    kernel: str
    build: str
    device: Device
    environment: Environment
    settings: Settings
    status: str
    us: float | None
    interval_us: tuple[float, float]
    samples: int
    measured_at: str


@dataclass(frozen=True, slots=True)
class Block:
    """The kernels of one problem on one device, measured in one way.

    us: microseconds of each config.
    """

    problem: Any
    device: Device
    environment: Environment
    settings: Settings
    us: Mapping[Any, float]

    @property
    def best_us(self) -> float:
        """The oracle's: the least time measured."""
        return min(self.us.values())


def read(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Cell]:
    """Every cell of directories and Parquet files. Raises `BadFile`."""
    for path in map(Path, paths):
        if path.is_file() and path.suffix != PARQUET:
            raise BadFile(f"{path}: measurements are in a directory or in a {PARQUET} file")
        yield from _parquet(path) if path.suffix == PARQUET else _directory(path)


def newest(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Cell]:
    """As `read`, but a problem that was timed in several of `paths`, on one device, has the cells
    of the last of these alone. Clocks and memory differ from run to run: of kernels timed in two
    runs, the fastest may have had the better run. Raises `BadFile`."""
    found = [[*read([path])] for path in paths]
    last = {
        (cell.problem, cell.device): number
        for number, cells in enumerate(found)
        for cell in cells
        if cell.us is not None
    }
    for number, cells in enumerate(found):
        for cell in cells:
            if last.get((cell.problem, cell.device), number) == number:
                yield cell


def blocks(cells: Iterable[Cell]) -> list[Block]:
    """The cells that were timed on GPUs, of kernels that are built here and still exist, by problem
    and device. Where a problem was measured in several ways, the way with the most kernels counts:
    times of two ways are not compared."""
    found: dict[tuple[Any, Device], dict[tuple[Environment, Settings], dict[Any, float]]] = {}
    for cell in cells:
        if cell.us is None or is_vendor(cell.kernel) or cell.device.interpreted:
            continue
        config = _config(cell.kernel)
        if config is None or library_of(config):
            continue
        ways = found.setdefault((cell.problem, cell.device), {})
        ways.setdefault((cell.environment, cell.settings), {})[config] = cell.us
    made = []
    for (problem, device), ways in found.items():
        (environment, settings), us = max(ways.items(), key=lambda way: len(way[1]))
        if len(us) >= LEAST:
            made.append(Block(problem, device, environment, settings, us))
    return made


@cache
def _config(name: str) -> Any:
    try:
        return ops.family_of(name).parse_name(name)
    except UnknownName:
        return None


def _directory(folder: Path) -> Iterator[Cell]:
    with Results(folder) as results:
        for m in results.measurements():
            yield Cell(
                m.problem,
                m.kernel,
                m.build,
                m.device,
                m.environment,
                m.settings,
                m.status,
                m.median_us if m.samples_us and m.status == "ok" else None,
                m.interval_us,
                len(m.samples_us),
                m.measured_at,
            )


# --- Parquet ----------------------------------------------------------------------------------


def write(cells: Iterable[Cell], path: str | os.PathLike[str], commit: str = "") -> int:
    """Write cells to a Parquet file, whole or not at all. Returns their number.

    commit: of the kernels, where it is known.

    Raises `BadArgument` for a path that cannot be written, and `TilewrightError` without pyarrow.
    """
    pa, pq = _arrow()
    rows = [_row(cell) for cell in cells]
    types = {"us": pa.float64(), "low_us": pa.float64(), "high_us": pa.float64()}
    types |= {"samples": pa.int64()}
    schema = pa.schema(
        [(name, types.get(name, pa.string())) for name in COLUMNS],
        {_KEY: SCHEMA, b"commit": commit.encode()},
    )
    table = pa.Table.from_pylist(rows, schema)
    try:
        with replacing(Path(path)) as file:
            pq.write_table(table, file, compression="zstd")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadArgument(f"{path} cannot be written: {why}") from error
    return len(rows)


def commit_of(path: str | os.PathLike[str]) -> str:
    """The commit that a Parquet file says; ``""`` of a directory, and where it is not known."""
    if Path(path).suffix != PARQUET:
        return ""
    return str(_opened(Path(path)).schema_arrow.metadata.get(b"commit", b"").decode())


def _row(cell: Cell) -> dict[str, Any]:
    return {
        "problem": _problem_text(cell.problem),
        "kernel": cell.kernel,
        "build": cell.build,
        "device": _text(cell.device),
        "versions": json.dumps(dict(cell.environment.versions), sort_keys=True),
        "driver": cell.environment.driver,
        "settings": _text(cell.settings),
        "status": cell.status,
        "us": cell.us,
        "low_us": cell.interval_us[0],
        "high_us": cell.interval_us[1],
        "samples": cell.samples,
        "measured_at": cell.measured_at,
    }


@cache
def _problem_text(problem: Any) -> str:
    return json.dumps(said(problem), sort_keys=True)


def mark(problem: Any) -> str:
    """Tells a problem from others."""
    return hashlib.sha256(_problem_text(problem).encode()).hexdigest()[:10]


@cache
def _text(noun: Any) -> str:
    return json.dumps(asdict(noun), sort_keys=True)


def _parquet(path: Path) -> Iterator[Cell]:
    where = str(path)
    made: dict[tuple[str, str], Any] = {}

    def noun(kind: str, text: str) -> Any:
        """What a cell's JSON states; equal texts are read once."""
        if (kind, text) not in made:
            data = parse_json(text, f"{where}: {kind}")
            if kind == "problem":
                made[kind, text] = meant(data, f"{where}: problem")
            elif kind == "versions":
                versions = convert(data, dict[str, str], f"{where}: versions")
                made[kind, text] = tuple(sorted(versions.items()))
            else:
                of: Any = {"device": Device, "settings": Settings}[kind]
                made[kind, text] = convert(data, of, f"{where}: {kind}")
        return made[kind, text]

    opened = _opened(path)
    try:
        batches = [batch.to_pylist() for batch in opened.iter_batches(columns=[*COLUMNS])]
    except Exception as error:  # pyarrow's errors have no common base that is its own
        raise BadFile(f"{where}: is damaged: {error}") from error
    for number, row in enumerate(row for batch in batches for row in batch):
        place = f"{where}: row {number + 1}"
        if any(not isinstance(row[name], str) for name in COLUMNS if name not in _NUMBERS):
            raise BadFile(f"{place}: a text is missing")
        us = row["us"]
        if us is not None:
            try:
                checks.microseconds("us", us)
            except BadArgument as error:
                raise BadFile(f"{place}: {error}") from None
        yield Cell(
            noun("problem", row["problem"]),
            row["kernel"],
            row["build"],
            noun("device", row["device"]),
            Environment(noun("versions", row["versions"]), row["driver"]),
            noun("settings", row["settings"]),
            row["status"],
            us,
            (row["low_us"] or 0.0, row["high_us"] or 0.0),
            row["samples"] or 0,
            row["measured_at"],
        )


_NUMBERS = ("us", "low_us", "high_us", "samples")


def _opened(path: Path) -> Any:
    pa, pq = _arrow()
    try:
        opened = pq.ParquetFile(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadFile(f"{path}: cannot be read: {error}") from error
    if (opened.schema_arrow.metadata or {}).get(_KEY) != SCHEMA:
        raise BadFile(f"{path}: is no matrix of measurements of version {SCHEMA.decode()}")
    if missing := [name for name in COLUMNS if name not in opened.schema_arrow.names]:
        raise BadFile(f"{path}: has no column {', '.join(missing)}")
    return opened


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TilewrightError("Parquet needs pyarrow: pip install 'tilewright[learn]'") from None
    return pa, pq


def by_lesson(found: Sequence[Block]) -> dict[str, list[Block]]:
    """Blocks by the class of their problems, in the order of the classes' names."""
    lessons: dict[str, list[Block]] = {}
    for block in found:
        lesson = ops.family(block.problem.family).lesson(block.problem)
        lessons.setdefault(lesson, []).append(block)
    return dict(sorted(lessons.items()))


def provenance(found: Sequence[Block]) -> dict[str, Any]:
    """Where blocks come from, as plain data: devices, ways of timing, versions."""
    return {
        "devices": sorted({block.device.name for block in found}),
        "settings": sorted({digest(block.settings) for block in found}),
        "timers": sorted({f"{b.settings.timer}, {b.settings.cache} L2" for b in found}),
        "drivers": sorted({block.environment.driver for block in found}),
        "problems": len(found),
        "cells": sum(len(block.us) for block in found),
    }
