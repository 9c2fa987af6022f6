"""Mixture-of-experts products against torch: the best kernel of a declared space, interleaved.

    python benchmarks/grouped_gemm.py --set masked --json grouped_masked_h200.json

bf16, weights as [experts, n, k]. Loads are skewed as routers skew them: expert number r has a share
like 1/(r+1), in random order, and every eighth expert has no row. ``contiguous`` is compared with
torch._grouped_mm; ``masked`` (capacity: the largest load, rounded up to 16) with the better of
torch.bmm over all of the capacity, which is what torch has for it, and of torch._grouped_mm on the
same rows gathered.

Each kernel is checked against float64 on a poisoned output before it is timed, briefly; the fastest
few are then timed against each other and against torch, and so is the kernel that the default
dispatcher chooses, which measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from environment import environment
from harness import bound, compare, warm_up
from tilewright import KernelSpace, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.ops.grouped_gemm import GroupedGemmProblem

SHAPES = (
    (256, 8, 14336, 4096),
    (4096, 8, 14336, 4096),
    (16384, 8, 4096, 14336),
    (512, 32, 2816, 2048),
    (8192, 32, 4096, 7168),
    (256, 64, 2816, 2048),
    (4096, 64, 2816, 2048),
    (16384, 64, 2816, 2048),
    (1024, 128, 4096, 7168),
    (8192, 128, 7168, 2048),
    (256, 256, 4096, 7168),
    (4096, 256, 7168, 2048),
    (16384, 256, 4096, 7168),
    (16384, 256, 7168, 2048),
)
"""(rows of all experts, experts, n, k): layers of mixture-of-experts models, few rows to many."""

MASKED = (
    (256, 8, 14336, 4096),
    (512, 32, 2816, 2048),
    (4096, 64, 2816, 2048),
    (8192, 128, 7168, 2048),
)

FINALISTS = 4


def space(form: str) -> KernelSpace:
    """Kernels that can win on these shapes."""
    gluon = [
        ("gluon_ws", 128, 256, 64, 8, 3, "split"),
        ("gluon_ws", 128, 256, 64, 8, 3, "direct"),
        ("gluon_ws", 128, 128, 64, 8, 4, "direct"),
        ("gluon_ws", 128, 128, 128, 8, 3, "direct"),
        ("gluon_ws", 64, 256, 64, 4, 4, "direct"),
        ("gluon_ws", 64, 128, 64, 4, 6, "direct"),
        ("gluon_ws", 64, 128, 128, 4, 4, "direct"),
    ]
    tma = [
        ("tma", 128, 256, 64, 8, 3, "split"),
        ("tma", 128, 128, 64, 8, 4, "direct"),
        ("tma", 64, 256, 64, 4, 4, "direct"),
        ("tma", 64, 128, 64, 4, 5, "direct"),
        ("tma", 64, 128, 128, 4, 3, "direct"),
        ("tma", 64, 64, 128, 4, 4, "direct"),
        ("tma", 32, 128, 128, 4, 4, "direct"),
        ("tma", 16, 128, 128, 4, 5, "direct"),
        ("tma", 16, 64, 256, 4, 4, "direct"),
        ("tma", 16, 256, 64, 4, 5, "direct"),
    ]
    fields = ("pipeline", "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "store")
    return KernelSpace("grouped_gemm", {"form": [form]}, linked={fields: [*gluon, *tma]})


def loads(rows: int, experts: int, seed: int) -> list[int]:
    """Rows of each expert: skewed, an eighth of them without any."""
    generator = torch.Generator().manual_seed(seed)
    share = 1.0 / torch.arange(1, experts + 1)
    share = share[torch.randperm(experts, generator=generator)]
    share[::8] = 0
    drawn = torch.multinomial(share, rows, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=experts).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--set", choices=("contiguous", "masked"), default="contiguous")
    parser.add_argument("--rounds", type=int, default=40, help="samples of each finalist")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the shapes to run")
    options = parser.parse_args()

    gpu = live_device(0)
    configs = space(options.set).expand(arch(gpu.arch)).configs
    store = Store()
    report = build([(c, gpu.arch) for c in configs], store=store)
    print(f"{len(configs)} kernels for {gpu.name}: {report}")
    usable = [r.config for r in report.results if r.ok]

    shapes = SHAPES if options.set == "contiguous" else MASKED
    chosen = [shapes[i] for i in options.only] if options.only else shapes
    rows = [measure(options.set, shape, usable, store, options.rounds) for shape in chosen]
    geomean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
    default = math.exp(sum(math.log(row["default_ratio"]) for row in rows) / len(rows))
    print(f"geometric mean of the ratios: {geomean:.3f}; of the default's choices: {default:.3f}")
    if options.json:
        document = {
            "environment": environment(),
            "set": options.set,
            "rounds": options.rounds,
            "rows": rows,
            "geomean_ratio": geomean,
            "geomean_default_ratio": default,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def measure(form: str, shape: tuple[int, int, int, int], usable, store: Store, rounds: int) -> dict:
    """Check and time every kernel for one shape."""
    tokens, experts, n, k = shape
    sizes = loads(tokens, experts, seed=experts)
    weights = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16)
    b = weights.transpose(1, 2)
    packed = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
    ends = torch.tensor(sizes, device="cuda").cumsum(0).to(torch.int32)
    torch_grouped = lambda: torch._grouped_mm(packed, b, offs=ends)  # noqa: E731
    vendor = {"torch._grouped_mm": torch_grouped}
    if form == "contiguous":
        a, where, m = packed, ends, tokens
    else:
        m = -(-max(sizes) // 16) * 16
        a = torch.randn(experts, m, k, device="cuda", dtype=torch.bfloat16)
        where = torch.tensor(sizes, device="cuda", dtype=torch.int32)
        full = torch.empty(experts, m, n, device="cuda", dtype=torch.bfloat16)
        vendor["torch.bmm"] = lambda: torch.bmm(a, b, out=full)
    problem = GroupedGemmProblem(form, experts, m, n, k)
    out = torch.empty(*a.shape[:-1], n, device="cuda", dtype=torch.bfloat16)
    reference = torch.full(out.shape, float("nan"), device="cuda", dtype=torch.float64)
    begin = 0
    for expert, size in enumerate(sizes):
        at = (slice(begin, begin + size),) if form == "contiguous" else (expert, slice(0, size))
        reference[at] = a[at].double() @ b[expert].double()
        begin += size

    family, this = ops.family("grouped_gemm"), arch(live_device(0).arch)
    calls, wrong = {}, []
    for config in usable:
        if not family.supports(config, problem, this):
            continue
        out.fill_(float("nan"))
        call = bound(store, config, a, b, where, out=out)
        if verify.compare(out, reference, verify.tolerance(problem, config)).ok:
            calls[config.name] = call
        else:
            wrong.append(config.name)
    warm_up(torch_grouped)
    first = compare(calls, rounds=3)
    best = sorted(calls, key=lambda name: first[name].median)[:FINALISTS]
    usual = Dispatcher(store=store)
    out.fill_(float("nan"))
    usual.run("grouped_gemm", a, b, where, out=out)
    config = usual.select(problem).config
    default_ok = verify.compare(out, reference, verify.tolerance(problem, config)).ok
    del reference
    default = {"default": lambda: usual.run("grouped_gemm", a, b, where, out=out)}
    final = compare({**vendor, **default, **{name: calls[name] for name in best}}, rounds)
    winner = min(best, key=lambda name: final[name].median)
    theirs = min(vendor, key=lambda name: final[name].median)
    time, vendor_time = final[winner].median, final[theirs].median
    flops = 2 * tokens * n * k
    moved = 2 * (tokens * k + sum(s > 0 for s in sizes) * n * k + tokens * n)
    print(
        f"{tokens:6} rows {experts:3} experts {n}x{k}: {time:.1f} us, "
        f"{flops / time / 1e6:.0f} TFLOP/s, {moved / time / 1e3:.0f} GB/s; "
        f"{theirs} {vendor_time:.1f} us; {vendor_time / time:.3f} "
        f"(default {vendor_time / final['default'].median:.3f})  {winner[13:]}",
        flush=True,
    )
    return {
        "rows": tokens,
        "experts": experts,
        "n": n,
        "k": k,
        "experts_with_rows": sum(size > 0 for size in sizes),
        "largest_load": max(sizes),
        "capacity": m if form == "masked" else None,
        "kernel": winner,
        "us": time,
        "tflops": flops / time / 1e6,
        "gbs": moved / time / 1e3,
        "vendor": theirs,
        "vendor_us": vendor_time,
        "ratio": vendor_time / time,
        "default_kernel": config.name,
        "default_ok": default_ok,
        "default_ratio": vendor_time / final["default"].median,
        "kernels_timed": len(calls),
        "kernels_wrong": wrong,
        "first": {name: timing.median for name, timing in first.items()},
        "finalists": {
            name: {"median_us": t.median, "quartiles_us": t.quartiles} for name, t in final.items()
        },
    }


if __name__ == "__main__":
    main()
