"""The report beside shipped tables: their content, and its worth.

    python benchmarks/shipped_report.py benchmarks/results/shipped_h200.json \\
        src/tilewright/tables/shipped/sm_90

The first is what benchmarks/shipped.py wrote; the second a folder of tables, where report.md is
written. Problems are told apart by all but their sizes. Rows whose kernel is another by now than
the one that was compared are counted, and left out of the comparison.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from analytical import ROWS
from shipped import by_m
from tilewright import ops
from tilewright.ops import family_of
from tilewright.ops.conv import ConvProblem
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.library import library_of
from tilewright.tables import file
from tilewright.tables.row import Row, meant, said

RANGES = (*(f"M to {most}" for most in ROWS), f"M over {ROWS[-1]}", "all")
LEAST = 20
SIZES = re.compile(r"[bh]\d+(:\d+)?|\d+×\d+")
"""Batch, heads and lengths, as they are printed."""

STEM_CHANNELS = 4
"""Of a layer that reads images: at most."""

Compared = tuple[Any, dict[str, Any]]
"""A problem, and what the result says of it."""


@cache
def alike(problem: Any) -> str:
    """What a problem has besides its sizes, as it is printed. Of attention the head dim counts as
    none of them; of convolutions only dimensions, direction, type and kind are told; of operations
    that are declared neither sizes, numbers nor strides."""
    if isinstance(problem, ConvProblem):
        words = (f"{len(problem.spatial)}-D", problem.direction, problem.dtype, kind_of(problem))
        return f"conv {' '.join(words)}"
    declared = getattr(ops.family(problem.family), "declared", None)
    if declared is not None:
        sizes = {*declared.sizes, *declared.numbers, *declared.strides}
        return " ".join(word for word in str(problem).split() if word.split("=")[0] not in sizes)
    if not isinstance(problem, GemmProblem):
        return " ".join(word for word in str(problem).split() if not SIZES.fullmatch(word))
    rest = {key: value for key, value in said(problem).items() if key not in ("family", *"mnk")}
    return " ".join(str(GemmProblem(128, 128, 128, **rest)).split()[2:])


def kind_of(p: ConvProblem) -> str:
    """Of a convolution."""
    if p.groups > 1:
        return "depthwise" if p.groups == p.c else "grouped"
    if p.c <= STEM_CHANNELS:
        return "stem"
    return "filter 1" if set(p.filter) == {1} else "dense"


def line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def head(*words: str) -> list[str]:
    return [line(words), "|" + "---|" * len(words)]


def holds(kinds: dict[str, list[Row]]) -> Iterator[str]:
    yield from head("what", "on", "rows", "by finals", "measured")
    for kind, rows in kinds.items():
        for gpu in sorted({row.device.name for row in rows}, reverse=True):
            own = [row for row in rows if row.device.name == gpu]
            finals = sum(json.loads(row.timed).get("take", 0) > 0 for row in own)
            days = sorted({row.measured_at[:10] for row in own})
            when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
            yield line([f"`{kind}`", gpu, len(own), finals, when])


def worth(kinds: dict[str, list[Row]], compared: Sequence[Compared]) -> Iterator[str]:
    yield from head("what", "problems", *RANGES, "faster", "least")
    for kind in kinds:
        yield from worth_of(f"`{kind}`", [one for of, one in compared if alike(of) == kind])
    yield from worth_of("all", [one for _, one in compared])


def built_here(compared: Sequence[Compared]) -> list[Compared]:
    """The comparisons with the best kernel that is built here in place of the library's algorithm.
    Only of kinds with such rows; rows that name no kernel of ours are left out."""
    mixed = {alike(problem) for problem, one in compared if "ours" in one}
    found = []
    for problem, one in compared:
        if "ours" in one:
            found.append((problem, one | {"ratio": one["ours_ratio"]}))
        elif not library_of(family_of(one["kernel"]).parse_name(one["kernel"])):
            found.append((problem, one))
    return [(problem, one) for problem, one in found if alike(problem) in mixed]


def worth_of(words: str, some: Sequence[dict[str, Any]]) -> Iterator[str]:
    if some:
        found = by_m(some)
        means = [f"{found[m]['geomean']:.3f}" if m in found else "" for m in RANGES]
        of_all = found["all"]
        least = f"{of_all['least']:.3f}"
        yield line([words, of_all["problems"], *means, of_all["faster"], least])


def behind(compared: Sequence[Compared]) -> Iterator[str]:
    yield from head("problem", "kernel", "µs", "vendor's µs", "ratio")
    for problem, one in sorted(compared, key=lambda pair: pair[1]["ratio"])[:LEAST]:
        times = f"{one['us']:.1f}", f"{one['vendor_us']:.1f}", f"{one['ratio']:.3f}"
        yield line([problem, f"`{one['kernel']}`", *times])


def report(result: dict[str, Any], rows: Sequence[Row], source: str) -> str:
    kinds: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: alike(row.problem)):
        kinds.setdefault(alike(row.problem), []).append(row)
    environment = result["environment"]
    kernels = {row.problem: row.kernel for row in rows if row.device.name == environment["gpu"]}
    compared = [(meant(one["problem"], source), one) for one in result["problems"]]
    same = [(problem, one) for problem, one in compared if kernels.get(problem) == one["kernel"]]
    own = built_here(same)
    again = [one for part in result.get("again", ()) for one in part["environments"]]
    days = [one["date"][:10] for one in (environment, *again)]
    left_out = {
        **result["left_out"],
        "another kernel by now": len(compared) - len(same),
        "in no table that was compared": len(rows)
        - len(compared)
        - sum(result["left_out"].values()),
    }
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    lines = [
        "# What the shipped tables hold, and what they are worth",
        "",
        "Rows are counted by what problems have besides their sizes, and by GPU. `tilewright tune` "
        "made the tables. *By finals*: how many rows its finals decided; a search found the "
        "others.",
        "",
        *holds(kinds),
        "",
        "The vendor's time over that of the row's kernel, on "
        f"{' and '.join(dict.fromkeys(days))} on {environment['gpu']}: both "
        "verified, then measured anew, in turns, with L2 flushed and in several places of memory. "
        "Above 1, the row's kernel is faster. Geometric means by ranges of M, how many were "
        "faster, and the least:",
        "",
        *worth(kinds, same),
        "",
        *(["By kernels that are built here alone:", "", *worth(kinds, own), ""] if own else []),
        f"Left out: {'; '.join(f'{why}: {n} problems' for why, n in left_out.items() if n)}.",
        "",
        "Behind by most:",
        "",
        *behind(same),
        "",
        f"With {packages}, by `{environment['command']}`. All {len(compared)} comparisons are in "
        f"`benchmarks/results/{source}`; `benchmarks/shipped_report.py` made this page of them.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("tables", type=Path)
    options = parser.parse_args()
    result = json.loads(options.result.read_text())
    rows = [row for path in sorted(options.tables.glob("*.twt")) for row in file.load(path)]
    (options.tables / "report.md").write_text(report(result, rows, options.result.name))


if __name__ == "__main__":
    main()
