"""Layers of experts of few tokens, beside what reading their weights takes.

    python benchmarks/moe_few.py --json few.json             # all cells, each written as it ends
    python benchmarks/moe_few.py --cells 3 --seconds 60

Needs a GPU. For each cell (`CELLS`, models and loads of `moe_layers`): `tilewright.fused_moe`, and
the layer in Triton of `rivals_moe` with blocks of its own race, both compared with float64 first;
kernels of ours for both products, those that the estimate puts first; the layer's kernels one by
one, by torch's profiler; and *read*: as many bytes as the experts that have tokens have weights, of
these weights, in order, by a kernel that does nothing else, for each product and for both, one
behind the other. No layer of two products takes less time than that.

Times are medians of graphs in turns, in microseconds a call. A graph has eight calls with a routing
each, which read other experts' weights, so that a call finds few of its own in L2.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import moe_layers
import rivals_moe
from cases.fused_moe import OURS, in_triton, our_layers, right, said
from environment import environment
from moe_layers import Cell, Operands
from tilewright import moe, ops, prepare
from tilewright.arch import arch
from tilewright.compile import Store, build
from tilewright.default import default_dispatcher
from tilewright.moe import steps

CELLS = (
    Cell("fp8", "deepseek-v3", 4, 4, "balanced"),
    Cell("fp8", "mixtral-8x7b", 1, 2, "skewed"),
    Cell("fp8", "glm-4.5", 4, 11, "skewed"),
    Cell("bf16", "qwen3-30b", 4, 7, "empty"),
    Cell("bf16", "gpt-oss-120b", 4, 12, "skewed"),
    Cell("fp8", "qwen3-30b", 1, 51, "balanced"),
    Cell("bf16", "deepseek-v3", 4, 9, "skewed"),
    Cell("fp8", "qwen3-235b", 1, 6, "empty"),
    Cell("bf16", "glm-4.5", 4, 33, "skewed"),
)
GPU = "cuda:0"
ROUNDS = 13
KERNELS = 7
"""Kernels of ours for each product."""
FAMILY = ops.family("grouped_gemm")
WORDS = 8 * 1024
"""32-bit words that a workgroup reads."""

Call = Callable[[int], Any]
"""Of the number of a routing."""


def problems(cell: Cell) -> list[Any]:
    """What `tilewright.fused_moe` asks in a cell."""
    words = said(cell) | ({"dtype_b": "e4m3fn"} if cell.dtype == "fp8" else {})
    size = cell.sizes
    found = moe.plan(
        tokens=cell.tokens, hidden=size.hidden, inner=cell.inner, experts=size.experts, k=size.k,
        **words,
    ).problems  # fmt: skip
    return list(found)


def kernels(problem: Any) -> list[Any]:
    """The kernels of ours for a product that the estimate puts first, and each pipeline's."""
    gpu = default_dispatcher().device_for_planning()
    this = arch(gpu.arch)
    configs = FAMILY.default_space(problem, this).expand(this).configs
    serving = [configs[i] for i in FAMILY.serving(problem, configs, this)]
    ranked = [config for config, _ in FAMILY.rank(problem, serving, gpu)]
    firsts: dict[str, Any] = {}
    for config in ranked:
        firsts.setdefault(config.pipeline, config)
    return list(dict.fromkeys([*ranked[:KERNELS], *firsts.values()]))


