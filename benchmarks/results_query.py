"""How fast a large sweep's results answer: the best kernel of each problem, with its ties.

    python benchmarks/results_query.py --json benchmarks/results/results_query.json

Fills the tables of a sweep directory by SQL: 2000 kernels × 500 problems of one device, with
intervals wide enough that every problem has ties, and sixteen samples each. Each question is asked
of a newly opened directory; the first time of each follows a clearing of what the file system
keeps of it in memory, where the system lets a user ask for that. Seconds.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environment import environment
from tilewright import GemmProblem
from tilewright.arch import device
from tilewright.measure.database import FILE
from tilewright.measure.measurement import Environment, Settings, digest, problem_text, text
from tilewright.measure.results import Results
from tilewright.measure.summary import best, coverage

KERNELS, PROBLEMS, SAMPLES = 2000, 500, 16


def fill(folder: Path, kernels: int, problems: int) -> None:
    """A database as a sweep would leave it."""
    rng = random.Random(1)
    gpu, setup, settings = device("h200_sxm"), Environment((("tilewright", "0"),)), Settings()
    stated = [GemmProblem(rng.randint(1, 8192), 64 * (i + 1), 4096) for i in range(problems)]
    with Results(folder, write=True) as results:
        db = results._db
        db.execute("BEGIN")
        db.execute("INSERT INTO device VALUES (1, ?, ?, ?, ?)",
                   (digest(gpu), gpu.name, gpu.arch, text(gpu)))  # fmt: skip
        db.execute("INSERT INTO environment VALUES (1, ?, ?)", (setup.digest, text(setup)))
        db.execute("INSERT INTO settings VALUES (1, ?, ?)", (settings.digest, text(settings)))
        db.executemany(
            "INSERT INTO problem VALUES (?, 'gemm', ?, ?, ?)",
            ((i, problem_text(p), p.flops, p.min_bytes) for i, p in enumerate(stated, 1)),
        )
        names = (f"gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_kernel_{i}" for i in range(kernels))
        db.executemany(
            "INSERT INTO kernel VALUES (?, ?, ?)",
            ((i, name, f"{i:064x}") for i, name in enumerate(names, 1)),
        )
        db.executemany(
            "INSERT INTO measurement (problem, kernel, device, environment, settings, status, "
            "reason, median_us, low_us, high_us, samples_us, telemetry, flags, attempts, "
            "measured_at, seconds) VALUES (?, ?, 1, 1, 1, ?, '', ?, ?, ?, ?, '{}', '', 1, "
            "'2026-01-01T00:00:00.000+00:00', 0.1)",
            rows(rng, kernels, problems),
        )
        db.execute("COMMIT")


def rows(rng: random.Random, kernels: int, problems: int) -> Iterator[tuple[Any, ...]]:
    """One in twenty failed; the others' intervals are 2 % of their medians."""
    samples = array.array("d", [1.0] * SAMPLES).tobytes()
    for problem in range(1, problems + 1):
        for kernel in range(1, kernels + 1):
            if rng.random() < 0.05:
                yield problem, kernel, "timeout", None, None, None, b""
            else:
                us = 50.0 * (1 + rng.expovariate(1.0))
                yield problem, kernel, "ok", us, us * 0.99, us * 1.01, samples


def timed(folder: Path, ask: Callable[[Results], Any], repeats: int) -> tuple[list[float], Any]:
    """Seconds of each answer, and the last."""
    seconds, answer = [], None
    for number in range(repeats):
        if number == 0:
            forget(folder / FILE)
        start = time.perf_counter()
        with Results(folder) as results:
            answer = ask(results)
        seconds.append(time.perf_counter() - start)
    return seconds, answer


def forget(path: Path) -> None:
    """Have the kernel drop the file's pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how fast results answer.")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--kernels", type=int, default=KERNELS)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        fill(folder, options.kernels, options.problems)
        filling = time.perf_counter() - start
        size = (folder / FILE).stat().st_size
        questions: dict[str, Callable[[Results], Any]] = {
            "best per problem": best,
            "coverage": coverage,
            "keys": Results.keys,
        }
        found = {word: timed(folder, ask, options.repeats) for word, ask in questions.items()}
    ties = [len(b.ties) for b in found["best per problem"][1]]
    print(f"{options.kernels * options.problems:,} measurements, {size / 1e6:.0f} MB, "
          f"filled in {filling:.0f} s; {statistics.mean(ties):.1f} ties a problem")  # fmt: skip
    for word, (seconds, answer) in found.items():
        print(
            f"{word:18} first {seconds[0]:.2f} s, median {statistics.median(seconds):.2f} s, "
            f"{len(answer)} rows"
        )
    if options.json:
        document = {
            "environment": environment(),
            "measurements": options.kernels * options.problems,
            "kernels": options.kernels,
            "problems": options.problems,
            "bytes": size,
            "mean_ties": statistics.mean(ties),
            "questions": {
                word: {"seconds": seconds, "rows": len(answer)}
                for word, (seconds, answer) in found.items()
            },
            "settings": asdict(Settings()),
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
