"""Weights of 4 bits against cuBLAS in bf16 (torch.mm), for decoding, in one interleaved run.

    python benchmarks/gemm_weights.py --json benchmarks/results/gemm_weights_h200.json

A is bf16, B int4 or e2m1 (fp4) with scales for groups of K; cuBLAS multiplies by the same weights
dequantised to bf16, four times the bytes. As in gemm_vs_vendor.py, each kernel of a declared space
is built, checked against float64 on random data, and timed briefly; the fastest few are timed
against each other and cuBLAS. Nothing that failed its check is timed.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from environment import environment
from gemm_vs_vendor import FINALISTS
from harness import bound, compare, warm_up
from tilewright import KernelSpace, arrays, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.build import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import GemmProblem

ROWS = (1, 4, 16, 32, 64)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336))
"""(N, K) of a model's layers."""

FORMS = {
    "int4, groups of 128": {"dtype_b": "int4", "scale_b": "128x1-bf16"},
    "int4, groups of 32": {"dtype_b": "int4", "scale_b": "32x1-bf16"},
    "fp4, groups of 128": {"dtype_b": "e2m1", "scale_b": "128x1-bf16"},
    "MX fp4 (groups of 32, e8m0)": {"dtype_b": "e2m1", "scale_b": "32x1-e8m0"},
}

SCHEDULES = [("tile", 1, "none")] + [("split_k", parts, "linear") for parts in (2, 4, 8)]


def space(form: dict[str, str]) -> KernelSpace:
    """The kernels that can win on decode shapes."""
    return KernelSpace(
        "gemm",
        {
            **{name: [value] for name, value in form.items()},
            "tile_m": (16, 64),
            "tile_n": (32, 64, 128),
            "tile_k": (128, 256),
            "num_warps": (2, 4),
            "num_stages": (3,),
            "pipeline": ("weights", "mx"),
        },
        linked={("scheduler", "split_k", "reduction"): SCHEDULES},
        constraints={"worth trying": _worth_trying},
    )


def _worth_trying(config) -> bool:
    if config.pipeline == "mx" and config.tile_k != 128:
        return False
    return (config.num_warps == 2) == (config.tile_m == 16 and config.tile_n == 32)


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
    configs = {form: space(FORMS[form]).expand(arch(gpu.arch)).configs for form in options.forms}
    report = build([(c, gpu.arch) for some in configs.values() for c in some], store=store)
    built = {r.config.name for r in report.results if r.ok}
    print(f"{len(built)} kernels for {gpu.name}: {report}")

    rows = []
    for n, k in WEIGHTS:
        for m in options.rows:
            for form in options.forms:
                fields = FORMS[form]
                problem = GemmProblem(m, n, k, **fields)
                inputs, out = verify.make_operands(problem, seed=m, device="cuda:0")
                wide = [arrays.to_float64(x) for x in inputs]
                reference = family.reference(problem, wide)
                said = family.options(problem)
                # The weights as cuBLAS reads them: what one-hot rows pick out of B.
                weights = dequantised(problem, wide).to(torch.bfloat16)
                vendor_out = torch.empty_like(out)
                calls, wrong = {}, []
                for config in configs[form]:
                    fits = config.tile_m == 16 or config.tile_m <= m
                    if config.name not in built or not fits:
                        continue
                    if not family.supports(config, problem, arch(gpu.arch)):
                        continue
                    out.fill_(float("nan"))
                    dispatcher.run_named(config.name, *inputs, out=out, **said)
                    if verify.compare(out, reference, family.tolerance(problem, config)).ok:
                        calls[config.name] = bound(store, config, *inputs, out=out, **said)
                    else:
                        wrong.append(config.name)
                vendor = {
                    "cuBLAS": lambda a=inputs[0], b=weights, o=vendor_out: torch.mm(a, b, out=o)
                }
                if not rows:
                    warm_up(vendor["cuBLAS"])
                first = compare(calls, rounds=3)
                best = sorted(calls, key=lambda name: first[name].median)[:FINALISTS]
                contenders = {**vendor, **{name: calls[name] for name in best}}
                final = compare(contenders, options.rounds)
                winner = min(best, key=lambda name: final[name].median)
                us = final[winner].median
                ratio = final["cuBLAS"].median / us
                rate = problem.min_bytes / us / 1e6
                print(f"{m}x{n}x{k} {form}: {us:.1f} us, {rate:.2f} TB/s, {ratio:.2f}  {winner}")
                rows.append(
                    {
                        "m": m,
                        "n": n,
                        "k": k,
                        "form": form,
                        "kernel": winner,
                        "us": us,
                        "vendor_us": final["cuBLAS"].median,
                        "ratio": ratio,
                        "terabytes_per_second": rate,
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
