"""Tables' kernels against the vendor's library, measured anew, by table and ranges of M.

    python benchmarks/shipped.py TABLE... --keep DIR --json benchmarks/results/shipped_h200.json

Each row's winner and the vendor's call take turns in one worker, verified first, as a sweep
measures, in several places of memory; not the times by which the winner was chosen, of which it is
the least. Rows of other devices, and problems that the vendor's library has no call for, are
counted and left out. Where a row's winner is an algorithm of the vendor's library, the best kernel
that is built here (`Row.ours`) takes turns too. With `--method graph`, calls are timed in replayed
CUDA graphs over copies of the operands (`Settings`). A ratio is the vendor's time over the
winner's, by rounds (`tilewright.tune.finals`): above 1, the winner is faster. A run that is stopped
tells what it has, and goes on there. `all`: of all tables together, each problem counting once for
each table that has it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from analytical import by_rows
from environment import environment
from tilewright import ops
from tilewright.compile import Store
from tilewright.jsonfile import convert
from tilewright.measure.groups import groups
from tilewright.measure.measurement import METHODS, Settings
from tilewright.measure.progress import show_measuring
from tilewright.measure.results import Results
from tilewright.measure.statistics import midmean, ratios
from tilewright.measure.sweep import plan_some, sweep
from tilewright.measure.vendor import VENDOR, is_vendor
from tilewright.tables import file
from tilewright.tables.row import Row, said
from tilewright.tune.tuner import FINAL


def of_all(ratios: Sequence[float]) -> dict[str, Any]:
    return {
        "problems": len(ratios),
        "geomean": geometric_mean(ratios),
        "least": min(ratios),
        "faster": sum(ratio > 1 for ratio in ratios),
    }


def by_m(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ranges = {"all": rows, **by_rows(rows, lambda row: row["m"])}
    return {words: of_all([row["ratio"] for row in some]) for words, some in ranges.items() if some}


def written(document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """As JSON, each problem in one line."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{json.dumps(document, indent=1)[:-2]},\n "problems": [\n{lines}\n ]\n}}\n'


def timed(row: Row) -> list[str]:
    """The kernels of a row that are measured."""
    return [row.kernel, row.ours] if row.ours else [row.kernel]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--devices", default="all")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--method", choices=[*METHODS], default="single")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # A race of one: the vendor's call, which is beside it, does not leave before.
    settings = Settings(
        warm_up_seconds=0.03, budget_seconds=0.3, race=1.0, places=FINAL.places, take=1
    )
    settings = convert({**asdict(settings), **METHODS[options.method]}, Settings, "settings")
    store, tables = Store(options.store), {path.stem: file.load(path) for path in options.tables}
    found, crew = groups(options.devices, store, settings, timeout=60.0)
    wanted = []
    for group in found:
        here = [row for table in tables.values() for row in table if row.device == group.device]
        pairs = [(r.problem, [ops.family_of(k).parse_name(k) for k in timed(r)]) for r in here]
        wanted.append((group, pairs))
    with Results(options.keep, write=True) as results:
        todo = plan_some(wanted, settings, results.keys(), vendor=True)
        with suppress(KeyboardInterrupt):
            sweep(todo, results, store, crew, measuring=show_measuring)
        taken: dict[Any, dict[str, Sequence[float]]] = {}
        for m in results.measurements("status = 'ok'"):
            if m.settings != settings:
                continue  # the other method's
            name = VENDOR if is_vendor(m.kernel) else m.kernel
            taken.setdefault(m.problem, {})[name] = m.samples_us
    rows = []
    missing: Counter[str] = Counter()
    for name, table in tables.items():
        for row in table:
            times = taken.get(row.problem, {})
            us, vendor_us = times.get(row.kernel), times.get(VENDOR)
            if us is None or vendor_us is None:
                missing["not measured" if us is None else "no vendor's call"] += 1
                continue
            found_row = {
                "table": name,
                "problem": said(row.problem),
                "m": row.problem.m,
                "kernel": row.kernel,
                "us": median(us),
                "vendor_us": median(vendor_us),
                "ratio": midmean(ratios(vendor_us, us)),
            }
            if ours_us := times.get(row.ours):
                ratio = midmean(ratios(vendor_us, ours_us))
                found_row |= {"ours": row.ours, "ours_us": median(ours_us), "ours_ratio": ratio}
            rows.append(found_row)
    rows.sort(key=lambda row: (row["table"], row["m"]))
    document: dict[str, Any] = {
        "environment": environment(),
        "settings": asdict(settings),
        "rows": {name: len(table) for name, table in tables.items()},
        "left_out": missing,
        "ratio": {
            name: by_m([row for row in rows if name in ("all", row["table"])])
            for name in ("all", *tables)
        },
    }
    print(json.dumps(document, indent=1))
    if options.json:
        options.json.write_text(written(document, rows))


if __name__ == "__main__":
    main()
