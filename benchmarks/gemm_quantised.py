"""Quantised GEMM against torch's own calls of the vendor's library, in one interleaved run.

    python benchmarks/gemm_quantised.py --set block --json benchmarks/results/gemm_block_h200.json

    block   fp8 with a scale for 1×128 of A and 128×128 of B; vendor: torch._scaled_mm, same scales
    scale   fp8 with one scale (epilogue `scale`); vendor: torch._scaled_mm, fast accumulation
    rows    fp8 with a scale for each row of A and column of B (epilogue); vendor: torch._scaled_mm
    int8    int8 to int32; vendor: torch._int_mm

Operands are normal values, quantised; A's scales lie M-major where blocks have them, as the
vendor wants it. Each kernel of the space is checked against float64 and timed briefly, the
fastest few are timed against the vendor, and the best median is reported. A call of a few
microseconds is mostly launch to events, so `kernel_us` says what the profiler (CUPTI) gives for the
kernel alone, with L2 flushed as well. A call of hundreds, in a row of such calls, runs at the clock
that the board's power allows; published figures of block-scaled kernels (DeepGEMM's
testing/bench.py) are the profiler's means of 30 calls with 8 GB set to zero before each, here
`cooled_kernel_us`. Both begin with a GPU that has rested. Clock and power of calls without pauses
are under `sustained`, whose time is the host's where a call is shorter than its launch.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
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
from tilewright.quantise import quantise

SQUARES = tuple((n, n, n) for n in (1024, 2048, 4096, 8192))
LAYERS = ((4096, 7168, 2048), (4096, 4096, 7168), (2048, 28672, 4096), (8192, 4096, 14336))
SHAPES = {
    "block": (
        (4096, 7168, 16384),
        *LAYERS,
        (4096, 24576, 1536),
        (64, 2112, 7168),
        (128, 7168, 2048),
    ),
    "scale": (*SQUARES, *LAYERS),
    "rows": (*SQUARES, *LAYERS),
    "int8": (*SQUARES, *LAYERS),
}
"""Lists of (M, N, K)."""

OPTIONS = {
    "block": {"scale_a": "1x128", "scale_b": "128x128"},
    "scale": {"epilogue": "scale"},
    "rows": {"epilogue": "row_scale+col_scale"},
    "int8": {},
}
FINALISTS = 4
REST_SECONDS = 1.5
"""What a board that was at its limit of power needs to clock up again."""

TILES = (
    ("tma", 64, 128, 4, 4, "direct"),
    ("tma", 128, 256, 8, 3, "direct"),
    ("gluon_ws", 64, 64, 4, 8, "direct"),
    ("gluon_ws", 64, 128, 4, 6, "direct"),
    ("gluon_ws", 64, 256, 4, 4, "split"),
    ("gluon_ws", 128, 128, 8, 4, "direct"),
    ("gluon_ws", 128, 128, 8, 6, "split"),
    ("gluon_ws", 128, 192, 8, 4, "split"),
    ("gluon_ws", 192, 128, 12, 4, "direct"),
    ("gluon_ws", 192, 192, 12, 4, "split"),
    ("gluon_ws", 128, 256, 8, 3, "direct"),
    ("gluon_ws", 128, 256, 8, 4, "split"),
    ("gluon_ws", 256, 128, 8, 3, "direct"),
    ("gluon_pingpong", 64, 128, 8, 6, "split"),
    ("gluon_pingpong", 64, 256, 8, 4, "split"),
    ("gluon_pingpong", 128, 128, 8, 5, "direct"),
    ("gluon_pingpong", 128, 128, 8, 6, "split"),
    ("gluon_pingpong", 128, 192, 8, 4, "split"),
)
"""Tiles, with the pipelines that have them, for operands without block scales."""


def spaces(name: str) -> list[KernelSpace]:
    """The kernels that can win on a set's shapes: about a hundred."""
    signature = {"dtype_a": ["int8" if name == "int8" else "e4m3fn"], "tile_k": [128]}
    signature |= {field: [word] for field, word in OPTIONS[name].items()}
    if name == "block":
        gluon = {"pipeline": ["gluon_scaled"], "scheduler": ["persistent"], "store": ["split"]}
        large = {"tile_m": (128, 256), "tile_n": (64, 128, 256), "num_stages": (3, 4, 5, 6)}
        small = {"tile_m": (64,), "tile_n": (16, 32, 64, 128), "num_stages": (4, 8)}
        parts = [("split_k", n, "linear") for n in (2, 4, 7, 8)] + [("tile", 1, "none")]
        deep = [(16, 512, s) for s in (4, 5)] + [(32, 256, s) for s in (6, 8)] + [(32, 512, 4)]
        deep += [(64, 128, s) for s in (6, 8)] + [(64, 256, s) for s in (4, 6)]
        deep += [(128, 128, s) for s in (6, 8)]
        shared = [("split_k", n, "linear") for n in (2, 4, 7)] + [("persistent", 1, "none")]
        shared += [("split_k", n, "atomic") for n in (2, 3, 4)]
        shared += [("split_k", n, "two_stage") for n in (4, 8, 16)]
        return [
            KernelSpace("gemm", {**signature, **gluon, **large, "group_m": (8, 16)}),
            KernelSpace("gemm", {**signature, **gluon, **small, "num_warps": (4,)}),
            KernelSpace(
                "gemm",
                {
                    **{field: one for field, one in signature.items() if field != "tile_k"},
                    "tile_m": (64,),
                    "num_warps": (4,),
                    "pipeline": ["gluon_scaled"],
                },
                linked={
                    ("tile_n", "tile_k", "num_stages"): deep,
                    ("scheduler", "split_k", "reduction"): shared,
                },
            ),
            KernelSpace(
                "gemm",
                {**signature, **small, "num_warps": (4,), "pipeline": ["tma"]},
                linked={("scheduler", "split_k", "reduction"): parts},
            ),
        ]
    return [
        KernelSpace(
            "gemm",
            {
                **signature,
                "group_m": (4, 8, 16),
                "scheduler": ["persistent"],
            },
            linked={("pipeline", "tile_m", "tile_n", "num_warps", "num_stages", "store"): TILES},
        )
    ]


