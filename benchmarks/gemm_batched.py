"""The best batched kernel of a declared space against cuBLAS (torch.bmm), in one interleaved run.

    python benchmarks/gemm_batched.py --json benchmarks/results/gemm_batched_h200.json

Each kernel of the space is built, checked against float64 on random data, and timed briefly;
the fastest few are then timed against each other and against the vendor's library, and the one
with the best median there is reported. Nothing that failed its check is timed. Where a shape
shares B, the vendor may also fold the batch into M (torch.mm on a reshaped A); its better counts.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from environment import environment
from harness import bound, compare, warm_up
from tilewright import KernelSpace, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import GemmProblem

FINALISTS = 6


@dataclass(frozen=True)
class Row:
    """A batch of products: sizes, layout of A, B and C, and whether all share one B."""

    batch: int
    m: int
    n: int
    k: int
    layout: str = "rcr"
    shares_b: bool = False

    def __str__(self) -> str:
        shared = " shared B" if self.shares_b else ""
        return f"{self.batch}x[{self.m},{self.k}]x[{self.k},{self.n}] {self.layout}{shared}"

    @property
    def problems(self) -> dict[str, GemmProblem]:
        """By how they are batched: the row as a batch, and, where it shares B, folded."""
        how = {"layout": self.layout, "batch": self.batch}
        if not self.shares_b:
            return {"strided": GemmProblem(self.m, self.n, self.k, **how)}
        return {
            "strided": GemmProblem(self.m, self.n, self.k, **how, stride_b=0),
            "none": GemmProblem(self.batch * self.m, self.n, self.k, layout=self.layout),
        }


ROWS = (
    Row(32, 512, 512, 64),
    Row(128, 1024, 1024, 128),
    Row(64, 1, 4096, 128),
    Row(16, 2048, 2048, 64),
    Row(8, 4096, 4096, 128),
    Row(256, 128, 128, 128),
    Row(128, 1024, 128, 1024, "rrr"),
    Row(16, 2048, 64, 2048, "rrr"),
    Row(64, 1, 128, 4096, "rrr"),
    Row(32, 1024, 1024, 1024),
    Row(32, 512, 1024, 1024, shares_b=True),
    Row(64, 16, 4096, 1024, shares_b=True),
)
"""Attention's scores and outputs, for many tokens and for one; square batches; shared weights."""


SCHEDULES = [
    ("tile", 1, "none"),
    ("persistent", 1, "none"),
    ("split_k", 2, "linear"),
    ("split_k", 4, "linear"),
]


def space(layout: str, batching: str) -> KernelSpace:
    """The bf16 kernels that can win on these shapes: some two hundred for each layout."""
    return KernelSpace(
        "gemm",
        {
            "layout": (layout,),
            "batching": (batching,),
            "tile_m": (16, 64, 128),
            "tile_n": (64, 128, 256),
            "tile_k": (64, 128),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4, 6),
            "pipeline": ("tma", "gluon_ws"),
            "group_m": (1, 8),
            "store": ("direct", "split"),
        },
        {"worth timing": _worth_timing},
        linked={("scheduler", "split_k", "reduction"): SCHEDULES},
    )


