"""Products whose rows of A and B, or of C, begin inside a sector of memory, against torch.mm.

    python benchmarks/gemm_askew.py --json benchmarks/results/gemm_askew_h200.json
    python benchmarks/gemm_askew.py --rows result --seeds {10..39} --each 2 \
        --json benchmarks/results/gemm_askew_result_h200.json

A row of A or B is then no multiple of 32 bytes, and each tile takes in more sectors than its bytes
fill. The sizes are those of `gemm_unseen`, with K an odd multiple of 8. With `--rows result`, N is
such a number and K is not, K is up to 2048, and M is over 512: rows of C begin inside a sector, and
tiles fill sectors in part.

The kernels of each pipeline in the default space that the estimate ranks first are checked against
float64 and timed in turns with torch.mm, by single calls with L2 flushed and in replayed graphs.
`first` is the kernel that the estimate puts first of all. By ranges of M: torch.mm's time over the
best kernel's (the shares of `library_record.ASKEW`), and the best kernel's over that of `first`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from environment import environment
from gemm_middle import geomean, replayed, rotated_operands
from gemm_unseen import BANDS, sizes
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, library_record

LEAST_M, MOST_K = 513, 2048
"""Of products whose rows of C alone begin inside a sector."""


def short_sum(p: GemmProblem) -> bool:
    return library_record.result_askew(p) and p.m >= LEAST_M and p.k <= MOST_K


ROWS = {
    "operands": library_record.askew,
    "result": short_sum,
}
"""Which products are measured."""


def kernels(problem: GemmProblem, gpu: Device, each: int) -> list[GemmConfig]:
    """Those of the default space with the `each` least estimates of every pipeline, the least of
    all first."""
    this = arch(gpu.arch)
    usable = [
        c
        for c in FAMILY.default_space(problem, this).expand(this).configs
        if FAMILY.supports(c, problem, this)
    ]
    kept: Counter[str] = Counter()
    found = []
    for config, _ in FAMILY.rank(problem, usable, gpu):
        kept[config.pipeline] += 1
        if kept[config.pipeline] <= each:
            found.append(config)
    return found


def measured(
    problem: GemmProblem, configs: Sequence[GemmConfig], store: Any, rounds: int
) -> dict[str, Any]:
    """One size's row of the results."""
    import torch

    from harness import compare
    from tilewright import verify
    from tilewright.dispatch import Dispatcher
    from tilewright.registry import Registry

    m, n, k = problem.m, problem.n, problem.k
    operands = rotated_operands(problem)
    a, b, out = operands[0]
    reference = a.double() @ b.double()
    calls = {"torch.mm": [partial(torch.mm, x, y, out=z) for x, y, z in operands]}
    wrong = []
    for config in configs:
        run = Dispatcher(Registry("one").register_all([config]), store=store).run
        run("gemm", a, b, out=out.fill_(float("nan")))
        if verify.compare(out, reference, verify.tolerance(problem, config)).ok:
            calls[config.name] = [partial(run, "gemm", x, y, out=z) for x, y, z in operands]
        else:
            wrong.append(config.name)
    del reference
    single = compare({name: listed[0] for name, listed in calls.items()}, rounds)
    graphs = replayed(calls, rounds)
    return {
        "m": m,
        "n": n,
        "k": k,
        "first": configs[0].name,
        "wrong": wrong,
        "single_us": {name: timing.median for name, timing in single.items()},
        "graphs_us": {name: statistics.median(times) for name, times in graphs.items()},
    }


def compared(times: Mapping[str, float], first: str) -> tuple[float, float]:
    """torch.mm's time over the best kernel's, and the best kernel's over that of `first`."""
    best = min(us for name, us in times.items() if name != "torch.mm")
    return times["torch.mm"] / best, best / times.get(first, float("inf"))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for least, most in BANDS:
        some = [row for row in rows if least <= row["m"] <= most]
        for word in ("single", "graphs") if some else ():
            pairs = [compared(row[f"{word}_us"], row["first"]) for row in some]
            mm, chosen = (geomean(values) for values in zip(*pairs, strict=True))
            found[f"{word}, M {least} to {most}"] = {
                "sizes": len(some),
                "mm_over_best": mm,
                "best_over_first": chosen,
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--rows", choices=ROWS, default="operands", help="which begin so")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of the sizes")
    parser.add_argument("--each", type=int, default=3, help="kernels of each pipeline")
    parser.add_argument("--rounds", type=int, default=12, help="samples of each contender")
    options = parser.parse_args()

    from tilewright.arch.detect import live_device
    from tilewright.compile import Store, build

    gpu, store = live_device(0), Store()
    problems = [GemmProblem(*size) for seed in options.seeds for size in sizes(300, seed)]
    problems = [p for p in problems if ROWS[options.rows](p)]
    picked = {p: kernels(p, gpu, options.each) for p in problems}
    every = {config.name: config for configs in picked.values() for config in configs}
    build([(config, gpu.arch) for config in every.values()], store=store).raise_if_failed()
    rows = []
    for problem, configs in picked.items():
        row = measured(problem, configs, store, options.rounds)
        rows.append(row)
        mm, chosen = compared(row["graphs_us"], row["first"])
        print(problem, f"mm/best {mm:.3f}, best/first {chosen:.3f}", *row["wrong"], flush=True)
    document = {
        "environment": environment(),
        "seeds": options.seeds,
        "rounds": options.rounds,
        "summary": summary(rows),
        "rows": rows,
    }
    print(json.dumps(document["summary"], indent=1))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
