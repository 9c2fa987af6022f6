"""Host time of one call through each route into torch.

    python benchmarks/torch_route.py --json benchmarks/results/torch_route_h200.json

A 16×16×16 bf16 product: the GPU is never the one waited for. Contenders take turns in batches, in
an order that is turned round every other time; the median over batches of the mean host time of a
call is reported, with the quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import tilewright as tw
import tilewright.torch
from environment import environment

CALLS_A_BATCH = 200
BATCHES = 60


def contenders() -> dict[str, object]:
    """Calls by name; each returns the product."""
    a = torch.randn(16, 16, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(16, 16, device="cuda", dtype=torch.bfloat16)
    weight = torch.nn.Parameter(b.clone())
    out = torch.empty(16, 16, device="cuda", dtype=torch.bfloat16)
    run, operator = tw.default_dispatcher().run, torch.ops.tilewright.gemm
    compiled = torch.compile(tw.gemm, fullgraph=True)
    compiled_mm = torch.compile(torch.mm, fullgraph=True)

    def into_out():
        operator.out([a, b], out=[out])
        return out

    def compiled_call():
        with torch.no_grad():
            return compiled(a, b)

    def compiled_torch():
        with torch.no_grad():
            return compiled_mm(a, b)

    found = {
        "Dispatcher.run(out=)": lambda: run("gemm", a, b, out=out),
        "Dispatcher.run": lambda: run("gemm", a, b),
        "tilewright.gemm(out=)": lambda: tw.gemm(a, b, out=out),
        "tilewright.gemm": lambda: tw.gemm(a, b),
        "torch.ops.tilewright.gemm": lambda: operator([a, b])[0],
        "torch.ops.tilewright.gemm.out": into_out,
        "tilewright.gemm, gradients recorded": lambda: tw.gemm(a, weight),
        "tilewright.gemm, compiled": compiled_call,
        "torch.mm(out=)": lambda: torch.mm(a, b, out=out),
        "torch.mm": lambda: torch.mm(a, b),
        "torch.mm, gradients recorded": lambda: torch.mm(a, weight),
        "torch.mm, compiled": compiled_torch,
    }
    for name, call in found.items():
        expected = a.float() @ (weight if "recorded" in name else b).float()
        out.fill_(float("nan"))
        torch.testing.assert_close(call().float(), expected, rtol=1e-2, atol=0.1, msg=name)
    return found


def batch_us(call) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS_A_BATCH):
        call()
    return (time.perf_counter() - start) / CALLS_A_BATCH * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    calls = contenders()
    for call in calls.values():
        batch_us(call)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for batch in range(BATCHES):
        for name in calls if batch % 2 else reversed(calls):
            times[name].append(batch_us(calls[name]))
    results = {}
    for name, taken in times.items():
        low, middle, high = statistics.quantiles(taken, n=4)
        results[name] = {"median_us": middle, "quartiles_us": [low, high]}
        print(f"{name:38} {middle:8.2f} µs  ({low:.2f} … {high:.2f})")
    if options.json:
        document = {"environment": environment(), "host_us": results}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
