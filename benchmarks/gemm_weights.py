"""Weights of 4 bits against cuBLAS in bf16, for decoding, in one interleaved run.

    python benchmarks/gemm_weights.py --json benchmarks/results/gemm_weights_h200.json

A is bf16, B int4 or e2m1 (fp4) with scales for groups of K; cuBLAS multiplies by the same weights
dequantised to bf16, four times the bytes, and is the better of `torch.mm` and of the fastest of
cuBLASLt's first candidates (see `cublaslt`). As in gemm_vs_vendor.py, each kernel of a declared
space is built, checked against float64 on random data, and timed briefly; the fastest few, and the
fastest of each pipeline, are timed against each other and cuBLAS, with a clean L2 (see `harness`).
With them goes what a dispatcher picks that knows no measurements (``untuned``). Nothing that failed
its check is timed. Bytes moved (each operand once) are set against those of a
large copy in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from cublaslt import candidates
from environment import environment
from gemm_vs_vendor import FINALISTS, copy_bandwidth
from harness import bound, compare, warm_up
from tilewright import KernelSpace, arrays, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import GemmConfig, GemmProblem
from tilewright.ops.gemm.names import parse

ROWS = (1, 4, 16, 64)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192), (8192, 28672))
"""(N, K) of a model's layers."""

FORMS = {
    "int4, groups of 128": {"dtype_b": "int4", "scale_b": "128x1-bf16"},
    "int4, groups of 32": {"dtype_b": "int4", "scale_b": "32x1-bf16"},
    "MX fp4 (groups of 32, e8m0)": {"dtype_b": "e2m1", "scale_b": "32x1-e8m0"},
}

MX_FORMS = ("MX fp4 (groups of 32, e8m0)",)
PIPELINES = ("gluon_weights", "weights", "mx")
SCHEDULES = [("tile", 1, "none")] + [("split_k", parts, "linear") for parts in (2, 4, 8)]
_TILES = {
    "gluon_weights": ([(64, 256, 2), (64, 256, 4), (128, 256, 4)], (2, 3)),
    "weights": ([(32, 128, 2), (64, 128, 4)], (3,)),
    "mx": ([(64, 128, 4), (128, 128, 4)], (3,)),
}
"""(columns, K, warps) and stages that can win on decode shapes, by pipeline."""


def space(form: dict[str, str], pipeline: str) -> KernelSpace:
    """The kernels of a pipeline that can win on decode shapes."""
    tiles, stages = _TILES[pipeline]
    return KernelSpace(
        "gemm",
        {
            **{name: [value] for name, value in form.items()},
            "tile_m": (8, 16, 32, 64) if pipeline == "gluon_weights" else (16, 64),
            "num_stages": stages,
            "pipeline": [pipeline],
            "group_m": [1],
        },
        linked={
            ("tile_n", "tile_k", "num_warps"): tiles,
            ("scheduler", "split_k", "reduction"): SCHEDULES,
        },
    )