def _worth_timing(c) -> bool:
    """Small tiles for few rows; for many rows wide tiles, walked by rows of C or by groups of
    rows."""
    work = c.tile_m * c.tile_n // c.num_warps
    if c.tile_m == 16:
        few = c.num_warps == 4 and c.tile_n < 256 and c.group_m == 8 and c.store == "direct"
        return few and c.pipeline == "tma" and c.scheduler != "persistent" and c.num_stages > 2
    if c.scheduler == "split_k" or not 1024 <= work <= 4096 or c.num_stages > 4:
        return False
    if c.tile_m == 64 and c.group_m == 1:
        return False
    if c.scheduler == "tile":
        return c.pipeline == "tma" and c.num_stages == 2 and c.store == "direct" and work < 4096
    return c.num_stages > 2 and (c.store == "split" or c.tile_n < 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--rounds", type=int, default=60, help="samples of each finalist")
    options = parser.parse_args()

    gpu = live_device(0)
    signatures = dict.fromkeys((row.layout, form) for row in ROWS for form in row.problems)
    configs = [c for s in signatures for c in space(*s).expand(arch(gpu.arch)).configs]
    store = Store()
    report = build([(c, gpu.arch) for c in configs], store=store)
    print(f"{len(configs)} kernels for {gpu.name}: {report}")
    usable = [r.config for r in report.results if r.ok]
    dispatcher = Dispatcher(store=store)
    rows = [measure(row, usable, dispatcher, gpu, options.rounds) for row in ROWS]
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


def operands(row: Row):
    """A and B with the layout's strides (one matrix if it is shared), and the output."""
    made = {"device": "cuda", "dtype": torch.bfloat16}
    a = torch.randn(row.batch, row.m, row.k, **made)
    batch = () if row.shares_b else (row.batch,)
    if row.layout[1] == "c":
        b = torch.randn(*batch, row.n, row.k, **made).transpose(-1, -2)
    else:
        b = torch.randn(*batch, row.k, row.n, **made)
    return a, b, torch.empty(row.batch, row.m, row.n, **made)


def vendors(row: Row, a, b, out):
    """The vendor's calls that compute it."""
    each = b.expand(row.batch, *b.shape[-2:])
    ways = {"bmm": lambda: torch.bmm(a, each, out=out)}
    if row.shares_b:
        flat, flat_out = a.view(-1, row.k), out.view(-1, row.n)
        ways["folded mm"] = lambda: torch.mm(flat, b, out=flat_out)
    return ways


def measure(row: Row, usable, dispatcher: Dispatcher, gpu, rounds: int):
    """One row: check every kernel and time it briefly, then time the best beside the vendor's."""
    family, problems, this = ops.family("gemm"), row.problems, arch(gpu.arch)
    a, b, out = operands(row)
    reference = torch.matmul(a.double(), b.double())
    calls, wrong = {}, []
    for config in usable:
        problem = problems.get(config.batching)
        if problem is None or not family.supports(config, problem, this):
            continue
        out.fill_(float("nan"))
        dispatcher.run_named(config.name, a, b, out=out)
        if verify.compare(out, reference, verify.tolerance(problem, config)).ok:
            said = family.options(problem)
            calls[config.name] = bound(dispatcher.store, config, a, b, out=out, **said)
        else:
            wrong.append(config.name)
    del reference
    vendor = vendors(row, a, b, out)
    warm_up(vendor["bmm"])
    first = compare(calls, rounds=3)
    best = sorted(calls, key=lambda name: first[name].median)[:FINALISTS]
    # What a call without a registry of measured kernels takes, of this space.
    *_, stated = problems.values()
    fitting = [c for c in usable if family.supports(c, stated, this)]
    guess = family.rank(stated, fitting, gpu)[0][0].name
    finalists = {**vendor, **{name: calls[name] for name in (*best, guess)}}
    final = compare({**finalists, "fill": out.zero_}, rounds)
    winner = min(best, key=lambda name: final[name].median)
    against = min(vendor, key=lambda name: final[name].median)
    ratio = final[against].median / final[winner].median
    guessed = final[against].median / final[guess].median
    seconds = final[winner].median / 1e6
    bandwidth = stated.min_bytes / seconds / 1e12
    print(
        f"{row}: {final[winner].median:.1f} vs {final[against].median:.1f} us ({against}), "
        f"{ratio:.3f}; {stated.flops / seconds / 1e12:.0f} TFLOP/s, {bandwidth:.2f} TB/s, "
        f"C filled in {final['fill'].median:.1f} us; by estimate {guessed:.3f}"
        f"{f'; {len(wrong)} WRONG' if wrong else ''}  {winner}"
    )
    return {
        "batch": row.batch,
        "m": row.m,
        "n": row.n,
        "k": row.k,
        "layout": row.layout,
        "shares_b": row.shares_b,
        "kernel": winner,
        "vendor": against,
        "tflops": stated.flops / seconds / 1e12,
        "terabytes_per_second": bandwidth,
        "ratio": ratio,
        "ratio_by_estimate": guessed,
        "kernels_timed": len(calls),
        "kernels_wrong": wrong,
        "finalists": {
            name: {"median_us": t.median, "quartiles_us": t.quartiles} for name, t in final.items()
        },
    }


if __name__ == "__main__":
    main()
