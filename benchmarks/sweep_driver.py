"""How many GPUs the process that drives a sweep keeps busy.

    python benchmarks/sweep_driver.py --json benchmarks/results/sweep_driver.json

Needs no GPU. The workers are stand-ins that answer after as long as an H200's took
(benchmarks/sweep_throughput.py: 10,000 measurements in 239 s); all else is the sweep's own: queue,
threads, requests, results on disk. 40 kernels × 20 problems on 1, 2, 4 and 8 stand-ins; and on one
that answers at once, for what the driver takes by itself. Workers of real GPUs also take a core
each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import environment
from tilewright.arch import arch, device
from tilewright.compile import Store
from tilewright.measure.crew import Crew, Task
from tilewright.measure.devices import Place, Process
from tilewright.measure.devices import environment as environment_of
from tilewright.measure.measurement import Settings
from tilewright.measure.results import Results
from tilewright.ops.gemm import FAMILY, GemmProblem

KERNELS, PROBLEMS = 40, 20
SECONDS = {"problem": 0.002, "verify": 0.003, "time": 0.02}
"""Of each step; ``time`` for each of its kernels: 0.024 s a measurement, with its share of the
others."""


class StandIn:
    """Answers what a worker would."""

    pid = 0

    def __init__(self, pace: float) -> None:
        self._pace = pace

    def request(
        self, message: dict[str, Any], timeout: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        step = message["do"]
        kernels = message.get("kernels", [""])
        time.sleep(self._pace * SECONDS.get(step, 0.0) * len(kernels))
        if step == "canary":
            return {"ok": True, "us": 10.0}, []
        if step == "verify":
            return {"status": "ok", "reason": "", "check": None}, []
        if step == "time":
            samples = [10.0 + i / 100 for i in range(40)]
            timed = {"samples_us": samples, "interval_us": [10.1, 10.3], "flags": []}
            return {"kernels": dict.fromkeys(kernels, timed), "telemetry": {}}, []
        return {}, []

    def interrupt(self) -> None:
        """There is nothing to end."""

    kill = interrupt


@dataclass(frozen=True, slots=True)
class Imagined(Place):
    """A place whose workers are stand-ins; they take `pace` times what a GPU's do."""

    pace: float = 1.0

    def start(self, store: Store) -> Process:
        return StandIn(self.pace)


def swept(count: int, pace: float) -> float:
    """Seconds that measuring took on so many stand-ins."""
    gpu, versions = device("h200_sxm"), environment_of("cuda")
    places = [Imagined(f"GPU-{i}", versions, gpu, pace=pace) for i in range(count)]
    problems = [GemmProblem(64 * (i + 1), 1024, 1024) for i in range(PROBLEMS)]
    this = arch(gpu.arch)
    configs = FAMILY.default_space(problems[0], this).expand(this).configs
    names = [c.name for c in configs if all(FAMILY.supports(c, p, this) for p in problems)]
    tasks = [Task(name, problem, gpu.arch) for problem in problems for name in names[:KERNELS]]
    with tempfile.TemporaryDirectory() as folder, Results(folder, write=True) as results:
        with Crew(places, Store(folder), Settings()) as crew:
            begun = time.monotonic()
            for measurement in crew.run(tasks):
                results.add([measurement])
            wall = time.monotonic() - begun
        assert len(results) == KERNELS * PROBLEMS
    return wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    total = KERNELS * PROBLEMS
    alone = swept(1, 0.0)
    walls = {count: swept(count, 1.0) for count in options.counts}
    first = walls[options.counts[0]]
    document = {
        "environment": environment(),
        "measurements": total,
        "driver_alone": {"seconds": alone, "measurements_per_second": total / alone},
        "gpus": {
            count: {"seconds": wall, "speed": first * options.counts[0] / wall}
            for count, wall in walls.items()
        },
    }
    print(json.dumps(document, indent=2))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
