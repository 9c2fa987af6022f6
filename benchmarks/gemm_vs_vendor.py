"""The best kernel of a declared space against cuBLAS (torch.mm), in one interleaved run.

    python benchmarks/gemm_vs_vendor.py --json benchmarks/results/gemm_vs_vendor_h200.json

Each kernel of the space is built, checked against float64 on random data, and timed briefly;
the fastest few are then timed against each other and against the vendor's library, and the one
with the best median there is reported. Nothing that failed its check is timed.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from environment import environment
from harness import compare, warm_up
from tilewright import KernelSpace, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.build import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import GemmProblem
from tilewright.registry import Registry

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 28672, 4096), (8192, 4096, 14336))
FINALISTS = 6


def space() -> KernelSpace:
    """bf16 rcr through the copy engine: the kernels that can win on large shapes."""
    return KernelSpace(
        "gemm",
        {
            "tile_m": (128, 256),
            "tile_n": (128, 256),
            "tile_k": (64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
            "pipeline": ("tma", "gluon_ws"),
            "scheduler": ("tile", "persistent"),
            "group_m": (4, 8, 16),
            "store": ("direct", "split"),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--rounds", type=int, default=60, help="samples of each finalist")
    options = parser.parse_args()

    gpu = live_device(0)
    configs = space().expand(arch(gpu.arch)).configs
    store = Store()
    report = build([(c, gpu.arch) for c in configs], store=store)
    print(f"{len(configs)} kernels for {gpu.name}: {report}")
    usable = [r.config for r in report.results if r.ok]
    dispatcher = Dispatcher(store=store)

    rows = []
    for m, n, k in SHAPES:
        problem = GemmProblem(m, n, k)
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).T
        reference = a.double() @ b.double()
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        calls, wrong = {}, []
        for config in usable:
            out.fill_(float("nan"))
            dispatcher.run_named(config.name, a, b, out=out)
            tolerance = ops.family("gemm").tolerance(problem, config)
            if verify.compare(out, reference, tolerance).ok:
                calls[config.name] = bound(dispatcher, config, a, b, out)
            else:
                wrong.append(config.name)
        del reference
        vendor = {"cuBLAS": lambda a=a, b=b, out=out: torch.mm(a, b, out=out)}
        warm_up(vendor["cuBLAS"])
        first = compare(calls, rounds=3)
        best = sorted(calls, key=lambda name: first[name].median)[:FINALISTS]
        final = compare({**vendor, **{name: calls[name] for name in best}}, options.rounds)
        winner = min(best, key=lambda name: final[name].median)
        ratio = final["cuBLAS"].median / final[winner].median
        tflops = problem.flops / final[winner].median / 1e6
        vendor_tflops = problem.flops / final["cuBLAS"].median / 1e6
        print(f"{m}x{n}x{k}: {tflops:.0f} vs {vendor_tflops:.0f} TFLOP/s, {ratio:.3f}  {winner}")
        rows.append(
            {
                "m": m,
                "n": n,
                "k": k,
                "kernel": winner,
                "tflops": tflops,
                "vendor_tflops": vendor_tflops,
                "ratio": ratio,
                "kernels_timed": len(calls),
                "kernels_wrong": wrong,
                "finalists": {
                    name: {"median_us": t.median, "quartiles_us": t.quartiles}
                    for name, t in final.items()
                },
            }
        )
    geomean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
    print(f"geometric mean of the ratios: {geomean:.3f}")
    if options.json:
        document = {
            "environment": environment(),
            "rounds": options.rounds,
            "rows": rows,
            "geomean_ratio": geomean,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def bound(dispatcher: Dispatcher, config: object, a, b, out):
    """A call of one kernel with its plan kept, as a dispatcher that had chosen it would make."""
    only = Dispatcher(Registry("one").register_all([config]), store=dispatcher.store)
    only.run("gemm", a, b, out=out)
    return lambda: only.run("gemm", a, b, out=out)


if __name__ == "__main__":
    main()
