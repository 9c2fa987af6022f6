"""Run layers of experts, in every form that they have, at random routings in memory that holds NaN,
and compare each result with float64.

    python benchmarks/random_routings.py --graphs 10000
    python benchmarks/random_routings.py --build
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 9 \\
        python benchmarks/random_routings.py --calls 3

--graphs N takes N routings in all, in CUDA graphs: each replay takes the next, poisons what it
will be given, and compares on the GPU. --calls N takes N of each form and number of tokens, one by
one, with a router and gradients too, and compares on the CPU: hardly any but our kernels then run
on the GPU. Under
compute-sanitizer each array is an allocation of its own, so that an access outside of one shows;
torch's caching allocator would hide it. Weights of experts that nobody chooses are NaN. The forms
are in `tests/moe/layer_forms.py`. It prints each form's largest error beside what is allowed; exit
status 1 if one is beyond.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "moe"))
import torch
from layer_cases import LIMITS, operands, reference, worst
from layer_forms import FORMS, SIZES, Layer
from many_routings import NEVER, drawn

import tilewright as tw

IN_GRAPHS, IN_CALLS = (1, 5, 33, 200), (5, 200)
"""Numbers of tokens."""
SMALL = 1 << 16


def poison() -> None:
    """Fill memory that the next arrays are given with NaN: small pieces, and a large one."""
    small = [torch.full((SMALL,), torch.nan, device="cuda") for _ in range(32)]
    large = torch.full((1 << 23,), torch.nan, device="cuda")
    del small, large


def in_graphs(layer: Layer, tokens: int, count: int, device: str) -> float:
    """The largest error of `count` routings, each a replay of one graph."""
    bank = drawn(count, tokens, SIZES["experts"], SIZES["k"], device)
    at = torch.zeros(1, dtype=torch.long, device=device)
    most = torch.zeros((), dtype=torch.float64, device=device)

    def step() -> None:
        ids = bank.index_select(0, at)[0]
        poison()
        most.copy_(torch.maximum(most, layer.error(layer.run(ids), ids)))  # NaN stays
        at.add_(1)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    at.zero_()
    most.zero_()
    for _ in range(count):
        graph.replay()
    assert at.item() == count
    return float(most)


def in_calls(layer: Layer, tokens: int, count: int, device: str) -> float:
    """The same by calls."""
    found = torch.zeros((), dtype=torch.float64)
    for ids in drawn(count, tokens, SIZES["experts"], SIZES["k"], "cpu"):
        y = layer.run(ids.to(device)).cpu()
        found = torch.maximum(found, layer.error(y, ids))
    return float(found)


def routed(tokens: int, device: str) -> float:
    """A layer with its router: the error over what is allowed."""
    given = operands(tokens, *SIZES.values(), seed=tokens)
    x, w1, w2 = (one.to(device) for one in given[:3])
    logits = torch.randn(tokens, SIZES["experts"], generator=torch.Generator().manual_seed(1))
    y = tw.routed_moe(x, logits.to(device), w1, w2, k=SIZES["k"], renormalize=True).cpu()
    weights, ids = logits.softmax(-1).topk(SIZES["k"], -1)
    weights = weights / weights.sum(-1, keepdim=True)
    return worst(y, reference(*given[:3], weights, ids)) / LIMITS[torch.bfloat16]


def trained(tokens: int, device: str) -> float:
    """A layer's gradients: the largest error over what is allowed."""
    given = operands(tokens, *SIZES.values(), seed=tokens)
    leaves = [one.to(device, copy=True).requires_grad_() for one in given[:4]]
    wide = [one.double().requires_grad_() for one in given[:4]]
    tw.fused_moe(*leaves, given[4].to(device)).sum().backward()
    reference(*wide, given[4]).sum().backward()
    return max(
        worst(one.grad.cpu(), other.grad) / (4 * LIMITS[torch.bfloat16])
        for one, other in zip(leaves, wide, strict=True)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--graphs", type=int, default=0, help="routings in all, in graphs")
    parser.add_argument("--calls", type=int, default=0, help="routings of each form, in calls")
    parser.add_argument("--build", action="store_true", help="all but the forms' routings")
    parser.add_argument("--only", nargs="*", default=list(FORMS), help="forms")
    parser.add_argument("--on", default="cuda")
    args = parser.parse_args()
    began, wrong, forms = time.perf_counter(), 0, {name: FORMS[name] for name in args.only}
    sizes = IN_GRAPHS if args.graphs else IN_CALLS
    if args.on == "cuda":
        plans = [form.plan(tokens) for form in forms.values() for tokens in sizes]
        tw.prepare([problem for plan in plans for problem in plan.problems])
        print(f"kernels after {time.perf_counter() - began:.1f} s", flush=True)
    gc.freeze()  # each graph collects garbage first
    each = -(-args.graphs // (len(forms) * len(sizes))) or args.calls
    run, done = in_graphs if args.graphs else in_calls, 0

    def said(what: str, share: Any) -> None:
        nonlocal wrong
        right = share <= 1.0  # not of a NaN
        wrong += not right
        print(f"{what}: {share:.3f} of what is allowed" + ", WRONG" * (not right), flush=True)

    for number, (name, form) in enumerate(forms.items() if not args.build else ()):
        for tokens in sizes:
            layer = Layer(form, tokens, args.on, seed=number)
            layer.poison(NEVER)
            said(f"{name}, {tokens} tokens", run(layer, tokens, each, args.on) / layer.limit)
            done += each
    if not args.graphs:
        for tokens in sizes:
            said(f"with a router, {tokens} tokens", routed(tokens, args.on))
            said(f"gradients, {tokens} tokens", trained(tokens, args.on))
    took = time.perf_counter() - began
    print(f"{done} routings, {wrong} kinds wrong, {took:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
