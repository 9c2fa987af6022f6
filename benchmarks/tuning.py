"""The cost of tuning on a GPU, whether two tunings agree, and how good their choices are.

    python benchmarks/tuning.py shapes.csv tune again exhaustive remeasure --keep DIR \\
        --json benchmarks/results/tuning_h200.json

shapes.csv has columns M, N, K. 100 problems, spread evenly by their work over the rows whose (N, K)
the estimates' rates were not fitted to (those that benchmarks/sweep_throughput.py sweeps); 200
kernels, spread evenly over `gemm:full`. Each step leaves what it found in DIR, so that steps can be
taken on their own, in any number of runs:

tune, again: `tilewright tune` of all, each into a table and a directory of its own; the first with
    an empty store. Their time is from the command to its return.
exhaustive: `tilewright sweep` of every kernel on every other problem, as a tuning's search
    measures.
remeasure: of those problems, the choice of both tunings, the five best of the sweep and the first
    eight by estimate, once more and together, as the finals of a tuning measure. Shares of the
    tuned choice are of the best of all these: a tuning measures the present choice too, which may
    be none of the 200 kernels, and better. The shares of the estimate's first, and of the best of
    its eight, are of the best of the 200.
drawn: a sweep of every kernel on 40 problems whose sizes are drawn, M up to 16384, N and K from 256
    to 16384 and multiples of 64: sizes of no model that terms or rates were chosen for. Shares of
    the estimate's first and of the best of its eight are by the sweep's own medians.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from analytical import TOP, by_rows, read
from analytical import share as share_of
from environment import environment
from sweep_again import times
from sweep_throughput import MOST_FLOPS, flops
from tilewright import ops
from tilewright.arch import arch
from tilewright.compile import Store
from tilewright.measure.filters import Filters
from tilewright.measure.groups import groups
from tilewright.measure.measurement import problem_text
from tilewright.measure.problems import shipped
from tilewright.measure.progress import show_measuring
from tilewright.measure.results import Results, read_problem
from tilewright.measure.statistics import midmean, ratios
from tilewright.measure.sweep import plan_some, sweep
from tilewright.measure.vendor import is_vendor
from tilewright.space import load_space
from tilewright.tables import file
from tilewright.tables.table import Table
from tilewright.tune.finals import pooled
from tilewright.tune.tuner import FINAL, SEARCH

STEPS = ("tune", "again", "exhaustive", "remeasure", "drawn")
DRAWN = 40
BEST = 5


def rows_of(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [{word.lower(): said for word, said in row.items()} for row in csv.DictReader(lines)]


def fitted() -> set[tuple[str, str]]:
    """(N, K) of the problems that the rates were fitted with (`sweep_throughput.spread`)."""
    source = shipped("gemm:full", "problems.csv")
    assert source is not None
    rows = [row for row in rows_of(source) if flops(row) <= MOST_FLOPS]
    return {(row["n"], row["k"]) for row in rows[:: len(rows) // 50][:50]}


def chosen(shapes: Path, count: int, seen: set[tuple[str, str]], folder: Path) -> Path:
    """A list of `count` problems, spread evenly by their work."""
    rows = [row for row in rows_of(shapes) if (row["n"], row["k"]) not in seen]
    rows.sort(key=flops)
    some = [rows[i * len(rows) // count] for i in range(count)]
    return written(some, folder / "problems.csv")


def drawn(folder: Path) -> Path:
    """A list of `DRAWN` problems, the same each time."""
    rng = random.Random(0)

    def size(least: int, most: int, multiple: int) -> str:
        drawn = math.exp(rng.uniform(math.log(least), math.log(most)))
        return str(max(1, round(drawn / multiple)) * multiple)

    rows: list[dict[str, str]] = []
    while len(rows) < DRAWN:
        row = {"m": size(1, 16384, 1), "n": size(256, 16384, 64), "k": size(256, 16384, 64)}
        if flops(row) <= MOST_FLOPS:
            rows.append(row)
    return written(rows, folder / "drawn.csv")


def written(rows: Sequence[dict[str, str]], path: Path) -> Path:
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, ("m", "n", "k"), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def kernels(count: int, arch_name: str) -> list[str]:
    source = shipped("gemm:full", "space.json")
    assert source is not None
    space, _ = load_space(str(source), arch(arch_name), None, {"dtype": "bf16"})
    configs, _ = Filters(max_kernels=count).apply(space.expand(arch(arch_name)).configs)
    return [config.name for config in configs]


def run(folder: Path, step: str, *words: str) -> None:
    """A command of ours; its seconds, and what it printed, in DIR."""
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "tilewright", *words, "--json"], stdout=subprocess.PIPE, text=True
    )
    seconds = time.monotonic() - begun
    said = json.loads(ended.stdout)
    (folder / f"{step}.json").write_text(
        json.dumps({"seconds": seconds, "exit": ended.returncode, "said": said}) + "\n"
    )


def remeasure(folder: Path, device: str) -> None:
    found, _, _ = times(folder / "exhaustive")
    settings = replace(FINAL, take=1)
    store = Store(folder / "store")
    [group], crew = groups(device, store, settings, timeout=60.0)
    tables = [file.load(p) for p in (folder / "tune.twt", folder / "again.twt") if p.is_file()]
    family = ops.family("gemm")
    wanted = []
    for text, of in found.items():
        problem = read_problem(text, "the sweep")
        first = [row.kernel for t in tables if (row := t.get(problem, group.device))]
        best = sorted(of, key=lambda name: of[name][0])[:BEST]
        ranked = family.rank(problem, [family.parse_name(n) for n in of], group.device)
        estimated = [config.name for config, _ in ranked[:TOP]]
        some = dict.fromkeys([*first, *best, *estimated])
        wanted.append((problem, [family.parse_name(name) for name in some]))
    with Results(folder / "remeasured", write=True) as results:
        todo = plan_some([(group, wanted)], settings, results.keys(), vendor=True)
        sweep(todo, results, store, crew, measuring=show_measuring)


def rounds(folder: Path) -> dict[str, dict[str, Sequence[float]]]:
    """Samples of each problem's kernels, which took turns."""
    found: dict[str, dict[str, Sequence[float]]] = {}
    with Results(folder) as results:
        for m in results.measurements("status = 'ok'"):
            if not is_vendor(m.kernel):
                found.setdefault(problem_text(m.problem), {})[m.kernel] = m.samples_us
    return found


