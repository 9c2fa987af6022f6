"""How far apart the medians of series of one kernel are, by the work before each sample.

    python benchmarks/repeatability.py --json benchmarks/results/repeatability_h200.json

One process, one set of operands, 2048³ in bf16, L2 flushed as `tilewright.measure.timing` does
it, and two kernels, one of three stages and one of two. A series is what a sweep takes of a kernel
(`timing.measure`, its default settings); between two of them a kernel runs once on another problem.
Ways of series:

flushed, rotated: as sweeps measure. drawn: flushed, and then a launch of a drawn number of
workgroups, so that no two samples begin in the same state of what hands workgroups out. same: the
flush reads the same memory each time. in turns: with three other kernels, as in a sweep.

And one long series of each, flushed: the medians of its successive dozens of samples, which tell
how long what makes series differ lasts, and how far a dozen in a row is from the median of all.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from environment import environment
from tilewright import verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device, live_uuids
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.contenders import kernel_bind
from tilewright.measure.measurement import Settings
from tilewright.measure.telemetry import Monitor
from tilewright.ops.gemm import FAMILY, GemmProblem

PLACE = "cuda:0"
PROBLEM = GemmProblem(2048, 2048, 2048)
TILES = ((128, 128, 64, 4, 3), (128, 128, 64, 4, 2), (64, 128, 64, 4, 3), (128, 256, 64, 8, 3))
"""Rows, columns, depth, warps, stages; the first two are measured, the others have their turns."""
LONG = 24_000
"""Samples of the long series."""


def drawn(flush: timing.Call) -> timing.Call:
    """`flush`, then a launch of 1 to 264 workgroups that write a few bytes."""
    import torch

    buffer = torch.zeros(264 * 1024, device=PLACE)
    lengths = random.Random()

    def call() -> None:
        flush()
        buffer[: 1024 * lengths.randint(1, 264)].add_(1)

    return call


def same(l2_bytes: int) -> timing.Call:
    import torch

    buffer = torch.zeros(timing.FLUSHES * l2_bytes // 4, device=PLACE)
    total = torch.empty((), device=PLACE)
    return lambda: torch.sum(buffer, dim=0, out=total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--series", type=int, default=12, help="of each way")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device, store, settings = live_device(0), Store(), Settings()
    axes = ("tile_m", "tile_n", "tile_k", "num_warps", "num_stages")
    configs = [
        FAMILY.make_config(
            {**FAMILY.axes(), **dict(zip(axes, tile, strict=True))}, arch(device.arch)
        )
        for tile in TILES
    ]
    build([(config, device.arch) for config in configs], store=store).raise_if_failed()
    dispatcher = Dispatcher(device=device, store=store)
    binds = [kernel_bind(dispatcher, config.name, PROBLEM) for config in configs]
    copies = timing.copies_to_rotate(2 * 2 * 2048 * 2048, device.l2_bytes)
    made = [verify.operands_of(PROBLEM, 0, PLACE) for _ in range(copies)]
    outputs = made[0].outputs
    calls = [bind(made[0].inputs, outputs) for bind in binds]
    smaller = GemmProblem(4096, 1024, 512)
    small = verify.operands_of(smaller, 0, PLACE)
    between = kernel_bind(dispatcher, configs[0].name, smaller)(small.inputs, small.outputs)
    flush = timing.flusher(device.l2_bytes, PLACE)
    monitor = Monitor(live_uuids()[0])
    document: dict[str, Any] = {
        "environment": environment(), "problem": str(PROBLEM), "settings": asdict(settings),
        "kernels": {},
    }  # fmt: skip
    for number in range(2):
        rotated = timing.rotated([binds[number](each.inputs, outputs) for each in made])
        others = [*calls[:number], *calls[number + 1 :]]
        ways: dict[str, tuple[timing.Call, list[timing.Call]]] = {
            "flushed": (flush, calls[number : number + 1]),
            "rotated": (timing.pause, [rotated]),
            "drawn": (drawn(flush), calls[number : number + 1]),
            "same": (same(device.l2_bytes), calls[number : number + 1]),
            "in turns": (flush, [calls[number], *others]),
        }
        print(configs[number].name)
        found: dict[str, Any] = {}
        document["kernels"][configs[number].name] = found
        for name, (before, some) in ways.items():
            series = of_way(before, some, settings, between, monitor, options.series)
            found[name] = series
            medians = [one["median_us"] for one in series]
            print(f"{name:9} {min(medians):.2f} to {max(medians):.2f} µs:",
                  *(f"{median:.2f}" for median in medians), flush=True)  # fmt: skip
        found["long"] = dozens(flush, calls[number], settings)
        medians = found["long"]["medians_us"]
        cuts = statistics.quantiles(medians, n=20)
        print(f"long: of {len(medians)} dozens, medians of 5 to 95 %: "
              f"{cuts[0]:.2f} to {cuts[-1]:.2f} µs")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def dozens(flush: timing.Call, call: timing.Call, settings: Settings) -> dict[str, Any]:
    """Figures of one long series."""
    long = replace(settings, min_samples=LONG, max_samples=LONG, budget_seconds=60.0)
    begun = time.monotonic()
    taken = timing.measure({"": [call]}, timing.Events(flush, PLACE), long)[""].samples_us
    seconds = time.monotonic() - begun
    medians = [statistics.median(taken[i : i + 12]) for i in range(0, LONG - 11, 12)]
    return {"seconds": seconds, "samples": len(taken), "medians_us": medians}


def of_way(
    before: timing.Call,
    calls: list[timing.Call],
    settings: Settings,
    between: Callable[[], object],
    monitor: Monitor,
    series: int,
) -> list[dict[str, Any]]:
    """Series of the first of `calls`."""
    found = []
    for _ in range(series):
        between()
        timer = timing.Events(before, PLACE)
        named = {str(number): [call] for number, call in enumerate(calls)}
        taken = timing.measure(named, timer, settings, watch=monitor.read)["0"]
        median = statistics.median(taken.samples_us)
        found.append(
            {
                "median_us": median,
                "samples": len(taken.samples_us),
                "interval_us": taken.interval_us,
                "deciles_us": statistics.quantiles(taken.samples_us, n=10),
                "telemetry": asdict(monitor.take()),
            }
        )
    return found


if __name__ == "__main__":
    main()
