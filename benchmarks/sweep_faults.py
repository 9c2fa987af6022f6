"""The cost of planted faults to a sweep on a GPU, and whether the GPU measures right after them.

    python benchmarks/sweep_faults.py --json benchmarks/results/sweep_faults_h200.json

100 kernels × 20 problems, through `tilewright.measure.sweep`. The kernels have an epilogue
(tests/tune/planted.py) that reads where nothing is in tiles of 64x32, never ends in tiles of
32x64 and is wrong in tiles of 32x32, of each of which there is one; the others are sound. Five
sound kernels without that epilogue are measured before and after, by workers of their own. Each of
some 40 lost workers takes seconds: allow five minutes, or go on later with `--keep DIR`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

from environment import environment
from tilewright.arch import arch
from tilewright.compile import Store, build
from tilewright.measure.crew import Crew, Task
from tilewright.measure.groups import groups
from tilewright.measure.measurement import Settings
from tilewright.measure.places import parse
from tilewright.measure.progress import show_measuring
from tilewright.measure.results import Results
from tilewright.measure.sweep import plan, sweep
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, epilogues
from tilewright.space import KernelSpace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tune"))
import planted

for _operation in planted.OPERATIONS:
    epilogues.OPERATIONS[_operation.name] = _operation
TIMEOUT = 4.0
PROBLEMS = [
    GemmProblem(m, n, k, epilogue="faulty")
    for m, n, k in product((64, 512, 1024, 2048), (512, 1024, 2048, 4096, 8192), (2048,))
]


def kernels(arch_name: str, count: int) -> list[GemmConfig]:
    """A faulty one of each kind, then sound ones."""
    axes = {
        "tile_m": [32, 64, 128], "tile_n": [32, 64, 128], "tile_k": [32, 64], "num_warps": [4, 8],
        "num_stages": [2, 3, 4], "pipeline": ["basic"], "scheduler": ["tile", "persistent"],
        "epilogue": ["faulty"],
    }  # fmt: skip
    legal = KernelSpace("gemm", axes).expand(arch_name).configs
    faulty = {(c.tile_m, c.tile_n): c for c in legal if (c.tile_m, c.tile_n) in planted.LAUNCHED}
    sound = [c for c in legal if (c.tile_m, c.tile_n) not in planted.LAUNCHED]
    assert len(faulty) == len(planted.LAUNCHED) and len(sound) + len(faulty) >= count
    return [*faulty.values(), *sound[: count - len(faulty)]]


def medians(store: Store, tasks: list[Task]) -> dict[str, float]:
    with Crew(parse("1"), store, Settings()) as crew:
        return {m.kernel: m.median_us for m in crew.run(tasks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ["TILEWRIGHT_KERNEL_MODULES"] = "planted:planted_operations"
    store, settings = Store(), Settings()
    found, crew = groups("1", store, settings, timeout=TIMEOUT)
    this = found[0].device.arch
    configs = kernels(this, options.kernels)
    plain = [FAMILY.make_config({**FAMILY.axes(), "tile_m": m, "tile_n": 128, "tile_k": 64,
                                 "num_warps": 4, "num_stages": s}, arch(this))
             for m, s in ((64, 2), (64, 3), (64, 4), (128, 2), (128, 3))]  # fmt: skip
    build([(c, this) for c in (*configs, *plain)], store=store).raise_if_failed()
    tasks = [Task(c.name, GemmProblem(4096, 4096, 4096), this) for c in plain]
    before = medians(store, tasks)
    with (
        tempfile.TemporaryDirectory() as made,
        Results(options.keep or made, write=True) as results,
    ):
        todo = plan(found, {this: configs}, {this: PROBLEMS}, settings, results.keys())
        begun = time.monotonic()
        outcome = sweep(todo, results, store, crew, measuring=show_measuring)
        wall = time.monotonic() - begun
        left = plan(found, {this: configs}, {this: PROBLEMS}, settings, results.keys()).total
        _, rows = results.query(
            "SELECT kernel.name, status, attempts, median_us, verified FROM measurement "
            "JOIN kernel ON kernel.id = kernel"
        )
    after = medians(store, tasks)
    wrong = []
    fates: dict[str, Counter[str]] = {}
    for name, status, attempts, us, verified in rows:
        c = FAMILY.parse_name(name)
        expected = planted.LAUNCHED.get((c.tile_m, c.tile_n), "ok")
        if expected != "ok":
            fates.setdefault(expected, Counter())[f"{status}, attempt {attempts}"] += 1
        if status not in (expected, "unsupported") or (status == "ok") != bool(us and verified):
            wrong.append((name, status))
    document: dict[str, Any] = {
        "environment": environment(),
        "kernels": len(configs),
        "problems": len(PROBLEMS),
        "timeout_seconds": TIMEOUT,
        "planned": todo.total,
        "statuses": outcome.statuses,
        "unsupported": outcome.refused,
        "rows": len(rows),
        "left": left,
        "wrong_status": wrong,
        "planted": fates,
        "wall_seconds": wall,
        "sound_us": {n: {"before": before[n], "after": after[n], "ratio": after[n] / before[n]}
                     for n in before},
    }  # fmt: skip
    print(json.dumps(document, indent=2))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