def share(
    said: str, samples: dict[str, Sequence[float]], tables: dict[str, Table], found: Any
) -> Any:
    """What came of one problem: times of its kernels by rounds, as multiples of the least."""
    problem = read_problem(said, "the sweep")
    of = pooled([samples])
    best = next(iter(of))
    in_space = min(times for name, times in of.items() if name in found[said])
    family = ops.family("gemm")
    [device] = {row.device for table in tables.values() for row in table}
    ranked = family.rank(problem, [family.parse_name(n) for n in found[said]], device)
    estimated = [c.name for c, _ in ranked[:TOP] if c.name in of]
    tuned = {}
    for name, table in tables.items():
        row = table.get(problem, device)
        tuned[name] = 1 / of[row.kernel] if row and row.kernel in of else None
    return {
        "problem": str(problem),
        "m": problem.m,
        "best": best,
        "best_us": statistics.median(samples[best]),
        "best_in_space_share": 1 / in_space,
        "tuned_share": tuned,
        "estimate_share": in_space / of[estimated[0]],
        f"estimate_top_{TOP}_share": in_space / min(of[name] for name in estimated),
    }


def of_all(shares: Sequence[float]) -> dict[str, Any]:
    return {"problems": len(shares), "mean": statistics.mean(shares), "worst": min(shares)}


def by_m(
    rows: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float]
) -> dict[str, Any]:
    ranges = {"all": rows, **by_rows(rows, lambda row: row["m"])}
    return {words: of_all([value(row) for row in some]) for words, some in ranges.items()}


def summary(folder: Path) -> dict[str, Any]:
    """Of the steps that were taken."""
    document: dict[str, Any] = {}
    tables = {}
    for step in ("tune", "again"):
        if (folder / f"{step}.json").is_file():
            ran = json.loads((folder / f"{step}.json").read_text())
            said = ran["said"]
            tables[step] = file.load(folder / f"{step}.twt")
            document[step] = {
                "seconds": ran["seconds"], "exit": ran["exit"], "rows": len(said["rows"]),
                "measured": said["measured"], "without": said["without"],
                "decided_by_finals": sum(row["final"] for row in said["rows"]),
                "takes": {str(k): v for k, v in takes(folder / f"{step}.sweep").items()},
            }  # fmt: skip
    if len(tables) == 2:
        first, second = ({r.problem: r.kernel for r in t} for t in tables.values())
        both = first.keys() & second.keys()
        differ = sorted(problem_text(p) for p in both if first[p] != second[p])
        document["same_choice"] = {
            "problems": len(both), "same": len(both) - len(differ), "differ": differ,
        }  # fmt: skip
        document["scatter"] = scatter([folder / f"{step}.sweep" for step in tables])
    if (folder / "remeasured").is_dir():
        found, _, _ = times(folder / "exhaustive")
        again = rounds(folder / "remeasured")
        rows = [share(said, samples, tables, found) for said, samples in again.items()]
        document["tuned"] = {
            step: by_m([r for r in rows if r["tuned_share"][step] is not None],
                       lambda row, step=step: row["tuned_share"][step])
            for step in tables
        }  # fmt: skip
        document["estimate"] = by_m(rows, lambda row: row["estimate_share"])
        top = f"estimate_top_{TOP}_share"
        document[f"estimate_top_{TOP}"] = by_m(rows, lambda row: row[top])
        document["remeasured"] = rows
    if (folder / "drawn").is_dir():
        device, _, measured = read(folder / "drawn")
        shares = [share_of(one, device) for one in measured]
        document["estimate_on_drawn"] = {
            "first": of_all([one.first for one in shares]),
            f"best_of_{TOP}": of_all([one.top for one in shares]),
        }
        document["drawn"] = [{**asdict(one), "problem": str(one.problem)} for one in shares]
    return document


