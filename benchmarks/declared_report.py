"""Tables of a run of declared operations, with the share of the copy bandwidth that each reached.

    python benchmarks/run.py 'declared-*' --json results.json.xz
    python benchmarks/declared_report.py results.json.xz… [--json lines.json]
    python benchmarks/declared_report.py benchmarks/results/operations_bounds_h200.json

A line is a problem, by one way of timing. GB/s are the bytes that the problem must move at least,
over our time. The share is the time of a copy that reads and writes as many bytes, in the same
rounds, over our time. Times are medians of the rounds that report (`comparison`).

Behind the lines: how far ahead of `torch.compile` any kernel could be. A kernel moves each byte of
its operands once, so of what exceeds L2, which single calls find empty, none takes less than these
bytes over the bandwidth of the data sheet; and none is known to move them faster than a copy does,
or the fastest of the kernels that were timed, whichever was faster. `torch.compile`'s time over
either is the largest ratio that there is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import cases
import rivals
import rivals_declared
import rivals_library
from comparison import Row, Way, halves
from declared_cases import L2_BYTES, PREFIX, PUBLISHED
from run_file import restored, whole
from tilewright.arch import device

MULTIPLY = ("hstu_attention", "hstu_attention_backward")
"""Operations that memory does not limit."""
ENOUGH = 0.9
"""Of the copy bandwidth, as is asked of operations whose operands exceed L2."""


@dataclass(frozen=True, slots=True)
class Line:
    """One problem, by one way of timing.

    shape: the problem's fields without its element type.
    ours_us, eager_us, compiled_us, library_us, copy_us: medians; None for what was not timed.
    ratio: the fastest of the first three of these rivals, over ours.
    bytes: what the problem moves at least.
    gb_s: these over our time, in 10⁹ bytes a second.
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
    bytes: int
    gb_s: float
    share: float | None
    verified: str


