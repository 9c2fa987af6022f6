"""The cost of an epilogue: each kernel with it against the same kernel without, in one run.

    python benchmarks/gemm_epilogues.py --json benchmarks/results/gemm_epilogues_h200.json

Every kernel of a small space is built twice, with the epilogue and without, checked against
float64 and timed briefly; the fastest few with the epilogue are then timed against their plain
twins and against the fastest plain kernels.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from environment import environment
from harness import bound, compare, warm_up
from tilewright import KernelSpace, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.ops.gemm import GemmConfig, GemmProblem

PROBLEMS = (
    GemmProblem(4096, 4096, 4096, "bf16", epilogue="bias+gelu"),
    GemmProblem(8192, 16384, 4096, "bf16", epilogue="bias+gelu"),
    GemmProblem(8192, 8192, 8192, "bf16", epilogue="bias+gelu"),
    GemmProblem(4096, 8192, 4096, "bf16", epilogue="swiglu"),
    GemmProblem(8192, 28672, 4096, "bf16", epilogue="swiglu"),
    GemmProblem(4096, 4096, 4096, "e4m3fn", epilogue="row_scale+col_scale"),
    GemmProblem(8192, 8192, 8192, "e4m3fn", epilogue="row_scale+col_scale"),
    GemmProblem(8192, 14336, 4096, "e4m3fn", epilogue="row_scale+col_scale"),
    GemmProblem(4096, 4096, 4096, "int8", epilogue="row_scale+col_scale"),
)
FINALISTS = 3


def space(problem: GemmProblem) -> KernelSpace:
    """Kernels that can win with `problem`'s epilogue."""
    deep = 64 if problem.dtype_a == "bf16" else 128
    return KernelSpace(
        "gemm",
        {
            "dtype_a": [problem.dtype_a],
            "epilogue": [problem.epilogue],
            "tile_m": (128,),
            "tile_n": (128, 192, 256),
            "tile_k": [deep],
            "num_warps": (8,),
            "num_stages": (3, 4, 6),
            "group_m": (8, 16),
            "store": ("direct", "split"),
            "pipeline": ("tma", "gluon_ws", "gluon_pingpong"),
            "scheduler": ("persistent",),
        },
    )


def plain(config: GemmConfig) -> GemmConfig:
    """The same kernel without its epilogue."""
    dtype_c = "int32" if config.dtype_a == "int8" else config.dtype_c
    return replace(config, epilogue="", dtype_c=dtype_c)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--rounds", type=int, default=40, help="samples of each finalist")
    options = parser.parse_args()

    gpu = live_device(0)
    this, family, store = arch(gpu.arch), ops.family("gemm"), Store()
    wanted: dict[str, GemmConfig] = {}
    for problem in PROBLEMS:
        for config in space(problem).expand(this).configs:
            wanted |= {config.name: config, plain(config).name: plain(config)}
    report = build([(c, gpu.arch) for c in wanted.values()], store=store)
    print(f"{len(wanted)} kernels for {gpu.name}: {report}")
    usable = {r.config.name for r in report.results if r.ok}

    rows = []
    for number, problem in enumerate(PROBLEMS):
        bare = replace(
            problem, epilogue="", dtype_c="int32" if problem.dtype_a == "int8" else problem.dtype_c,
            ldc=0, alignment=0,
        )  # fmt: skip
        calls, wrong = {}, []
        for stated in (problem, bare):
            inputs, out = verify.make_operands(stated, seed=number, device="cuda")
            reference = verify.reference(stated, inputs)["C"]
            for config in space(problem).expand(this).configs:
                chosen = config if stated is problem else plain(config)
                if chosen.name not in usable or not family.supports(chosen, stated, this):
                    continue
                call = bound(store, chosen, *inputs, out=out, **family.options(stated))
                out.fill_(-1 if stated.dtype_c == "int32" else float("nan"))
                call()
                if verify.compare(out, reference, verify.tolerance(stated, chosen)).ok:
                    calls[chosen.name] = call
                else:
                    wrong.append(chosen.name)
            del reference
        chained = [n for n in calls if "_epi-" in n]
        warm_up(calls[next(iter(calls))])
        first = compare(calls, rounds=4)
        ranked = sorted(calls, key=lambda n: first[n].median)
        twin_of = {n: plain(family.parse_name(n)).name for n in chained}
        best = [n for n in ranked if twin_of.get(n) in calls][:FINALISTS]
        twins = [twin_of[n] for n in best]
        fastest = [n for n in ranked if n not in twin_of][:FINALISTS]
        names = dict.fromkeys([*best, *twins, *fastest])
        final = compare({n: calls[n] for n in names}, options.rounds)
        winner = min(best, key=lambda n: final[n].median)
        twin = twin_of[winner]
        least = min(fastest, key=lambda n: final[n].median)
        row = {
            "problem": str(problem),
            "kernel": winner,
            "us": final[winner].median,
            "without_us": final[twin].median,
            "ratio": final[twin].median / final[winner].median,
            "best_without": least,
            "best_without_us": final[least].median,
            "ratio_to_best_without": final[least].median / final[winner].median,
            "kernels_wrong": wrong,
        }
        rows.append(row)
        print(
            f"{problem}: {row['us']:.1f} us, without {row['without_us']:.1f} "
            f"({row['ratio']:.3f}), best without {row['best_without_us']:.1f} "
            f"({row['ratio_to_best_without']:.3f})  {winner}"
        )
    if options.json:
        document = {"environment": environment(), "rounds": options.rounds, "rows": rows}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