def scatter(sweep_dirs: Sequence[Path]) -> dict[str, Any]:
    """How far a kernel's time over the fastest one's moves from take to take, by rounds and by
    medians: root mean squares of the standard deviations of its logarithm, of the next three of
    problems with three takes or more, by what the fastest takes."""
    tunings: list[list[dict[str, Sequence[float]]]] = []
    for folder in sweep_dirs:
        of_takes: dict[tuple[str, int], dict[str, Sequence[float]]] = {}
        with Results(folder) as results:
            for m in results.measurements("status = 'ok'"):
                if m.settings.take:
                    place = problem_text(m.problem), m.settings.take
                    of_takes.setdefault(place, {})[m.kernel] = m.samples_us
        of_problems: dict[str, list[dict[str, Sequence[float]]]] = {}
        for (problem, _), take in of_takes.items():
            of_problems.setdefault(problem, []).append(take)
        tunings += of_problems.values()
    found: dict[str, list[tuple[float, float]]] = {}
    for of_problem in tunings:
        in_doubt = len(of_problem) >= 3
        fastest, *others = [*pooled(of_problem)][:4] if in_doubt else [""]
        for name in others:
            pairs = [(take[name], take[fastest]) for take in of_problem]
            logs = [
                [math.log(midmean(ratios(a, b))) for a, b in pairs],
                [math.log(statistics.median(a) / statistics.median(b)) for a, b in pairs],
            ]
            us = statistics.median(of_problem[0][fastest])
            words = next((f"to {most} µs" for most in (15, 150) if us <= most), "over 150 µs")
            by_rounds, by_medians = map(statistics.stdev, logs)
            found.setdefault(words, []).append((by_rounds, by_medians))
    return {
        words: {"kernels": len(pairs), **{
            key: math.sqrt(statistics.mean(pair[i] ** 2 for pair in pairs))
            for i, key in enumerate(("by_rounds", "by_medians"))
        }}
        for words, pairs in sorted(found.items())
    }  # fmt: skip


def takes(sweep_dir: Path) -> dict[int, int]:
    """How many problems were in each take of the finals."""
    with Results(sweep_dir) as results:
        _, rows = results.query(
            "SELECT json_extract(settings.text, '$.take'), count(DISTINCT problem) "
            "FROM measurement JOIN settings ON settings.id = settings GROUP BY settings.id"
        )
    return {take: count for take, count in rows if take}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shapes", type=Path)
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], default=[])
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--device", default="1", help="as of --devices; one")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder: Path = options.keep
    folder.mkdir(parents=True, exist_ok=True)
    problems = chosen(options.shapes, options.problems, fitted(), folder)
    half = written(rows_of(problems)[::2], folder / "half.csv")
    names = kernels(options.kernels, options.arch)
    same = ["--signature", "dtype=bf16", "--devices", options.device]
    same += ["--store", str(folder / "store")]
    for step in options.steps:
        if step == "remeasure":
            remeasure(folder, options.device)
        elif step in ("exhaustive", "drawn"):
            listed = half if step == "exhaustive" else drawn(folder)
            how = {key: getattr(SEARCH, key) for key in ("min_samples", "budget_seconds", "race")}
            words = [w for item in how.items() for w in ("--settings", "{}={}".format(*item))]
            run(folder, step, "sweep", *names, "--problems", str(listed), "--out",
                str(folder / step), *words, *same)  # fmt: skip
        else:
            run(folder, step, "tune", *names, "--problems", str(problems), "--table",
                str(folder / f"{step}.twt"), *same)  # fmt: skip
    where = folder / "environment.json"
    if options.steps:
        where.write_text(json.dumps(environment()))
    document = {"environment": json.loads(where.read_text()), "problems": options.problems,
                "kernels": len(names), **summary(folder)}  # fmt: skip
    long = ("remeasured", "drawn")
    print(json.dumps({k: v for k, v in document.items() if k not in long}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
