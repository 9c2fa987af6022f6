"""How fast a large table loads, and how long a look-up takes.

    python benchmarks/tables.py --json benchmarks/results/tables.json

Makes a table of 100,000 rows (two devices, 600 kernels, up to three ties, a time of its own for
each row) and asks:

load            from a path to a `Table`: read, digest checked, decoded as far as it is
first           the first look-up after that, which makes the dictionaries of the problems' values
hit, seen       `Table.get(problem, device)` with a problem object that was asked for before
hit, equal      the same with objects that equal such a one: 500 in turn. Making one of these (``new
                problem``) takes longer
hit, new        a problem that was not asked for before: found by bisection
miss            a problem whose values stand in no row, not asked for before
plan, equal     `Planner.select` of problems that equal one planned before: 500 in turn
plan, tuned     the same of a problem that has a row, not planned before
plan, estimated the same without tables: what a miss costs

Each load in a process of its own reads a file that the system has in memory. Best and median of the
repeats; a busy machine makes all of them longer.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import claims
from environment import environment
from tilewright import GemmProblem, ops
from tilewright.arch import Device, device
from tilewright.plan import Planner
from tilewright.tables import file
from tilewright.tables.lookup import installed
from tilewright.tables.row import Row
from tilewright.tables.table import Table

ROWS, KERNELS = 100_000, 600

WORDS = {
    "load": "load a table of 100,000 rows (10 MB) and check all of it",
    "first": "the first look-up after that",
    "hit, seen": "find a problem again",
    "hit, equal": "find a problem again, by a new object that equals it",
    "hit, new": "find a problem for the first time",
    "plan, equal": "plan a problem again",
    "plan, tuned": "plan another problem with a row",
    "plan, estimated": "plan a problem without a row",
}
"""What the claim calls the times."""

LOAD = """
import sys, time
import tilewright.ops.gemm
from tilewright.tables.file import load
start = time.perf_counter()
table = load(sys.argv[1])
print(time.perf_counter() - start)
"""


def problems(rng: random.Random, count: int) -> list[GemmProblem]:
    """Different products of the sizes that language models have."""
    sizes: set[tuple[int, int, int]] = set()
    while len(sizes) < count:
        sizes.add((rng.randint(1, 8192), *(64 * rng.randint(1, 448) for _ in "nk")))
    return [GemmProblem(*size) for size in sorted(sizes)]


def rows(rng: random.Random, stated: list[GemmProblem], devices: list[Device]) -> list[Row]:
    """Rows of made-up times for kernels there are, as many for each device."""
    known = Planner(device=devices[0], selector="first_fit")
    fates = known.explain(stated[-1]).fates
    usable = [f.name for f in fates if f.fate != "refused" and "split_k" not in f.name]
    parse = ops.family(stated[0].family).parse_name
    names = [replace(parse(n), group_m=g).name for g in range(1, KERNELS) for n in usable][:KERNELS]
    found = []
    for number, problem in enumerate(stated):
        winner, *ties = rng.sample(names, 1 + number % 4)
        us = 5 + rng.expovariate(0.01)
        found.append(
            Row(
                devices[number % len(devices)], problem, winner, tuple(ties), us,
                (us * 0.99, us * 1.01), rng.random(),
                f"2026-01-{number // 86400 + 1:02d}T{number // 3600 % 24:02d}:"
                f"{number // 60 % 60:02d}:{number % 60:02d}.000+00:00",
                installed(), "570.1",
                '{"cache":"flushed"}',
            )
        )  # fmt: skip
    return found


def load_times(path: Path, repeats: int) -> list[float]:
    """Seconds that loading takes in a process that has the family but no table."""
    return [
        float(
            subprocess.run(
                [sys.executable, "-c", LOAD, str(path)], check=True, capture_output=True, text=True
            ).stdout
        )
        for _ in range(repeats)
    ]


def each(call: Callable[[Any], Any], arguments: list[Any]) -> list[float]:
    """Seconds of one call for each argument."""
    seconds = []
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        seconds.append(time.perf_counter() - start)
    return seconds


def turns(call: str, arguments: list[Any], **names: Any) -> list[float]:
    """Seconds of one `call` of x, for each argument in turn; from 9 runs of 100,000 calls."""
    count = 100_000 // len(arguments)
    run = timeit.Timer(f"for x in arguments: {call}", globals={"arguments": arguments, **names})
    return [seconds / count / len(arguments) for seconds in run.repeat(9, count)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure tables.")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    rng = random.Random(1)
    devices = [device("h200_sxm"), device("h20")]
    stated = problems(rng, options.rows)
    made = rows(rng, stated, devices)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.twt"
        start = time.perf_counter()
        file.save(Table.of(made), path)
        writing, size = time.perf_counter() - start, path.stat().st_size
        found["load"] = load_times(path, options.repeats)
        table = file.load(path)
    gpu = devices[0]
    of_gpu = stated[::2]
    assert all(table.get(p, gpu) == row for p, row in zip(of_gpu, made[::2], strict=True))
    fresh = [Table(table.data) for _ in range(options.repeats)]
    found["first"] = each(lambda one: one.get(of_gpu[0], gpu), fresh)
    found["hit, seen"] = turns("table.get(x, gpu)", [of_gpu[-1]], table=table, gpu=gpu)
    some = rng.sample(of_gpu, 500)
    copies = [GemmProblem(p.m, p.n, p.k) for p in some]
    found["hit, equal"] = turns("table.get(x, gpu)", copies, table=table, gpu=gpu)
    found["hit, new"] = each(lambda p: fresh[0].get(p, gpu), some)
    others = [GemmProblem(p.m, p.n, p.k + 8) for p in rng.sample(of_gpu, 500)]
    found["miss"] = each(lambda p: table.get(p, gpu), others)
    found["new problem"] = each(lambda m: GemmProblem(m, 4096, 4096), [*range(1, 501)])
    tuned, estimated = Planner(device=gpu, tables=table), Planner(device=gpu)
    for planner in (tuned, estimated):  # what is made once: the default space, caches of rules
        planner.select(GemmProblem(4096, 4096, 4096))
    for problem in some:
        tuned.select(problem)
    found["plan, equal"] = turns("tuned.select(x)", copies, tuned=tuned)
    some = rng.sample([p for p in of_gpu if p not in set(some)], 30)
    found["plan, tuned"] = each(tuned.select, some)
    found["plan, estimated"] = each(estimated.select, some)
    for word, seconds in found.items():
        print(f"{word:16} best {short(min(seconds))}, median {short(statistics.median(seconds))}")
    print(f"{len(table):,} rows, {size / 1e6:.1f} MB, {size / len(table):.0f} bytes a row, "
          f"written in {writing:.1f} s")  # fmt: skip
    if options.json:
        document = {
            "environment": environment(),
            "rows": len(table),
            "kernels": KERNELS,
            "bytes": size,
            "seconds": {
                word: {"best": min(seconds), "median": statistics.median(seconds),
                       "repeats": len(seconds)}
                for word, seconds in found.items()
            },
        }  # fmt: skip
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
        times = {what: statistics.median(found[word]) * 1e6 for word, what in WORDS.items()}
        claims.save_times("host-tables", times, options.json)


def short(seconds: float) -> str:
    """A time, in a suitable unit."""
    for unit, scale in (("s ", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:6.2f} {unit}"
    return f"{seconds / 1e-9:6.0f} ns"


if __name__ == "__main__":
    main()
