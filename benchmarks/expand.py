"""How fast a kernel space expands: combinations judged per second, on one thread.

    python benchmarks/expand.py --json benchmarks/results/expand.json

The space crosses every kind of axis, so that legal kernels, illegal ones and combinations that
contradict themselves all occur. Times are the fastest and the median of the repeats, in seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import claims
from environment import environment
from tilewright.arch import arch
from tilewright.ops.gemm import FAMILY
from tilewright.space import KernelSpace

ARCHS = ("sm_90", "gfx942")


def space(name: str) -> KernelSpace:
    """More than 100,000 combinations for the architecture `name`."""
    pipelines = [word for word in ("basic", "tma") if word in FAMILY.pipelines(arch(name))]
    axes: dict[str, list[Any]] = {
        "dtype_a": ["fp16", "fp8"],
        "tile_m": [32, 64, 128, 192, 256],
        "tile_n": [32, 64, 128, 192, 256],
        "tile_k": [16, 32, 64, 128],
        "num_warps": [1, 2, 4, 8],
        "num_stages": [1, 2, 3, 4],
        "pipeline": pipelines,
        "scheduler": ["tile", "persistent"],
        "group_m": [4, 8],
        "pad_k": ["*"],
        "alignment": [8, 16],
    }
    if arch(name).mma_selectable:
        axes["mma"] = ["*"]
    return KernelSpace("gemm", axes)


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Expand the space `repeats` times."""
    this, declared, seconds = arch(name), space(name), []
    declared.expand(this)
    for _ in range(repeats):
        start = time.perf_counter()
        found = declared.expand(this)
        seconds.append(time.perf_counter() - start)
    combinations = len(found.configs) + len(found.dropped) + found.duplicates
    best = min(seconds)
    return {
        "arch": name,
        "combinations": combinations,
        "legal": len(found.configs),
        "dropped": found.summary(),
        "seconds": seconds,
        "best_seconds": best,
        "median_seconds": statistics.median(seconds),
        "combinations_per_second": combinations / best,
        "seconds_per_100000": best * 100_000 / combinations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how fast kernel spaces expand.")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--repeats", type=int, default=3, help="timed expansions (3)")
    options = parser.parse_args()
    results = [measure(name, options.repeats) for name in ARCHS]
    print(f"{'arch':8} {'combinations':>12} {'legal':>8} {'best s':>8} {'per second':>11}")
    for r in results:
        print(
            f"{r['arch']:8} {r['combinations']:12,} {r['legal']:8,} {r['best_seconds']:8.2f}"
            f" {r['combinations_per_second']:11,.0f}"
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"environment": environment(), "results": results}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
        said = "judge a space of {combinations:,} combinations for {arch}"
        times = {said.format(**found): found["best_seconds"] * 1e6 for found in results}
        claims.save_times("host-expand", times, options.json)


if __name__ == "__main__":
    main()
