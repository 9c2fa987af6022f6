"""Tables of a run of declared operations, with the share of the copy bandwidth that each reached.

    python benchmarks/run.py 'declared-*' --json results.json.xz
    python benchmarks/declared_report.py results.json.xz [--json lines.json]

A line is a problem, by one way of timing. GB/s are the bytes that the problem must move at least,
over our time. The share is the time of a copy that reads and writes as many bytes, in the same
rounds, over our time. Times are medians of the rounds that report (`comparison`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import cases
import rivals
import rivals_declared
import rivals_library
from comparison import Row, Way, halves
from declared_cases import PREFIX, PUBLISHED
from run_file import restored, whole


@dataclass(frozen=True, slots=True)
class Line:
    """One problem, by one way of timing.

    shape: the problem's fields without its element type.
    ours_us, eager_us, compiled_us, library_us, copy_us: medians; None for what was not timed.
    ratio: the fastest of the first three of these rivals, over ours.
    gb_s: bytes of the problem over our time, in 10⁹ bytes a second.
    share: our share of the copy bandwidth.
    verified: how ours and torch's were held to the reference: ``yes``, or what was left out, why.
    """

    case: str
    operation: str
    shape: str
    dtype: str
    way: Way
    ours_us: float
    eager_us: float | None
    compiled_us: float | None
    library_us: float | None
    copy_us: float | None
    ratio: float | None
    gb_s: float
    share: float | None
    verified: str


def lines(said: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of the file of a run. Raises `SystemExit` for a problem that its case has no more:
    the file is of another commit."""
    every = cases.every()
    for name, report in said["cases"].items():
        if not name.startswith((PREFIX, PUBLISHED)):
            continue
        stated = {str(p): p for p in every[name].problems()} if name in every else {}
        for document in report["rows"]:
            row = restored(document)
            if row.problem not in stated:
                raise SystemExit(f"{name} has no problem {row.problem} here: check out its commit")
            for way in row.samples:
                yield _line(name, stated[row.problem], row, way)


def _line(case: str, problem: Any, row: Row, way: Way) -> Line:
    _, reporting = halves(row.samples[way])
    us = {name: statistics.median(taken) for name, taken in reporting.items()}
    ours = row.ratio(way, "ours")
    assert ours  # a row has a kernel of ours and a call of torch's, or there is none
    operation, *words = str(problem).split()
    copied = us.get(rivals.COPY)
    return Line(
        case,
        operation,
        " ".join(word for word in words if not word.startswith("dtype=")),
        getattr(problem, "dtype", ""),
        way,
        ours.us,
        us.get(rivals_declared.EAGER),
        us.get(rivals_declared.COMPILED),
        us.get(rivals_library.NATIVE, us.get(rivals_library.CUDNN)),
        copied,
        ours.ratio,
        problem.min_bytes / ours.us / 1e3,
        copied / ours.us if copied else None,
        "; ".join(f"{name}: {why}" for name, why in row.wrong.items()) or "yes",
    )


def table(found: list[Line]) -> str:
    """The lines as a table in Markdown."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.3f}" if value < 10 else f"{value:.1f}"
        return "–" if value is None else str(value).replace("|", "/")

    names = [one.name for one in fields(Line)]
    rows = [names, ["---"] * len(names), *([cell(getattr(x, n)) for n in names] for x in found)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="what run.py --json wrote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the lines as JSON")
    options = parser.parse_args()
    said = whole(options.file)
    found = [*lines(said)]
    print(table(found), end="")
    if options.json:
        about = {"environment": said["environment"], "lines": [*map(asdict, found)]}
        options.json.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
