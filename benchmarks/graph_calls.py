"""Time of one call in a replayed CUDA graph, for kernels that need a workspace.

    python benchmarks/graph_calls.py --json benchmarks/results/graph_calls_h200.json

Each graph holds `CALLS` calls that the capture itself meets first. A kernel that needs a workspace
should cost what it takes to run and nothing for its workspace: the kernel beside it, whose tiles
share nothing, says how long a call of that size takes. Medians over replays, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

from environment import environment
from tilewright.dispatch import Dispatcher

SHAPES = ((16, 512, 512), (64, 1024, 4096), (128, 512, 8192))
KERNELS = {
    "split_k, linear": "64x64x128_w4_s4_gluon_ws_split_k4_linear_g8_direct_padmnk_al16",
    "split_k, atomic": "64x64x128_w4_s4_gluon_ws_split_k4_atomic_g8_direct_padmnk_al16",
    "no workspace": "64x64x128_w4_s4_gluon_ws_persistent_g8_direct_padmnk_al16",
}
CALLS, REPLAYS = 50, 60


def captured(kernel: str, shape: tuple[int, int, int]) -> torch.cuda.CUDAGraph:
    m, n, k = shape
    a = torch.randn(m, k, device="cuda").bfloat16()
    b = torch.randn(n, k, device="cuda").bfloat16().T
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    graph, dispatcher = torch.cuda.CUDAGraph(), Dispatcher()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            dispatcher.run_named(f"gemm_rcr_bf16_bf16_bf16_fp32_{kernel}", a, b, out=out)
    graph.replay()
    torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0)
    graph.tilewright = (a, b, out, dispatcher)  # type: ignore[attr-defined]
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    rows = []
    for shape in SHAPES:
        graphs = {name: captured(kernel, shape) for name, kernel in KERNELS.items()}
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(REPLAYS):
            for name, graph in graphs.items():
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                graph.replay()  # the clock is up and the queue is not empty
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                times[name].append(begin.elapsed_time(end) * 1e3 / CALLS)
        found = {name: round(statistics.median(taken), 3) for name, taken in times.items()}
        rows.append({"shape": shape, "us_a_call": found})
        print("×".join(map(str, shape)), found)
    if options.json:
        document = {"environment": environment(), "calls": CALLS, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
