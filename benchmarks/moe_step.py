"""A training step of a mixture's layer, whole: forward, and gradients of tokens, of both weights
and of the routing's weights. 32,768 tokens, 8 of 128 experts, 2048 and 768 wide, in bf16.

    python benchmarks/moe_step.py --json step.json

Needs a GPU. Beside `tilewright.fused_moe`: torch's calls, of which `torch._grouped_mm` multiplies,
as they come, and with all between two products compiled; a token's rows are put back by places and
summed, or added by `index_add`. Results and gradients of ours are compared with those of torch
first, by norms. Loads are drawn evenly, and as 1 / rank. Times are medians of calls in turns, in
microseconds, each by itself, between two events; kernels are those that torch's profiler sees.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import tilewright as tw
from environment import environment
from tilewright import without_gpu

TOKENS, HIDDEN, INNER, EXPERTS, K = 32768, 2048, 768, 128, 8
GPU = "cuda:0"
ROUNDS = 9
FAR = 0.01
"""Of a result's norm, what it may be off from torch's."""
FLOPS = 2 * 3 * TOKENS * K * HIDDEN * INNER
"""Of the forward pass; of a step three times as many."""

Layer = Callable[..., Any]
"""Of x, w1, w2, and the routing's weights and experts."""


def operands(load: str, device: str = GPU) -> list[Any]:
    """x, w1, w2, weights, experts; on the CPU without values."""
    if device == "cpu":
        bf16 = partial(torch.empty, dtype=torch.bfloat16)
        weights, ids = torch.empty(TOKENS, K), torch.zeros(TOKENS, K, dtype=torch.int32)
    else:
        bf16 = partial(torch.randn, dtype=torch.bfloat16, device=device)
        draw = torch.Generator(device).manual_seed(0)
        likely = torch.ones(EXPERTS, device=device)
        if load == "skewed":
            likely = 1.0 / (torch.randperm(EXPERTS, generator=draw, device=device) + 1)
        ids = torch.multinomial(likely.expand(TOKENS, -1), K, generator=draw).int()
        weights = torch.rand(TOKENS, K, generator=draw, device=device).softmax(-1)
    w1 = bf16(EXPERTS, 2 * INNER, HIDDEN).mul_(HIDDEN**-0.5)
    w2 = bf16(EXPERTS, HIDDEN, INNER).mul_(INNER**-0.5)
    return [*(x.requires_grad_() for x in (bf16(TOKENS, HIDDEN), w1, w2, weights)), ids]


def ours(x: Any, w1: Any, w2: Any, weights: Any, ids: Any) -> Any:
    return tw.fused_moe(x, w1, w2, weights, ids)


def problems() -> list[Any]:
    """What a step of ours asks, found on the CPU without computing anything."""
    found: list[Any] = []
    interpret = without_gpu.interpret

    def noted(planner: Any, family: Any, config: Any, given: Any, scalars: Any) -> None:
        found.append(given.problem)
        given.note_writes()

    without_gpu.interpret = noted
    try:
        given = operands("even", "cpu")
        y = ours(*given)
        torch.autograd.grad(y, given[:4], torch.empty_like(y))
    finally:
        without_gpu.interpret = interpret
    return list(dict.fromkeys(found))


# --- by torch -----------------------------------------------------------------------------------


