"""Split-K in clusters against all other kernels and torch.mm, for few tiles and a large K.

    python benchmarks/gemm_clusters.py --json benchmarks/results/gemm_clusters_h200.json

The sizes are those of `gemm_vs_vendor`'s set ``odd`` with up to 264 tiles of 64x64, and others that
models have, by chance with a fixed seed. For each, the kernels that the estimate puts first are
built, checked against float64 and timed: of tuning's clusters, and of all else that tuning has. By
single calls with L2 flushed; the best three of each kind also in replayed graphs over copies of the
operands. All take turns with torch.mm. A kernel whose result is wrong is listed and not timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from environment import environment
from gemm_middle import geomean, replayed, rotated_operands
from gemm_middle import sizes as of_models
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem

ODD = (
    (512, 768, 4096), (512, 512, 8192), (256, 256, 16384), (1024, 1024, 8192), (512, 2048, 6144),
)  # fmt: skip
FEWEST, MOST, LEAST_K = 4, 264, 4096
"""Tiles of 64x64 of the sizes by chance, and their K."""


def sizes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """(M, N, K) of products with few tiles and a large K."""
    found = list(ODD)
    for m, n, k in of_models(100 * count, seed):
        if FEWEST <= -(-m // 64) * -(-n // 64) <= MOST and k >= LEAST_K and (m, n, k) not in found:
            found.append((m, n, k))
    return found[: len(ODD) + count]


def contenders(
    problem: GemmProblem, device: Device, each: int
) -> tuple[list[GemmConfig], list[GemmConfig]]:
    """The `each` kernels with the least estimates of clusters, and of all others."""
    this = arch(device.arch)
    spaces = FAMILY.tuning_spaces(problem, this)
    every = {c.name: c for space in spaces for c in space.expand(this).configs}
    ranked = FAMILY.rank(
        problem, [c for c in every.values() if FAMILY.supports(c, problem, this)], device
    )
    kinds = ([c for c, _ in ranked if c.clustered == clustered] for clustered in (True, False))
    clusters, others = (kind[:each] for kind in kinds)
    return clusters, others


def measured(
    size: tuple[int, int, int], gpu: Device, store: Any, options: argparse.Namespace
) -> dict[str, Any]:
    """One size's row of the results."""
    import torch

    from harness import bound, compare
    from tilewright import verify
    from tilewright.compile import build
    from tilewright.dispatch import Dispatcher
    from tilewright.registry import Registry

    m, n, k = size
    problem = GemmProblem(m, n, k)
    kinds = contenders(problem, gpu, options.each)
    report = build([(c, gpu.arch) for kind in kinds for c in kind], store=store)
    built = [r.config for r in report.results if r.ok]
    operands = rotated_operands(problem)
    a, b, out = operands[0]
    reference = a.double() @ b.double()
    right, wrong = [], []
    for config in built:
        out.fill_(float("nan"))
        Dispatcher(store=store).run_named(config.name, a, b, out=out)
        found = verify.compare(out, reference, verify.tolerance(problem, config))
        (right if found.ok else wrong).append(config)
    del reference
    single = {"torch.mm": partial(torch.mm, a, b, out=out)}
    single |= {c.name: bound(store, c, a, b, out=out) for c in right}
    flushed = {name: t.median for name, t in compare(single, options.rounds).items()}
    rotated = {"torch.mm": [partial(torch.mm, a, b, out=out) for a, b, out in operands]}
    best = [
        sorted((c for c in kind if c in right), key=lambda c: flushed[c.name])[:3] for kind in kinds
    ]
    for config in (*best[0], *best[1]):
        only = Dispatcher(Registry("one").register_all([config]), store=store)
        rotated[config.name] = [partial(only.run, "gemm", a, b, out=out) for a, b, out in operands]
    graphs = {name: statistics.median(t) for name, t in replayed(rotated, options.rounds).items()}
    row: dict[str, Any] = {
        "m": m, "n": n, "k": k,
        "wrong": [c.name for c in wrong],
        "not_built": [str(r) for r in report.results if not r.ok],
        "flushed_us": flushed, "graphs_us": graphs,
    }  # fmt: skip
    for word, times in (("flushed", flushed), ("graphs", graphs)):
        cluster, other = (min(times[c.name] for c in kind) for kind in best)
        row[f"other_over_cluster_{word}"] = other / cluster
        row[f"mm_over_other_{word}"] = times["torch.mm"] / other
        row[f"mm_over_best_{word}"] = times["torch.mm"] / min(cluster, other)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--count", type=int, default=15, help="how many sizes by chance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=10, help="kernels of each kind, by estimate")
    parser.add_argument("--rounds", type=int, default=40, help="samples of each kernel")
    options = parser.parse_args()

    from tilewright.arch.detect import live_device
    from tilewright.compile import Store

    gpu, store, rows = live_device(0), Store(), []
    for size in sizes(options.count, options.seed):
        row = measured(size, gpu, store, options)
        rows.append(row)
        ratios = {name: round(value, 3) for name, value in row.items() if "_over_" in name}
        print("×".join(map(str, size)), ratios, *(f"WRONG {name}" for name in row["wrong"]))
        means = {name: geomean([row[name] for row in rows]) for name in ratios}
        if options.json:  # after each size, so that a run that is cut off leaves its rows
            document = {"environment": environment(), "rows": rows, "geometric_means": means}
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    for name, value in means.items():
        print(f"{name} {value:.3f}")


if __name__ == "__main__":
    main()