def operands(name: str, m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """A, B and the further arguments of a call."""
    if name == "int8":
        a, b = (
            torch.randint(-128, 128, (rows, k), dtype=torch.int8, device="cuda") for rows in (m, n)
        )
        return a, b.T
    x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    if name == "block":
        a, sa = quantise(x, "1x128")
        b, sb = quantise(w.T, "128x128")
        return a, b, sa.T.contiguous().T, sb
    whole = {"scale": (1 << 20, 1 << 20), "rows": (1, 1 << 20)}[name]
    a, sa = quantise(x, f"{whole[0]}x{whole[1]}")
    b, sb = quantise(w.T, f"{whole[1]}x{whole[0]}")
    return (a, b, (sa * sb).reshape(())) if name == "scale" else (a, b, sa, sb)


def vendors(name: str, given: tuple[torch.Tensor, ...]) -> dict[str, object]:
    """torch's calls for the same product, by name. Calls that torch refuses are left out, and
    named."""
    if name == "int8":
        a, b = given
        calls = {"torch._int_mm": lambda: torch._int_mm(a, b)}
    else:
        a, b, *extra = given
        one = torch.ones((), device="cuda")
        sa, sb = extra if len(extra) == 2 else (extra[0], one)
        calls = {
            f"torch._scaled_mm{' fast' if fast else ''}": lambda fast=fast: torch._scaled_mm(
                a, b, sa, sb, out_dtype=torch.bfloat16, use_fast_accum=fast
            )
            for fast in ((False,) if name == "block" else (True, False))
        }
    return {label: call for label, call in calls.items() if taken(label, call)}


def taken(label: str, call: object) -> bool:
    """Whether torch accepts such a call on this GPU."""
    try:
        call()
        torch.cuda.synchronize()
    except (RuntimeError, ValueError) as error:
        print(f"{label} refuses: {str(error).splitlines()[0]}")
        return False
    return True


def kernel_us(
    call: object,
    rounds: int = 20,
    uncounted: int = 0,
    flushed: int = 256 << 20,
    over: object = statistics.median,
) -> float:
    """Time of the call's kernel by the profiler, with `flushed` bytes set to zero before each call.
    The GPU has rested and then made some calls that do not count."""
    from torch.profiler import ProfilerActivity, profile

    flush = torch.empty(flushed, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    time.sleep(REST_SECONDS)
    for _ in range(uncounted):
        flush.zero_()
        call()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(rounds):
            flush.zero_()
            call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in trace.events():
        on_device = event.device_type == torch.autograd.DeviceType.CUDA
        if on_device and not any(word in event.name for word in ("Memset", "FillFunctor")):
            found.setdefault(event.name, []).append(event.time_range.elapsed_us())
    return sum(over(times) * (len(times) // rounds) for times in found.values())


def cooled_kernel_us(call: object) -> float:
    """The same product through DeepGEMM: see above."""
    return kernel_us(call, rounds=30, uncounted=30, flushed=8 * 10**9, over=statistics.mean)


def sustained(call: object, us: float, seconds: float = 0.7) -> dict[str, float]:
    """The time of a call of about `us`, the clock and the power when it is repeated without pauses
    or flushes."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    calls = math.ceil(seconds * 1e6 / us)
    with ThreadPoolExecutor() as pool:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        watch = pool.submit(subprocess.check_output, query, text=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        mhz, watts = (float(word) for word in watch.result().split(","))
    return {"us": start.elapsed_time(end) / calls * 1e3, "clock_mhz": mhz, "watts": watts}


def about(call: object) -> dict[str, object]:
    """A call's kernel after a rest and without any."""
    cooled = cooled_kernel_us(call)
    return {"cooled_kernel_us": cooled, "sustained": sustained(call, cooled)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--set", choices=SHAPES, default="block", help="which comparison")
    parser.add_argument("--rounds", type=int, default=40, help="samples of each finalist")
    options = parser.parse_args()

    gpu, family = live_device(0), ops.family("gemm")
    this = arch(gpu.arch)
    configs = [c for space in spaces(options.set) for c in space.expand(this).configs]
    store = Store()
    report = build([(c, gpu.arch) for c in configs], store=store)
    print(f"{len(configs)} kernels for {gpu.name}: {report}")
    usable = [r.config for r in report.results if r.ok]
    dispatcher, words = Dispatcher(store=store), OPTIONS[options.set]

    rows = []
    for m, n, k in SHAPES[options.set]:
        problem = GemmProblem(m, n, k, dtype_a=configs[0].dtype_a, **words)
        given = operands(options.set, m, n, k)
        reference = verify.reference(problem, given)["C"]
        kind = torch.int32 if options.set == "int8" else torch.bfloat16
        out = torch.empty(m, n, device="cuda", dtype=kind)
        calls, wrong = {}, []
        for config in usable:
            if not family.supports(config, problem, this):
                continue
            verify.arrays.poison(out)
            dispatcher.run_named(config.name, *given, out=out, **words)
            if verify.compare(out, reference, verify.tolerance(problem, config)).ok:
                calls[config.name] = bound(store, config, *given, out=out, **words)
            else:
                wrong.append(config.name)
        del reference
        vendor = vendors(options.set, given)
        warm_up(next(iter(calls.values())))
        first = compare(calls, rounds=3)
        best = sorted(calls, key=lambda name: first[name].median)[:FINALISTS]
        final = compare({**vendor, **{name: calls[name] for name in best}}, options.rounds)
        winner = min(best, key=lambda name: final[name].median)
        row = {
            "m": m,
            "n": n,
            "k": k,
            "kernel": winner,
            "tflops": problem.flops / final[winner].median / 1e6,
            "kernel_us": kernel_us(calls[winner]),
            **(about(calls[winner]) if options.set == "block" else {}),
            "kernels_timed": len(calls),
            "kernels_wrong": wrong,
            "finalists": {
                name: {"median_us": t.median, "quartiles_us": t.quartiles}
                for name, t in final.items()
            },
        }
        text = f"{m}x{n}x{k}: {row['tflops']:.0f} TFLOP/s, kernel {row['kernel_us']:.1f} us"
        if vendor:
            other = min(vendor, key=lambda name: final[name].median)
            row["vendor"] = other
            row["vendor_tflops"] = problem.flops / final[other].median / 1e6
            row["vendor_kernel_us"] = kernel_us(vendor[other])
            if options.set == "block":
                row |= {f"vendor_{name}": one for name, one in about(vendor[other]).items()}
            row["ratio"] = final[other].median / final[winner].median
            text += f"; {other} {row['vendor_tflops']:.0f}, {row['vendor_kernel_us']:.1f} us; "
            text += f"ratio {row['ratio']:.3f}"
        if options.set == "block":
            cooled = problem.flops / row["cooled_kernel_us"] / 1e6
            text += f"; cooled {cooled:.0f} TFLOP/s, sustained {row['sustained']}"
        print(f"{text}  {winner}  wrong: {len(wrong)}")
        rows.append(row)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    geomean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    print(f"geometric mean of {len(ratios)} ratios: {geomean}")
    if options.json:
        document = {
            "environment": environment(),
            "set": options.set,
            "rounds": options.rounds,
            "rows": rows,
            "geomean_ratio": geomean,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