def taken(x: Any, ids: Any) -> tuple[Any, Any, Any]:
    """Rows by experts, the choice of each, and where those of an expert end."""
    found, order = torch.sort(ids.reshape(-1), stable=True)
    every = torch.arange(EXPERTS, device=ids.device, dtype=found.dtype)
    ends = torch.searchsorted(found, every, right=True, out_int32=True)
    return x.index_select(0, order // K), order, ends


def between(rows: Any) -> Any:
    gate, up = rows.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def put_back(rows: Any, order: Any, weights: Any) -> Any:
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    each = rows.index_select(0, places).view(*weights.shape, -1)
    return (each.float() * weights[..., None]).sum(1).to(rows.dtype)


def added(rows: Any, order: Any, weights: Any) -> Any:
    sums = torch.zeros(len(weights), rows.shape[1], device=rows.device)
    terms = rows * weights.reshape(-1)[order][:, None]
    return sums.index_add(0, order // K, terms).to(rows.dtype)


@cache
def compiled(part: Any) -> Any:
    return torch.compile(part, dynamic=False)


def by_torch(last: Any, whole: bool, x: Any, w1: Any, w2: Any, weights: Any, ids: Any) -> Any:
    """whole: whether what is between products is compiled."""
    parts = (taken, between, last)
    take, gate, put = map(compiled, parts) if whole else parts
    rows, order, ends = take(x, ids)
    rows = gate(torch._grouped_mm(rows, w1.transpose(1, 2), offs=ends))
    return put(torch._grouped_mm(rows, w2.transpose(1, 2), offs=ends), order, weights)


LAYERS: Mapping[str, Layer] = {
    "torch": partial(by_torch, put_back, False),
    "torch, compiled": partial(by_torch, put_back, True),
    "torch, by index_add": partial(by_torch, added, False),
    "ours": ours,
}


# --- times --------------------------------------------------------------------------------------


def step(layer: Layer, given: Any, dy: Any) -> tuple[Any, ...]:
    y = layer(*given)
    return (y.detach(), *torch.autograd.grad(y, given[:4], dy))


def compare(given: Any, dy: Any) -> list[float]:
    """How far results and gradients of ours are from torch's. Raises `ValueError` beyond `FAR`."""
    pairs = zip(step(LAYERS["ours"], given, dy), step(LAYERS["torch"], given, dy), strict=True)
    far = [float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs]
    if not max(far) <= FAR:
        raise ValueError(f"results of ours are {far} off from torch's")
    return far


def timed(given: Any, dy: Any) -> dict[str, dict[str, float]]:
    """The microseconds of each layer's forward pass and step."""
    taken_us: dict[str, list[tuple[float, float]]] = {name: [] for name in LAYERS}
    for layer in LAYERS.values():
        step(layer, given, dy)
    for turn in range(ROUNDS):
        for name in [*LAYERS] if turn % 2 else [*LAYERS][::-1]:
            begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            torch.cuda.synchronize()
            begin.record()
            y = LAYERS[name](*given)
            middle.record()
            torch.autograd.grad(y, given[:4], dy)
            end.record()
            torch.cuda.synchronize()
            us = begin.elapsed_time(middle) * 1000, begin.elapsed_time(end) * 1000
            taken_us[name].append(us)
    return {
        name: {
            word: round(statistics.median(us[at] for us in some), 1)
            for at, word in enumerate(("forward", "step"))
        }
        for name, some in taken_us.items()
    }


def profiled(layer: Layer, given: Any, dy: Any) -> dict[str, list[float]]:
    """How often each kernel runs in a step, and the microseconds of all of them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step(layer, given, dy)
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in seen.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found.setdefault(event.name[:80], []).append(event.device_time)
    return {name: [len(us), round(sum(us), 1)] for name, us in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tw.prepare(problems())
    found: dict[str, Any] = {"environment": environment(), "loads": {}}
    for load in ("even", "skewed"):
        given = operands(load)
        dy = torch.randn_like(given[0])
        far = compare(given, dy)
        us = timed(given, dy)
        kernels = {name: profiled(layer, given, dy) for name, layer in LAYERS.items()}
        found["loads"][load] = {"off from torch": far, "us": us, "kernels: count, us": kernels}
        best = min(one["step"] for name, one in us.items() if name != "ours")
        rate = FLOPS / us["ours"]["forward"] / 1e6
        print(
            f"{load}: {us}; torch's best step over ours {best / us['ours']['step']:.3f}, "
            f"forward {rate:.0f} TFLOP/s",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
