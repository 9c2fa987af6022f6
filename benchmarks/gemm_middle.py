"""Tiles with an edge in steps of 8 against the others and torch.mm, for M of 65 to 2048.

    python benchmarks/gemm_middle.py --json benchmarks/results/gemm_middle_h200.json

Sizes are picked by chance, with a fixed seed, from those of the sweep `full`, which models have.
For each, the kernels that the estimate puts first are built, checked against float64 and timed: of
the older tiles (powers of two, and 96, 160 and 192) whole and shared, and of the new ones. Each is
timed by single calls with L2 flushed (see `harness`); the best of each kind also in replayed CUDA
graphs whose calls walk over copies of the operands, as a server replays a model. All take turns
with torch.mm. `chosen_older` is the default space's kernel that the estimate puts first; `chosen`
is the same of a space that has `odd_tiles.FIRST` too. `untuned` is what a dispatcher without tables
runs, which may be the library's first algorithm (`library_record`). A kernel whose result is wrong
is listed and not timed.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from environment import environment
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, odd_tiles, swap

OLDER_COLUMNS = (32, 64, 96, 128, 160, 192, 256)
BANDS = ((65, 128), (129, 256), (257, 512), (513, 1024), (1025, 2048))
"""Ranges of M, each with as many of the sizes."""
COPIED_BYTES, MOST_COPIES = 512 << 20, 64
"""Operands are copied until they take so many bytes, so that nothing stays in L2."""


def sizes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """(M, N, K) of `count` products of models, spread over `BANDS`. M is moved to a number that
    need not be round, since batches of a server are not."""
    listed = resources.files("tilewright.ops.gemm") / "sweeps" / "full" / "problems.csv"
    lines = [line for line in listed.read_text().splitlines() if not line.startswith("#")]
    every = {(int(row["n"]), int(row["k"])) for row in csv.DictReader(lines)}
    pairs = sorted((n, k) for n, k in every if n % 8 == 0 and k % 8 == 0)
    by_chance = random.Random(seed)
    found = []
    for number in range(count):
        least, most = BANDS[number % len(BANDS)]
        m = by_chance.choice((most, by_chance.randrange(least, most + 1)))
        found.append((m, *by_chance.choice(pairs)))
    return found


def is_new(config: GemmConfig) -> bool:
    """Whether a kernel's tile has columns, as the kernel sees them, that no older tile has."""
    several = config.pipeline in ("gluon_ws", "gluon_pingpong")
    return several and swap.config(config).tile_n not in OLDER_COLUMNS


def _tile(c: GemmConfig) -> odd_tiles.Tile:
    return c.pipeline, c.tile_m, c.tile_n, c.num_warps, c.store, c.swap_ab


def contenders(
    problem: GemmProblem, device: Device, each: int
) -> tuple[list[GemmConfig], list[GemmConfig], dict[str, str]]:
    """The `each` kernels with the least estimates among the older tiles and among the new ones, and
    the names of `chosen` and `chosen_older`, which are among these."""
    this = arch(device.arch)
    default, *more = FAMILY.tuning_spaces(problem, this)
    older_names = {c.name for c in default.expand(this).configs}
    every = {c.name: c for space in (default, *more) for c in space.expand(this).configs}
    usable = [c for c in every.values() if FAMILY.supports(c, problem, this)]
    ranked = [c for c, _ in FAMILY.rank(problem, usable, device)]
    first = next(c for c in ranked if c.name in older_names or _tile(c) in odd_tiles.FIRST)
    older = next(c for c in ranked if c.name in older_names)
    chosen = {"chosen": first.name, "chosen_older": older.name}
    kept = [[c for c in ranked if is_new(c) == new][:each] for new in (False, True)]
    for one in (first, older):
        side = kept[is_new(one)]
        side += [] if one in side else [one]
    return kept[0], kept[1], chosen


