"""How much of a sweep's time its GPUs work, and how many kernels it measures a second.

    python benchmarks/sweep_throughput.py --json benchmarks/results/sweep_throughput_h200.json

Runs `tilewright sweep gemm:full` (bf16): 200 kernels, spread evenly over the space, on 50 of its
problems, every 33rd, each pair verified and timed in the usual way. The kernels are built first
(`--compile-only`), by its own clock. `--counts 1 2` sweeps on so many GPUs, one count after the
other, each into an empty directory; `--again` sweeps once more with the first count and says
whether the best kernels are the same.

NVML is asked ten times a second which share of the last moments a kernel ran on each GPU. Work is
that share of the wall time, from the command to its return; overhead is the rest, over the work.
`--keep DIR` keeps the sweeps' directories.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from environment import environment
from tilewright.tune.devices import parse
from tilewright.tune.problems import shipped
from tilewright.tune.results import Results
from tilewright.tune.summary import best


class Load:
    """The share of time in which GPUs ran a kernel while this is entered, by NVML."""

    def __init__(self, uuids: list[str]) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        self._handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        self._shares: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while not self._over.wait(0.1):
            used = [self._nvml.nvmlDeviceGetUtilizationRates(h).gpu for h in self._handles]
            self._shares.append(statistics.mean(used) / 100)

    @property
    def share(self) -> float:
        return statistics.mean(self._shares)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def command(problems: Path, out: Path, kernels: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "tilewright", "sweep", "gemm:full", "--out", str(out),
            "--problems", str(problems), "--signature", "dtype=bf16",
            "--max-kernels", str(kernels), *more]  # fmt: skip


def swept(problems: Path, out: Path, kernels: int, count: int) -> dict[str, Any]:
    """One sweep on so many GPUs, and what it came to."""
    uuids = [place.uuid for place in parse(str(count))]
    with Load(uuids) as load:
        begun = time.monotonic()
        ended = subprocess.run(command(problems, out, kernels, "--devices", str(count)))
        wall = time.monotonic() - begun
    with Results(out) as results:
        _, rows = results.query(
            "SELECT status, flags, low_us, median_us, high_us, attempts FROM measurement"
        )
    ran = [row for row in rows if row[0] != "unsupported"]
    spread = [(high - low) / 2 / median for _, _, low, median, high, _ in ran if median]
    flags = Counter(flag for row in ran for flag in (row[1] or "").split(",") if flag)
    work = load.share * wall
    return {
        "gpus": count,
        "exit": ended.returncode,
        "measured": len(ran),
        "statuses": Counter(row[0] for row in rows),
        "flags": flags,
        "tried_again": sum(row[5] > 1 for row in ran),
        "half_interval_median": statistics.median(spread),
        "wall_seconds": wall,
        "busy_share": load.share,
        "overhead": (wall - work) / work,
        "measured_per_second": len(ran) / wall,
    }


def alike(first: Path, second: Path) -> dict[str, Any]:
    """Whether two sweeps have the same best kernels: identical, or each one's best among those
    that the other's intervals do not tell from its own best; and what a choice from the first
    costs by the times of the second."""
    with Results(first) as one, Results(second) as two:
        found = {found.problem: found for found in best(one)}
        again = {found.problem: found for found in best(two)}
        query = (
            "SELECT problem.text, kernel.name, median_us FROM measurement "
            "JOIN problem ON problem.id = problem JOIN kernel ON kernel.id = kernel "
            "WHERE status = 'ok' AND kernel.name NOT LIKE 'vendor.%'"
        )
        times = [{(p, k): us for p, k, us in each.query(query)[1]} for each in (one, two)]
    least = [{} for _ in times]
    for each, of in zip(times, least, strict=True):
        for (problem, _), us in each.items():
            of[problem] = min(us, of.get(problem, us))
    identical = inside = 0
    losses = []
    for problem, a in found.items():
        b = again[problem]
        identical += a.kernel == b.kernel
        inside += a.kernel == b.kernel or (a.kernel in b.ties and b.kernel in a.ties)
    for problem, fastest in least[0].items():
        kernel = next(k for (p, k), us in times[0].items() if p == problem and us == fastest)
        losses.append(times[1][problem, kernel] / least[1][problem] - 1)
    common = times[0].keys() & times[1].keys()
    shifts = [times[1][key] / times[0][key] for key in common]
    return {
        "problems": len(found),
        "identical": identical,
        "identical_or_inside": inside,
        "loss_mean": statistics.mean(losses),
        "loss_worst": max(losses),
        "ratio_of_times": {
            "median": statistics.median(shifts),
            "p05": statistics.quantiles(shifts, n=20)[0],
            "p95": statistics.quantiles(shifts, n=20)[-1],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--counts", type=int, nargs="+", default=[1], help="of GPUs")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    document: dict[str, Any] = {"environment": environment(), "sweeps": []}
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        source = shipped("gemm:full", "problems.csv")
        assert source is not None
        lines = [line for line in source.read_text().splitlines() if not line.startswith("#")]
        rows = [*csv.DictReader(lines)]
        step = len(rows) // options.problems
        problems = folder / "problems.csv"
        with problems.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows[::step][: options.problems])
        begun = time.monotonic()
        subprocess.run(
            command(problems, folder / "build", options.kernels, "--compile-only"), check=True
        )
        document["build_seconds"] = time.monotonic() - begun
        folders = []
        for number, count in enumerate([*options.counts, *options.counts[: options.again]]):
            folders.append(folder / f"sweep{number}")
            document["sweeps"].append(swept(problems, folders[-1], options.kernels, count))
        if options.again:
            document["again"] = alike(folders[0], folders[-1])
    print(json.dumps(document, indent=2))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