def lines(said: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of the file of a run. Raises `SystemExit` for a problem that its case has no more:
    the file is of another commit."""
    for name, report in said["cases"].items():
        if name.startswith((PREFIX, PUBLISHED)):
            stated = _stated(name)
            for document in report["rows"]:
                row = restored(document)
                for way in row.samples:
                    yield _line(name, stated(row.problem), row, way)


def _stated(case: str) -> Callable[[str], Any]:
    """What finds a case's problem by what is written of it."""
    every = cases.every()
    stated = {str(p): p for p in every[case].problems()} if case in every else {}

    def found(problem: str) -> Any:
        if problem not in stated:
            raise SystemExit(f"{case} has no problem {problem} here: check out its commit")
        return stated[problem]

    return found


def recorded(said: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of a file of `benchmarks/results` that keeps medians alone."""
    for name, found in said["us"].items():
        stated = _stated(name)
        for problem, row in found.items():
            for way in ("calls", "graphs"):
                us = row[way]
                others = [us.get(rivals_declared.EAGER), us.get(rivals_declared.COMPILED)]
                others.append(us.get(rivals_library.NATIVE, us.get(rivals_library.CUDNN)))
                fastest = min((one for one in others if one), default=None)
                yield _of(
                    name,
                    stated(problem),
                    way,
                    us["ours"],
                    others,
                    us.get(rivals.COPY),
                    fastest and fastest / us["ours"],
                    "yes",
                )


def _line(case: str, problem: Any, row: Row, way: Way) -> Line:
    _, reporting = halves(row.samples[way])
    us = {name: statistics.median(taken) for name, taken in reporting.items()}
    ours = row.ratio(way, "ours")
    assert ours  # a row has a kernel of ours and a call of torch's, or there is none
    others = [us.get(rivals_declared.EAGER), us.get(rivals_declared.COMPILED)]
    others.append(us.get(rivals_library.NATIVE, us.get(rivals_library.CUDNN)))
    verified = "; ".join(f"{name}: {why}" for name, why in row.wrong.items()) or "yes"
    return _of(case, problem, way, ours.us, others, us.get(rivals.COPY), ours.ratio, verified)


def _of(
    case: str, problem: Any, way: Way, ours: float, others: Sequence[float | None],
    copied: float | None, ratio: float | None, verified: str,
) -> Line:  # fmt: skip
    """others: of torch, `torch.compile` and a library."""
    operation, *words = str(problem).split()
    return Line(
        case,
        operation,
        " ".join(word for word in words if not word.startswith("dtype=")),
        getattr(problem, "dtype", ""),
        way,
        ours,
        *others,
        copied,
        ratio,
        problem.min_bytes,
        problem.min_bytes / ours / 1e3,
        copied / ours if copied else None,
        verified,
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """What there was to gain over `torch.compile`, on some problems, by one way of timing. Ratios
    are geometric means of its time over another.

    problems: which: ``all``, or those that exceed L2.
    count: how many of them.
    ratio: over ours.
    least: the least of these.
    under: how many are under 1.
    by_copy: over the fastest that moved as many bytes: a copy, or a kernel of the problem.
    by_sheet: over the bytes at the bandwidth of the data sheet; None where operands may be in L2.
    share: the mean share of the copy bandwidth that ours reached.
    compiled_share: the same of `torch.compile`.
    enough: how many of ours reached 0.9 of it.
    """

    problems: str
    way: Way
    count: int
    ratio: float
    least: float
    under: int
    by_copy: float
    by_sheet: float | None
    share: float
    compiled_share: float
    enough: int


def bounds(found: Sequence[Line]) -> Iterator[Bound]:
    """Of the lines that have both `torch.compile` and a copy, but those of `MULTIPLY`: of all, and
    of those over L2."""
    for way in dict.fromkeys(line.way for line in found):
        some = [x for x in found if x.way == way and x.operation not in MULTIPLY]
        both = [x for x in some if x.compiled_us and x.copy_us]
        large = [x for x in both if x.bytes > L2_BYTES]
        for problems, some in (("all", both), ("over L2", large)):
            if some:
                yield _bound(problems, way, some)


def _bound(problems: str, way: Way, some: Sequence[Line]) -> Bound:
    def mean(values: Sequence[float]) -> float:
        return statistics.geometric_mean(values)

    compiled = [x.compiled_us or 0.0 for x in some]
    copies = [x.copy_us or 0.0 for x in some]
    timed = [min(n for n in (x.ours_us, x.compiled_us, x.copy_us) if n) for x in some]
    sheet = device("h200_sxm").bandwidth_gbs * 1e3
    moved = [max(1, x.bytes) / sheet for x in some]
    ratios = [c / x.ours_us for c, x in zip(compiled, some, strict=True)]
    cold = way == "calls" and problems != "all"
    return Bound(
        problems,
        way,
        len(some),
        mean(ratios),
        min(ratios),
        sum(ratio < 1 for ratio in ratios),
        mean([c / t for c, t in zip(compiled, timed, strict=True)]),
        mean([c / m for c, m in zip(compiled, moved, strict=True)]) if cold else None,
        mean([c / x.ours_us for c, x in zip(copies, some, strict=True)]),
        mean([c / other for c, other in zip(copies, compiled, strict=True)]),
        sum(c / x.ours_us >= ENOUGH for c, x in zip(copies, some, strict=True)),
    )


def table(found: Sequence[Line] | Sequence[Bound]) -> str:
    """Lines or bounds as a table in Markdown; "" for none."""
    if not found:
        return ""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.3f}" if value < 10 else f"{value:.1f}"
        return "–" if value is None else str(value).replace("|", "/")

    names = [one.name for one in fields(found[0])]
    rows = [names, ["---"] * len(names), *([cell(getattr(x, n)) for n in names] for x in found)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="+", help="what run.py --json wrote, or recorded")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the lines as JSON")
    options = parser.parse_args()
    runs = [whole(path) for path in options.files]
    found = [x for said in runs for x in (recorded(said) if "us" in said else lines(said))]
    limits = [*bounds(found)]
    print(table(found), table(limits), sep="\n", end="")
    if options.json:
        about = {
            "environments": [said.get("environment", said.get("environments")) for said in runs],
            "lines": [*map(asdict, found)],
            "bounds": [*map(asdict, limits)],
        }
        options.json.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