def copies(problem: GemmProblem) -> int:
    """How many copies of a problem's operands leave nothing in L2."""
    return max(2, min(MOST_COPIES, -(-COPIED_BYTES // problem.min_bytes)))


def rotated_operands(problem: GemmProblem) -> list[tuple[Any, Any, Any]]:
    """Random A and B, and a C, for a product whose B is contiguous along K; as many copies as leave
    nothing in L2."""
    import torch

    m, n, k = problem.m, problem.n, problem.k
    element = getattr(torch, DTYPES[problem.dtype_a].torch)
    return [
        (
            torch.randn(m, k, device="cuda", dtype=element),
            torch.randn(n, k, device="cuda", dtype=element).T,
            torch.empty(m, n, device="cuda", dtype=element),
        )
        for _ in range(copies(problem))
    ]


def replayed(
    calls: Mapping[str, Iterable[Callable[[], object]]], replays: int
) -> dict[str, list[float]]:
    """Microseconds of one call in replays of a graph of each contender's calls, in turns."""
    import torch

    graphs, counts = {}, {}
    for name, listed in calls.items():
        every = list(listed)
        for call in every:  # nothing is built or allocated during the capture
            call()
        torch.cuda.synchronize()
        graphs[name], counts[name] = torch.cuda.CUDAGraph(), len(every)
        with torch.cuda.graph(graphs[name]):
            for call in every:
                call()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(replays):
        order = list(graphs.items())
        for name, graph in order if number % 2 else reversed(order):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()  # the clock is up and the queue is not empty
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3 / counts[name])
    return times


def geomean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.exp(sum(map(math.log, listed)) / len(listed)) if listed else math.nan


def measured(
    size: tuple[int, int, int], gpu: Device, store: Any, dtype: str, options: argparse.Namespace
) -> dict[str, Any]:
    """One size's row of the results."""
    import torch

    from harness import bound, compare
    from tilewright import verify
    from tilewright.compile import build
    from tilewright.dispatch import Dispatcher
    from tilewright.registry import Registry

    m, n, k = size
    problem = GemmProblem(m, n, k, dtype)
    older, new, chosen = contenders(problem, gpu, options.each)
    report = build([(c, gpu.arch) for c in (*older, *new)], store=store)
    built = {r.config.name: r.config for r in report.results if r.ok}
    operands = rotated_operands(problem)
    a, b, out = operands[0]
    reference = a.double() @ b.double()
    dispatcher = Dispatcher(store=store)
    right, wrong = [], []
    for config in built.values():
        out.fill_(float("nan"))
        dispatcher.run_named(config.name, a, b, out=out)
        found = verify.compare(out, reference, verify.tolerance(problem, config))
        (right if found.ok else wrong).append(config)
    untuned = Dispatcher(store=store, selector="analytical")
    taken = untuned.select(problem).config
    untuned.run("gemm", a, b, out=out.fill_(float("nan")))
    if not verify.compare(out, reference, verify.tolerance(problem, taken)).ok:
        wrong.append(taken)
    del reference

    def mm(a: Any, b: Any, out: Any) -> Callable[[], object]:
        return lambda: torch.mm(a, b, out=out)

    single = {"torch.mm": mm(a, b, out)}
    single |= {c.name: bound(store, c, a, b, out=out) for c in right}
    single["untuned"] = partial(untuned.run, "gemm", a, b, out=out)
    flushed = {name: t.median for name, t in compare(single, options.rounds).items()}
    # Graphs of the best few: each holds a workspace of its own.
    finalists = {chosen["chosen"], chosen["chosen_older"]}
    for side in (older, new):
        timed = sorted((c.name for c in side if c in right), key=flushed.__getitem__)
        finalists |= {*timed[: options.finalists]}
    rotated = {"torch.mm": [mm(*each) for each in operands]}
    rotated["untuned"] = [partial(untuned.run, "gemm", a, b, out=out) for a, b, out in operands]
    for config in right:
        if config.name in finalists:
            only = Dispatcher(Registry("one").register_all([config]), store=store)
            rotated[config.name] = [
                partial(only.run, config.family, a, b, out=out) for a, b, out in operands
            ]
    graphs = {n: statistics.median(t) for n, t in replayed(rotated, options.rounds).items()}
    row: dict[str, Any] = {
        "m": m,
        "n": n,
        "k": k,
        **chosen,
        "untuned": taken.name,
        "wrong": [c.name for c in wrong],
        "not_built": [str(r) for r in report.results if not r.ok],
        "flushed_us": flushed,
        "graphs_us": graphs,
    }
    for word, times in (("flushed", flushed), ("graphs", graphs)):
        sides = {
            "older": [times[c.name] for c in older if c.name in times],
            "new": [times[c.name] for c in new if c.name in times],
        }
        if all(sides.values()):
            row[f"new_over_older_{word}"] = min(sides["older"]) / min(sides["new"])
            best = min(map(min, sides.values()))
            row[f"mm_over_best_{word}"] = times["torch.mm"] / best
        row[f"mm_over_untuned_{word}"] = times["torch.mm"] / times["untuned"]
        if {*chosen.values()} <= times.keys():
            before, now = times[chosen["chosen_older"]], times[chosen["chosen"]]
            row[f"chosen_over_older_{word}"] = before / now
            row[f"mm_over_chosen_{word}"] = times["torch.mm"] / now
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--count", type=int, default=25, help="how many sizes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--each", type=int, default=10, help="kernels of each kind, by estimate")
    parser.add_argument("--finalists", type=int, default=3, help="of each kind, in graphs")
    parser.add_argument("--rounds", type=int, default=40, help="samples of each kernel")
    options = parser.parse_args()

    from tilewright.arch.detect import live_device
    from tilewright.compile import Store

    gpu, store, rows = live_device(0), Store(), []
    for size in sizes(options.count, options.seed):
        row = measured(size, gpu, store, options.dtype, options)
        rows.append(row)
        ratios = {name: round(value, 3) for name, value in row.items() if "_over_" in name}
        print("×".join(map(str, size)), ratios, *(f"WRONG {name}" for name in row["wrong"]))
        if options.json:  # after each size, so that a run that is cut off leaves its rows
            write(options, rows)
    for name, value in means(rows).items():
        print(f"{name} {value:.3f}")


def means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Geometric means of every ratio, of all sizes and of each range of M."""
    found = {}
    names = sorted({name for row in rows for name in row if "_over_" in name})
    for least, most in ((BANDS[0][0], BANDS[-1][1]), *BANDS):
        for name in names:
            values = [row[name] for row in rows if least <= row["m"] <= most and name in row]
            if values:
                found[f"{name}, M {least} to {most} ({len(values)})"] = geomean(values)
    return found


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    document = {
        "environment": environment(),
        "dtype": options.dtype,
        "seed": options.seed,
        "rounds": options.rounds,
        "rows": rows,
        "geometric_means": means(rows),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