def worth_timing(config: GemmConfig, m: int) -> bool:
    """Leaves out what was declared for more rows, or for far fewer."""
    return config.tile_m <= max(2 * m, 16) and m <= 2 * config.tile_m


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--rounds", type=int, default=60, help="samples of each finalist")
    parser.add_argument("--forms", nargs="+", default=[*FORMS], choices=FORMS, help="of weights")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="values of M")
    options = parser.parse_args()

    gpu = live_device(0)
    store = Store()
    family = ops.family("gemm")
    dispatcher = Dispatcher(store=store)
    this = arch(gpu.arch)
    configs = {
        form: [
            config
            for pipeline in PIPELINES
            if pipeline != "mx" or form in MX_FORMS
            for config in space(FORMS[form], pipeline).expand(this).configs
        ]
        for form in options.forms
    }
    report = build([(c, gpu.arch) for some in configs.values() for c in some], store=store)
    built = {r.config.name for r in report.results if r.ok}
    print(f"{len(built)} kernels for {gpu.name}: {report}")
    copy = copy_bandwidth()

    rows = []
    for n, k in WEIGHTS:
        for m in options.rows:
            for form in options.forms:
                fields = FORMS[form]
                problem = GemmProblem(m, n, k, **fields)
                inputs, out = verify.make_operands(problem, seed=m, device="cuda:0")
                wide = [arrays.to_float64(x) for x in inputs]
                reference = verify.reference(problem, inputs)["C"]
                said = family.options(problem)
                # The weights as cuBLAS reads them: what one-hot rows pick out of B.
                weights = dequantised(problem, wide).to(torch.bfloat16)
                vendor_out = torch.empty_like(out)
                calls, wrong = {}, []
                untuned = dispatcher.select(problem).config
                for config in dict.fromkeys([*configs[form], untuned]):
                    if config is not untuned and not worth_timing(config, m):
                        continue
                    if config is not untuned and config.name not in built:
                        continue
                    if not family.supports(config, problem, this):
                        continue
                    out.fill_(float("nan"))
                    dispatcher.run_named(config.name, *inputs, out=out, **said)
                    if verify.compare(out, reference, verify.tolerance(problem, config)).ok:
                        calls[config.name] = bound(store, config, *inputs, out=out, **said)
                    else:
                        wrong.append(config.name)
                del reference, wide
                vendor = {
                    "cuBLAS": lambda a=inputs[0], b=weights, o=vendor_out: torch.mm(a, b, out=o)
                }
                if not rows:
                    warm_up(vendor["cuBLAS"])
                listed = candidates(inputs[0], weights, vendor_out)
                first = compare({**calls, **listed}, rounds=3, clean=True)
                fastest = min(listed, key=lambda name: first[name].median)
                vendor[fastest] = listed[fastest]
                ranked = sorted(calls, key=lambda name: first[name].median)
                firsts = {parse(name).pipeline: name for name in reversed(ranked)}
                best = dict.fromkeys([*ranked[:FINALISTS], *firsts.values()])
                asked = [name for name in (untuned.name,) if name in calls]
                contenders = {**vendor, **{name: calls[name] for name in (*best, *asked)}}
                final = compare(contenders, options.rounds, clean=True)
                winner = min(best, key=lambda name: final[name].median)
                vendors_best = min(vendor, key=lambda name: final[name].median)
                us = final[winner].median
                ratio = final[vendors_best].median / us
                rate = problem.min_bytes / us / 1e3
                print(
                    f"{m}x{n}x{k} {form}: {us:.1f} us, {rate / copy:.2f} of a copy, {ratio:.2f} "
                    f"({final['cuBLAS'].median / us:.2f} to torch.mm)  {winner}",
                    flush=True,
                )
                rows.append(
                    {
                        "m": m,
                        "n": n,
                        "k": k,
                        "form": form,
                        "kernel": winner,
                        "us": us,
                        "vendor": vendors_best,
                        "vendor_us": final[vendors_best].median,
                        "ratio": ratio,
                        "ratio_to_mm": final["cuBLAS"].median / us,
                        "gb_per_s": rate,
                        "share_of_copy": rate / copy,
                        "best_of_pipelines": {
                            pipeline: {"kernel": name, "us": final[name].median}
                            for pipeline, name in firsts.items()
                        },
                        "untuned": {name: final[name].median for name in asked},
                        "kernels_timed": len(calls),
                        "kernels_wrong": wrong,
                        "finalists": {
                            name: {"median_us": t.median, "quartiles_us": t.quartiles}
                            for name, t in final.items()
                        },
                    }
                )
    geomeans = {
        form: math.exp(sum(logs) / len(logs))
        for form in options.forms
        if (logs := [math.log(row["ratio"]) for row in rows if row["form"] == form])
    }
    for form, geomean in geomeans.items():
        print(f"{form}: geometric mean of the ratios {geomean:.3f}")
    if options.json:
        document = {
            "environment": environment(),
            "rounds": options.rounds,
            "rows": rows,
            "geomean_ratios": geomeans,
            "copy_gb_per_s": copy,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def dequantised(problem: GemmProblem, wide: list) -> torch.Tensor:
    """B' [k, n], column-major: the weights times their scales, as float64."""
    from tilewright import packing
    from tilewright.ops.gemm import scales

    elements = packing.decode(wide[1], problem.dtype_b, 0)
    return scales.dequantised(elements, wide[2], problem.scale_b).T.contiguous().T


if __name__ == "__main__":
    main()
