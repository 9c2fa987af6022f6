"""What a dispatcher chooses without a table, over recorded times of kernels and of torch.mm.

    python benchmarks/untuned.py --json benchmarks/results/untuned_h200.json

Needs no GPU. Of each plain bf16 and fp16 product in the record (shipped_h200.json, which
`shipped.py` wrote) the default space is ranked again. The kernel ranked first is *proven* if the
shipped table names it as the best kernel that is built here, or as one that cannot be told from the
best. Then its time is the best one's. Else it is slower by an unknown share, of which the record
says only that it is more than the noise: the ratios take `--unproven` for it.

By ranges of M: how many first kernels are proven, and how many sizes have a proven kernel in their
default space; then torch.mm's time over that of the choice (geometric mean, P10 and the least),
before `library_record` may answer with the library's first algorithm, and with it. The library's
first algorithm counts as torch.mm, which takes it. Last, the counts and means of
`library_record.RECORD`, `RESULT_ASKEW`, `FP8_ROWS_ASKEW` and the class of few rows in `ASKEW`, from
products that no table has (`UNSEEN`, `SHORT_SUMS`, `GRADIENTS`), timed by single calls: of the best
kernel by estimate there. The other classes of `ASKEW` are counted from `gemm_askew_h200.json`,
`FP8_ROWS` and `FP8_BLOCKS` from the record, of the best kernel that is built here.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cases.gemm_unseen import fp8_rows
from environment import environment
from tilewright.arch import arch, device
from tilewright.arch.model import Arch, Device
from tilewright.jsonfile import convert
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, library_record
from tilewright.ops.library import library_of
from tilewright.tables import file, named
from tilewright.tables.row import Row

RESULTS = Path(__file__).parent / "results"
RECORD = RESULTS / "shipped_h200.json"
UNSEEN = (
    RESULTS / "gemm_unseen_h100.json",
    RESULTS / "gemm_unseen_2_h100.json",
    RESULTS / "gemm_unseen_3_h200.json",
    RESULTS / "gemm_unseen_4_h200.json",
    RESULTS / "gemm_unseen_5_h200.json",
    RESULTS / "gemm_narrow_h200.json",
)
SHORT_SUMS = RESULTS / "gemm_askew_result_h200.json"
"""Products drawn for `library_record.RESULT_ASKEW`; the other classes are not counted from them."""
GRADIENTS = RESULTS / "gemm_gradients_h200.json"
"""Products of layers' gradients, in layouts rrr and crr."""
ASKEW = RESULTS / "gemm_askew_h200.json"
"""Products drawn for `library_record.ASKEW`, each with the best of up to 15 kernels."""
FP8_ROWS = (
    RESULTS / "gemm_unseen_fp8_rows_h200.json",
    RESULTS / "gemm_unseen_fp8_rows_1_h200.json",
)
FP8_TABLES = ("gemm_fp8_rows", "gemm_fp8_block")
COUNTED = (
    *library_record.RECORD,
    *(known for known in library_record.ASKEW if known.most_m <= 16),
    *library_record.RESULT_ASKEW,
    *library_record.RRR,
    *library_record.RRR_ASKEW,
    *library_record.CRR_ASKEW,
    *library_record.FP8_ROWS_ASKEW,
)
"""Classes counted from the estimate's choices."""
COUNTED_ASKEW = tuple(known for known in library_record.ASKEW if known not in COUNTED)
"""Classes counted from the best kernels of products drawn for them."""
COUNTED_BEST = (*library_record.FP8_ROWS, *library_record.FP8_BLOCKS)
"""Classes counted from the best kernels of tables."""
TABLES = ("gemm_bf16", "gemm_fp16")
BANDS = ((1, 16), (17, 64), (65, 512), (513, 2048), (2049, 1 << 62))


@dataclass(frozen=True, slots=True)
class Product:
    """One recorded product.

    first: the kernel ranked first. proven: whether the table names it. provable: whether the table
        names any kernel of the default space.
    best: torch.mm's time over that of the best kernel that is built here.
    library: whether the library's first algorithm is taken.
    """

    problem: GemmProblem
    first: GemmConfig
    proven: bool
    provable: bool
    best: float
    library: bool


def built_here(row: Row) -> Iterable[Any]:
    """The best kernels of a row, without algorithms of the library, as `told` tells them apart."""
    best = (row.ours,) if row.ours else (row.kernel, *row.ties)
    return (told(config) for config in map(FAMILY.parse_name, best) if not library_of(config))


def told(config: Any) -> Any:
    """Whether a kernel waits for the one before it does not show in the record's single calls."""
    return replace(config, dependent_launch="none")


def problem_of(recorded: dict[str, Any]) -> GemmProblem:
    fields = {name: value for name, value in recorded["problem"].items() if name != "family"}
    return convert(fields, GemmProblem, "problem")


