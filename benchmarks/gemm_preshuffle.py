"""Shuffled weights against plain ones and cuBLAS where few rows meet large weights.

    python benchmarks/gemm_preshuffle.py --json benchmarks/results/gemm_preshuffle_h200.json

Each pipeline's kernels of one declared space are built, checked against float64 on random data
and timed briefly; the fastest three of each pipeline are then timed against each other and
against the vendor's library (torch.mm, and the best of cuBLASLt's candidates) in one interleaved
run. Nothing that failed its check is timed. GB/s counts every operand once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import tilewright as tw
from cublaslt import candidates
from environment import environment
from harness import bound, compare, warm_up
from tilewright import KernelSpace, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.ops.gemm import GemmProblem

SHAPES = (
    (1, 4096, 4096),
    (8, 2112, 7168),
    (16, 28672, 4096),
    (32, 4096, 14336),
    (64, 24576, 1536),
)
"""(M, N, K) of decoding: attention and MLP projections of current models."""

FINALISTS = 3
SCHEDULES = [("tile", 1, "none"), *(("split_k", parts, "linear") for parts in (2, 4, 8))]
AXES = {
    "tile_m": (16, 64),
    "tile_n": (16, 32, 64, 128),
    "tile_k": (64, 128, 256),
    "num_warps": (4,),
    "num_stages": (3, 5),
}
LAYOUTS = {"preshuffle": "rsr", "basic": "rcr", "tma": "rcr"}


def space(pipeline: str) -> KernelSpace:
    """The bf16 kernels of a pipeline that can win: the same for each."""
    return KernelSpace(
        "gemm",
        {**AXES, "layout": [LAYOUTS[pipeline]], "pipeline": [pipeline]},
        linked={("scheduler", "split_k", "reduction"): SCHEDULES},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--rounds", type=int, default=60, help="samples of each finalist")
    options = parser.parse_args()

    gpu = live_device(0)
    configs = [c for p in LAYOUTS for c in space(p).expand(arch(gpu.arch)).configs]
    store = Store()
    report = build([(c, gpu.arch) for c in configs], store=store)
    print(f"{len(configs)} kernels for {gpu.name}: {report}", flush=True)
    usable = [r.config for r in report.results if r.ok]
    rows = [measure(m, n, k, usable, store, options.rounds) for m, n, k in SHAPES]
    if options.json:
        document = {"environment": environment(), "rounds": options.rounds, "rows": rows}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def measure(m: int, n: int, k: int, usable: list, store: Store, rounds: int) -> dict:
    """One shape: every kernel checked and timed briefly, the best of each pipeline in full."""
    family, this = ops.family("gemm"), arch(live_device(0).arch)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).T
    given = {"rcr": b, "rsr": tw.shuffle(b)}
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    reference = a.double() @ b.double()
    calls, wrong = {}, []
    for config in usable:
        problem = GemmProblem(m, n, k, layout=config.layout)
        if config.tile_m >= 2 * m and config.tile_m > 16:
            continue
        if not family.supports(config, problem, this):
            continue
        call = bound(store, config, a, given[config.layout], out=out)
        out.fill_(float("nan"))
        call()
        if verify.compare(out, reference, verify.tolerance(problem, config)).ok:
            calls[config.name] = call
        else:
            wrong.append(config.name)
    listed = candidates(a, b, out)
    vendor = {"torch.mm": lambda: torch.mm(a, b, out=out)}
    warm_up(vendor["torch.mm"])
    first = compare({**calls, **listed}, rounds=3)
    fastest = min(listed, key=lambda name: first[name].median)
    final = {**vendor, fastest: listed[fastest]}
    best: dict[str, list[str]] = {"cuBLAS": list(final)}
    for pipeline in LAYOUTS:
        of_it = [name for name in calls if f"_{pipeline}_" in name]
        best[pipeline] = sorted(of_it, key=lambda name: first[name].median)[:FINALISTS]
        final |= {name: calls[name] for name in best[pipeline]}
    timed = compare(final, rounds)
    winners = {who: min(names, key=lambda name: timed[name].median) for who, names in best.items()}
    least = GemmProblem(m, n, k).min_bytes
    print(f"{m}x{n}x{k}, {len(calls)} kernels, {len(wrong)} wrong", flush=True)
    for who, name in winners.items():
        us = timed[name].median
        ratio = timed[winners["cuBLAS"]].median / us
        print(f"  {who:10} {us:8.2f} us {least / us / 1e3:7.0f} GB/s {ratio:6.3f}  {name}")
    return {
        "m": m,
        "n": n,
        "k": k,
        "winners": winners,
        "median_us": {name: t.median for name, t in timed.items()},
        "quartiles_us": {name: t.quartiles for name, t in timed.items()},
        "kernels_timed": len(calls),
        "kernels_wrong": wrong,
    }


if __name__ == "__main__":
    main()
