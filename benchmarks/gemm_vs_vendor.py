"""The best kernel of a declared space against cuBLAS, in one interleaved run.

    python benchmarks/gemm_vs_vendor.py --set large --json benchmarks/results/gemm_large_h200.json

Each kernel of the space is built, checked against float64 on random data, and timed briefly;
the fastest few are then timed against each other and against the vendor's library, and the one
with the best median there is reported. Nothing that failed its check is timed. The vendor's time
is the better of `torch.mm` and of the fastest of cuBLASLt's first candidates (see `cublaslt`).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from cublaslt import candidates
from environment import environment
from harness import compare, warm_up
from tilewright import KernelSpace, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.build import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import GemmProblem
from tilewright.registry import Registry

SETS = {
    "large": (
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (2048, 28672, 4096),
        (8192, 4096, 14336),
        # sampled over the (N, K) of models' layers, one M each
        (32768, 4096, 8192),
        (16384, 7168, 8192),
        (2048, 26624, 16384),
        (60288, 4096, 2048),
        (5504, 6144, 5376),
        (2048, 11264, 7168),
        (8192, 17408, 4096),
    ),
    "odd": (
        (2048, 2112, 7168),
        (3840, 4096, 2048),
        (512, 768, 4096),
        (512, 512, 8192),
        (256, 256, 16384),
        (1024, 1024, 8192),
        (128, 4096, 14336),
    ),
    "decode": (
        (1, 4096, 4096),
        (1, 4096, 14336),
        (4, 7168, 2048),
        (8, 2112, 7168),
        (16, 28672, 4096),
        (32, 4096, 7168),
        (64, 2112, 7168),
        (64, 24576, 1536),
    ),
}
"""Lists of (M, N, K): large products, odd waves and large K, and decoding."""

FINALISTS = 6
SCHEDULES = [("tile", 1, "none"), ("persistent", 1, "none")]
SHARED = [("stream_k", 1, "linear"), ("stream_k", 1, "tree")] + [
    ("split_k", parts, "linear") for parts in (2, 4, 8, 16)
]


def space(name: str, dtype: str) -> KernelSpace:
    """The rcr kernels that can win on a set's shapes: a few hundred at most."""
    pipelines: tuple[str, ...] = ("tma",)
    if name == "large":
        axes = {
            "tile_m": (128, 256),
            "tile_n": (128, 256),
            "tile_k": (64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
            "group_m": (4, 8, 16),
            "store": ("direct", "split"),
        }
        schedules = SCHEDULES
        pipelines = ("tma", "gluon_ws")
    elif name == "odd":
        axes = {
            "tile_m": (64, 128),
            "tile_n": (64, 128, 256),
            "num_warps": (4, 8),
            "num_stages": (3, 4),
        }
        schedules = SCHEDULES + SHARED
        pipelines = ("tma", "gluon_ws")
    else:
        axes = {
            "tile_m": (16, 64),
            "tile_n": (32, 64, 128),
            "tile_k": (64, 128, 256),
            "num_warps": (4,),
            "num_stages": (3, 5),
        }
        schedules = SCHEDULES[:1] + SHARED[2:]
        pipelines = ("basic", "tma")
    return KernelSpace(
        "gemm",
        {**axes, "dtype_a": [dtype], "pipeline": pipelines},
        linked={("scheduler", "split_k", "reduction"): schedules},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--set", choices=SETS, default="large", help="which list of shapes")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--rounds", type=int, default=60, help="samples of each finalist")
    options = parser.parse_args()

    gpu = live_device(0)
    configs = space(options.set, options.dtype).expand(arch(gpu.arch)).configs
    store = Store()
    report = build([(c, gpu.arch) for c in configs], store=store)
    print(f"{len(configs)} kernels for {gpu.name}: {report}")
    usable = [r.config for r in report.results if r.ok]
    dispatcher = Dispatcher(store=store)
    element = getattr(torch, DTYPES[options.dtype].torch)

    rows = []
    for m, n, k in SETS[options.set]:
        problem = GemmProblem(m, n, k, options.dtype)
        a = torch.randn(m, k, device="cuda", dtype=element)
        b = torch.randn(n, k, device="cuda", dtype=element).T
        reference = a.double() @ b.double()
        out = torch.empty(m, n, device="cuda", dtype=element)
        calls, wrong = {}, []
        for config in usable:
            if not ops.family("gemm").supports(config, problem, arch(gpu.arch)):
                continue
            out.fill_(float("nan"))
            dispatcher.run_named(config.name, a, b, out=out)
            tolerance = ops.family("gemm").tolerance(problem, config)
            if verify.compare(out, reference, tolerance).ok:
                calls[config.name] = bound(dispatcher, config, a, b, out)
            else:
                wrong.append(config.name)
        del reference
        vendor = {"cuBLAS": lambda a=a, b=b, out=out: torch.mm(a, b, out=out)}
        listed = candidates(a, b, out)
        warm_up(vendor["cuBLAS"])
        first = compare({**calls, **listed}, rounds=3)
        best = sorted(calls, key=lambda name: first[name].median)[:FINALISTS]
        fastest = min(listed, key=lambda name: first[name].median)
        vendor[fastest] = listed[fastest]
        final = compare({**vendor, **{name: calls[name] for name in best}}, options.rounds)
        winner = min(best, key=lambda name: final[name].median)
        vendors_best = min(vendor, key=lambda name: final[name].median)
        ratio = final[vendors_best].median / final[winner].median
        tflops = problem.flops / final[winner].median / 1e6
        vendor_tflops = problem.flops / final[vendors_best].median / 1e6
        print(
            f"{m}x{n}x{k}: {tflops:.0f} vs {vendor_tflops:.0f} TFLOP/s ({vendors_best}), "
            f"{ratio:.3f}  {winner}"
        )
        rows.append(
            {
                "m": m,
                "n": n,
                "k": k,
                "kernel": winner,
                "vendor": vendors_best,
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
            "set": options.set,
            "dtype": options.dtype,
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