def products(this: Arch, gpu: Device) -> Iterable[Product]:
    names: dict[str, dict[Any, set[Any]]] = {}
    expanded: dict[Any, Any] = {}
    for table in TABLES:
        rows = file.load(named.FOLDER / this.name / f"{table}.twt")
        names[table] = {row.problem: {*built_here(row)} for row in rows}
    for one in json.loads(RECORD.read_text())["problems"]:
        if one["table"] not in names:
            continue
        problem = problem_of(one)
        space = FAMILY.default_space(problem, this)
        if space.key not in expanded:
            expanded[space.key] = space.expand(this).configs
        usable = [c for c in expanded[space.key] if FAMILY.supports(c, problem, this)]
        first = FAMILY.rank(problem, usable, gpu)[0][0]
        assert isinstance(first, GemmConfig)
        known = names[one["table"]].get(FAMILY.tuning_key(problem), set())
        yield Product(
            problem,
            first,
            told(first) in known,
            not known.isdisjoint(map(told, usable)),
            one["vendor_us"] / one.get("ours_us", one["us"]),
            bool(library_record.faster(problem, gpu)),
        )


def ratios(values: list[float]) -> dict[str, float]:
    return {
        "geomean": math.exp(statistics.mean(map(math.log, values))),
        "p10": sorted(values)[len(values) // 10],
        "least": min(values),
    }


def summary(some: list[Product], unproven: float) -> dict[str, Any]:
    ours = [p.best if p.proven else p.best / unproven for p in some]
    return {
        "products": len(some),
        "proven": sum(p.proven for p in some),
        "provable": sum(p.provable for p in some),
        "library": sum(p.library for p in some),
        "ours": ratios(ours),
        "with_library": ratios(
            [1.0 if p.library else us for p, us in zip(some, ours, strict=True)]
        ),
    }


def record(gpu: Device) -> list[dict[str, Any]]:
    """How many products each class of `COUNTED` and `COUNTED_BEST` has, and their mean."""
    timed = [
        (stated(row["m"], row["n"], row["k"]), row["ours_single"])
        for stated, paths in ((GemmProblem, UNSEEN), (fp8_rows, FP8_ROWS))
        for path in paths
        for row in json.loads(path.read_text())["rows"]
        if "ours_single" in row
    ]
    for row in json.loads(GRADIENTS.read_text())["rows"]:
        problem = GemmProblem(row["m"], row["n"], row["k"], layout=row["layout"])
        timed.append((problem, row["ours_single"]))
    for row in json.loads(SHORT_SUMS.read_text())["rows"]:
        problem, us = GemmProblem(row["m"], row["n"], row["k"]), row["single_us"]
        if library_record.class_of(problem, gpu) in library_record.RESULT_ASKEW:
            timed.append((problem, us["torch.mm"] / us[row["first"]]))
    classes = (*COUNTED, *COUNTED_ASKEW, *COUNTED_BEST)
    found: dict[Any, list[float]] = {known: [] for known in classes}
    for row in json.loads(ASKEW.read_text())["rows"]:
        known = library_record.class_of(GemmProblem(row["m"], row["n"], row["k"]), gpu)
        if known in COUNTED_ASKEW:
            us = dict(row["single_us"])
            found[known].append(us.pop("torch.mm") / min(us.values()))
    for problem, ratio in timed:
        known = library_record.class_of(problem, gpu)
        if known in COUNTED and library_record.faster(problem, gpu):
            found[known].append(ratio)
    for one in json.loads(RECORD.read_text())["problems"]:
        if one["table"] in FP8_TABLES:
            known = library_record.class_of(problem_of(one), gpu)
            if known in COUNTED_BEST:
                found[known].append(one.get("ours_ratio", one["ratio"]))
    return [
        {
            "least_m": known.least_m,
            "least_k": known.least_k,
            "over_waves": known.over_waves,
            "products": len(taken),
            "share": round(ratios(taken)["geomean"], 3),
        }
        for known, taken in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument(
        "--unproven",
        type=float,
        default=1.03,
        help="time of a first kernel that is not proven over that of the best (default 1.03)",
    )
    options = parser.parse_args()
    this, gpu = arch("sm_90"), device("h200_sxm")
    found = list(products(this, gpu))
    bands = {
        f"M {least} to {most}" if most < 1 << 62 else f"M from {least}": summary(
            [p for p in found if least <= p.problem.m <= most], options.unproven
        )
        for least, most in ((1, 1 << 62), *BANDS)
    }
    for word, row in bands.items():
        print(f"{word:14} {row['products']:5} products, first proven {row['proven']} of "
              f"{row['provable']}, library for {row['library']}")  # fmt: skip
        for kind in ("ours", "with_library"):
            print(f"   {kind:12} " + ", ".join(f"{k} {v:.3f}" for k, v in row[kind].items()))
    classes = record(gpu)
    for one in classes:
        print(one)
    if options.json:
        document = {
            "environment": environment(),
            "unproven": options.unproven,
            "bands": bands,
            "record": classes,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
