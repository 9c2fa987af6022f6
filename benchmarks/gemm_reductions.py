"""How the parts of a split K are put together: the best kernels of each reduction against each
other and torch.mm, in one interleaved run.

    python benchmarks/gemm_reductions.py --json benchmarks/results/gemm_reductions_h200.json

The kernels are those of `gemm_vs_vendor.py --set odd` that split K, in bf16. Of each size and
reduction, the `EACH` with the least estimates are checked, then timed by single calls with L2
flushed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from environment import environment
from gemm_vs_vendor import SETS, bound, spaces
from harness import compare, warm_up
from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import GemmProblem

FAMILY = ops.family("gemm")
FEW = ((16, 512, 4096), (16, 1024, 8192), (64, 1024, 8192), (128, 2048, 8192))
"""Sizes of few tiles, beside the odd ones."""
REDUCTIONS = ("linear", "atomic", "two_stage", "cluster")
EACH, KEPT, ROUNDS = 24, 3, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    gpu, store = live_device(0), Store()
    this = arch(gpu.arch)
    declared = (c for space in spaces("odd", "bf16") for c in space.expand(this).configs)
    split = [c for c in declared if c.scheduler == "split_k"]
    report = build([(c, gpu.arch) for c in split], store=store)
    print(f"{len(split)} kernels for {gpu.name}: {report}")
    usable, dispatcher = [r.config for r in report.results if r.ok], Dispatcher(store=store)
    lines: list[dict[str, Any]] = []
    for m, n, k in (*SETS["odd"], *FEW):
        p = GemmProblem(m, n, k)
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).T
        out, exact = torch.empty(m, n, device="cuda", dtype=torch.bfloat16), a.double() @ b.double()
        calls: dict[str, Any] = {"torch.mm": lambda a=a, b=b, out=out: torch.mm(a, b, out=out)}
        kinds, wrong = {}, []
        for how in REDUCTIONS:
            fit = [c for c in usable if c.reduction == how and FAMILY.supports(c, p, this)]
            for c, _ in FAMILY.rank(p, fit, gpu)[:EACH]:
                out.fill_(float("nan"))
                dispatcher.run_named(c.name, a, b, out=out)
                if not verify.compare(out, exact, verify.tolerance(p, c)).ok:
                    wrong.append(c.name)
                    continue
                calls[c.name], kinds[c.name] = bound(store, c, a, b, out=out), how
        warm_up(calls["torch.mm"])
        us = {name: one.median for name, one in compare(calls, ROUNDS).items()}
        line: dict[str, Any] = {"m": m, "n": n, "k": k, "torch.mm": round(us["torch.mm"], 2)}
        for how in REDUCTIONS:
            best = sorted((x for x, kind in kinds.items() if kind == how), key=us.__getitem__)
            line[how] = {name: round(us[name], 2) for name in best[:KEPT]}
        lines.append(line | {"wrong": wrong})
        shown = {how: min(line[how].values(), default=None) for how in REDUCTIONS}
        print(f"{m}x{n}x{k}: torch.mm {line['torch.mm']}, {shown} wrong {wrong}", flush=True)
    if options.json:
        document = {"environment": environment(), "rounds": ROUNDS, "rows": lines}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
