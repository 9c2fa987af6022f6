"""What tuning made of the layers of `conv:full` on an H200, in all directions, from its record.

    python benchmarks/conv_tuned.py
    python benchmarks/conv_tuned.py --slowest 20

Needs no GPU. The record (conv_tuned_h200.json) has for each layer the shipped row's kernel and
time, cuDNN's in benchmark mode, the best kernel that is built here (`ours`, where the row's is an
algorithm of cuBLASLt), the kernel that the estimate chooses, and the first algorithm that cuBLASLt
offers where the layer is a product of matrices. It prints, by direction and kind of layer: cuDNN's
time over that of the row, of `ours`, and of the estimate's choice (geometric mean; of the row also
P10, the least, and how many are under 0.90). Then, of products, that algorithm's time over that of
the estimate's choice, and `library_record.RECORD` as these give it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.ops.conv import ConvProblem, library_record
from tilewright.ops.conv.library_record import LONG, Lying, Recorded, lying
from tilewright.ops.conv.product import product
from tilewright.tables import file, named

RECORD = Path(__file__).parent / "results" / "conv_tuned_h200.json"
STEM, DENSE = 4, 64
"""Most channels of a stem; least of what is asked of dense layers."""


def layers() -> list[tuple[ConvProblem, dict[str, Any]]]:
    """Each problem of the record, with its row."""
    known = {str(row.problem): row.problem for row in file.load(named.file_of("shipped:conv_bf16"))}
    return [(known[row["problem"]], row) for row in json.loads(RECORD.read_text())["rows"]]


def kinds(p: ConvProblem) -> Iterable[str]:
    """The groups of layers that a problem is in."""
    yield "all"
    if p.depthwise:
        yield "depthwise"
    elif p.groups > 1:
        yield "grouped"
    elif min(p.c, p.k) <= STEM:
        yield "stem"
    else:
        yield "1x1" if p.taps == 1 else "dense"
    if p.groups == 1 and min(p.c, p.k) >= DENSE:
        yield f"{DENSE} channels and more"


def mean(ratios: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summary() -> Iterable[str]:
    found: dict[tuple[str, str], list[tuple[ConvProblem, dict[str, Any]]]] = defaultdict(list)
    for p, row in layers():
        if row["vendor_us"]:
            for kind in kinds(p):
                found[p.direction, kind].append((p, row))
    yield f"{'':30} layers  tuned    P10  least  <0.90   ours  untuned"
    for direction, kind in sorted(found):
        rows = [row for _, row in found[direction, kind]]
        tuned = sorted(row["vendor_us"] / row["us"] for row in rows)
        ours = mean(row["vendor_us"] / row.get("ours_us", row["us"]) for row in rows)
        guessed = mean(row["vendor_us"] / row["untuned_us"] for row in rows if "untuned_us" in row)
        p10, behind = tuned[len(rows) // 10], sum(ratio < 0.9 for ratio in tuned)
        yield (
            f"{direction:8} {kind:21} {len(rows):6} {mean(tuned):6.3f} {p10:6.3f} {tuned[0]:6.3f} "
            f"{behind:6} {ours:6.3f}  {guessed:6.3f}"
        )


Class = tuple[str, Lying, bool]
"""Direction, how rows lie, and whether the sum is long."""


def recorded() -> dict[Class, list[float]]:
    """The library's first algorithm's time over that of the estimate's choice."""
    found: dict[Class, list[float]] = defaultdict(list)
    for p, row in layers():
        of = product(p)
        timed = "library_us" in row and "untuned_us" in row and library_record.timed(p)
        if timed and not isinstance(of, str) and of.batching == "none":
            ratio = row["library_us"] / row["untuned_us"]
            found[p.direction, lying(of), of.k >= LONG].append(ratio)
    return found


def counted(every: dict[Class, list[float]]) -> Iterable[Recorded]:
    """`library_record.RECORD` with the record's counts and means."""
    for one in library_record.RECORD:
        longs = (True,) if one.least_k >= LONG else (False, True)
        ratios = [r for long in longs for r in every[one.direction, one.lying, long]]
        yield replace(one, products=len(ratios), share=round(mean(ratios), 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slowest", type=int, default=0, help="also the N slowest beside cuDNN")
    args = parser.parse_args()
    print(*summary(), sep="\n")
    behind = sorted(
        (row["vendor_us"] / row["us"], str(p), row) for p, row in layers() if row["vendor_us"]
    )
    for ratio, problem, row in behind[: args.slowest]:
        print(f"{ratio:.3f} {row['us']:9.2f} us  {problem}  {row['kernel']}")
    every = recorded()
    for (direction, lies, long), ratios in sorted(every.items()):
        sums = f"sums from {LONG}" if long else "shorter sums"
        print(f"{direction:8} {lies:7} {sums:15} {len(ratios):4} {mean(ratios):.3f}")
    print(*counted(every), sep="\n")


if __name__ == "__main__":
    main()