def asked(layer: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """Operands and keywords of the grouped products of a call."""
    found: list[tuple[Any, Any]] = []
    product, again = steps.OPERATIONS["grouped_gemm"], steps.Call.again

    def watched(*operands: Any, **keywords: Any) -> Any:
        found.append((operands, keywords))
        return product(*operands, **keywords)

    steps.OPERATIONS["grouped_gemm"] = watched
    steps.Call.again = lambda self: None  # type: ignore[method-assign]
    try:
        layer()
    finally:
        steps.OPERATIONS["grouped_gemm"], steps.Call.again = product, again  # type: ignore[method-assign]
    return found


# --- times --------------------------------------------------------------------------------------


def captured(call: Call, count: int) -> torch.cuda.CUDAGraph:
    """A graph of a call for each of `count` routings."""
    for at in range(count):
        call(at)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(count):
            call(at)
    return graph


def timed(calls: Mapping[str, Call], count: int) -> dict[str, float]:
    graphs = {name: captured(call, count) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(ROUNDS):
        marks = []
        for name in [*graphs] if turn % 2 else [*graphs][::-1]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[name].replay()
            end.record()
            marks.append((name, begin, end))
        torch.cuda.synchronize()
        for name, begin, end in marks if turn > 1 else ():
            taken[name].append(begin.elapsed_time(end) * 1000 / count)
    return {name: round(statistics.median(us), 2) for name, us in taken.items()}


def profiled(call: Call, count: int) -> dict[str, list[float]]:
    """How often each kernel runs in a call, and its microseconds."""
    from torch.profiler import ProfilerActivity, profile

    graph = captured(call, count)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in seen.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found.setdefault(event.name[:60], []).append(event.device_time)
    return {n: [len(us) / count, round(statistics.mean(us), 2)] for n, us in found.items()}


# --- a cell -------------------------------------------------------------------------------------


def read(words: torch.Tensor, count: int, sink: torch.Tensor, at: int) -> None:
    """Read `count` of an array's 32-bit words, in order, another stretch for each call."""
    import rivals_moe_kernels

    begin = at * count % max(1, len(words) - count) // 4 * 4
    rivals_moe_kernels.read[(-(-count // WORDS),)](words[begin:], sink, count, WORDS // 8, 8)


def products(cell: Cell, ours: Callable[..., Any], x: Any, routed: Any) -> dict[str, Call]:
    """Calls of kernels of ours for both products."""
    every = [asked(partial(ours, x, *one)) for one in routed]
    dispatcher, calls = default_dispatcher(), {}
    wanted = [p for p in problems(cell) if p.family == "grouped_gemm"]
    for place, problem in enumerate(wanted):
        for config in kernels(problem):

            def call(at: int, place: int = place, name: str = config.name) -> Any:
                operands, keywords = every[at][place]
                return dispatcher.run_named(name, *operands, **keywords)

            calls[f"{('first', 'second')[place]} {config.name}"] = call
    return calls


def one(cell: Cell) -> dict[str, Any]:
    """All figures of a cell."""
    given: Operands = moe_layers.operands(cell, GPU)
    routed = moe_layers.routings(cell, GPU)
    flush = torch.empty(256 << 20, dtype=torch.int8, device=GPU)
    race = rivals_moe.on_device(flush.zero_, GPU)
    triton = rivals_moe.chosen(in_triton(cell, given), given.x, *routed[0], race)
    layers: dict[str, Any] = {"ours": our_layers(cell, given)[OURS], "triton": triton}
    right(cell, given, layers, routed)
    used = statistics.mean(ids.unique().numel() for _, ids in routed)
    words = [w.view(torch.int32).reshape(-1) for w in (given.w1, given.w2)]
    counts = [int(used * len(w) / cell.sizes.experts) // 4 * 4 for w in words]
    sink = torch.empty(max(counts) // WORDS + 1, dtype=torch.int32, device=GPU)
    reads = [partial(read, w, n, sink) for w, n in zip(words, counts, strict=True)]
    calls: dict[str, Call] = {
        **{name: lambda at, f=f: f(given.x, *routed[at]) for name, f in layers.items()},
        "read, first": reads[0],
        "read, second": reads[1],
        "read, both": lambda at: (reads[0](at), reads[1](at)),
        **products(cell, layers["ours"], given.x, routed),
    }
    kernels_of = {name: profiled(calls[name], len(routed)) for name in layers}
    return {
        "experts with tokens": used,
        "bytes": [4 * n for n in counts],
        "triton's blocks": [repr(triton.first), repr(triton.second)],
        "us": timed(calls, len(routed)),
        "kernels: count, us": kernels_of,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cells", type=int, default=len(CELLS))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    begun, cells = time.time(), CELLS[: args.cells]
    wanted = [p for cell in cells for p in problems(cell)]
    groups = [p for p in wanted if p.family == "grouped_gemm"]
    build([(c, "sm_90") for p in groups for c in kernels(p)], store=Store())
    prepare(wanted)
    found: dict[str, Any] = {"environment": environment(), "cells": {}}
    for cell in cells:
        if time.time() - begun > args.seconds:
            break
        with torch.no_grad():
            found["cells"][str(cell)] = made = one(cell)
        ours, triton, least = (made["us"][name] for name in ("ours", "triton", "read, both"))
        print(
            f"{cell}: ours {ours}, Triton's {triton} ({triton / ours:.3f}), "
            f"read {least} ({triton / least:.3f})",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
