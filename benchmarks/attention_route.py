"""Host time of one call of attention through each route, beside torch's.

    python benchmarks/attention_route.py --json benchmarks/results/attention_route_h200.json

One query of one sequence over 16 keys, bf16: the GPU is never the one waited for. Contenders take
turns in batches, in an order that is turned round every other time; the median over batches of the
mean host time of a call is reported, with the quartiles. Results are compared with torch's first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import tilewright as tw
from environment import environment
from tilewright.flash_attn import flash_attn_func, flash_attn_with_kvcache
from tilewright.serving import PagedAttention

KEYS, HEADS, DIM = 16, 8, 64
TORCH = "scaled_dot_product_attention"
Call = Callable[[], torch.Tensor]


def contenders(device: str) -> dict[str, Call]:
    """Calls by name; each returns O of the same attention, in one shape or another."""
    q = torch.randn(1, 1, HEADS, DIM, device=device).bfloat16()
    k, v = torch.randn(2, 1, KEYS, HEADS, DIM, device=device).bfloat16()
    out = torch.empty_like(q)
    run, heads_first = tw.default_dispatcher().run, [x.transpose(1, 2) for x in (q, k, v)]
    used = torch.full((1,), KEYS, dtype=torch.int32, device=device)
    paged = PagedAttention(device)
    zero, one = used.new_zeros(1), torch.tensor([0, 1], dtype=torch.int32, device=device)
    paged.plan(None, one, zero, used, HEADS, HEADS, DIM, KEYS)
    rows, target = q[0], out[0]
    scaled_dot_product = torch.nn.functional.scaled_dot_product_attention
    compiled, compiled_torch = (
        torch.compile(one, fullgraph=True) for one in (tw.attention, scaled_dot_product)
    )

    def dispatched() -> torch.Tensor:
        return run("attention", q, k, v, out=out)

    found: dict[str, Call] = {
        "Dispatcher.run(out=)": dispatched,
        "tilewright.attention(out=)": lambda: tw.attention(q, k, v, out=out),
        "tilewright.attention": lambda: tw.attention(q, k, v),
        "tilewright.attention, scale=": lambda: tw.attention(q, k, v, scale=DIM**-0.5),
        "tilewright.attention, compiled": lambda: compiled(q, k, v),
        "flash_attn_func": lambda: flash_attn_func(q, k, v),
        "flash_attn_with_kvcache": lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=used),
        "PagedAttention.run": lambda: paged.run(rows, (k, v)),
        "PagedAttention.run(out=)": lambda: paged.run(rows, (k, v), out=target),
        TORCH: lambda: scaled_dot_product(*heads_first),
        f"{TORCH}, compiled": lambda: compiled_torch(*heads_first),
    }
    right = found[TORCH]().reshape(HEADS, DIM)
    for name, call in found.items():
        out.fill_(float("nan"))
        for _ in range(3):  # a call like an earlier one takes another way
            result = call().reshape(HEADS, DIM)
            torch.testing.assert_close(result, right, rtol=2e-2, atol=2e-2, msg=name)
    return found


def batch_us(call: Call, calls: int, device: str) -> float:
    """Mean host time of a call, in microseconds."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--device", default="cuda", help="cpu only tries the script")
    parser.add_argument("--calls", type=int, default=200, help="in a batch")
    parser.add_argument("--batches", type=int, default=60)
    options = parser.parse_args()
    found = contenders(options.device)
    times: dict[str, list[float]] = {name: [] for name in found}
    for batch in range(-1, options.batches):
        for name in found if batch % 2 else reversed(found):
            taken = batch_us(found[name], options.calls, options.device)
            if batch >= 0:
                times[name].append(taken)
    results = {}
    for name, taken in times.items():
        low, middle, high = statistics.quantiles(taken, n=4)
        of_torch = middle / statistics.median(times[TORCH])
        results[name] = {"median_us": middle, "quartiles_us": [low, high], "of_torch": of_torch}
        print(f"{name:38} {middle:8.2f} µs  ({low:.2f} … {high:.2f})  {of_torch:.2f} of torch's")
    if options.json:
        document = {"environment": environment(), "host_us": results}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
