"""The share of a sweep's time in which its GPUs work, and kernels measured per second.

    python benchmarks/sweep_throughput.py --json benchmarks/results/sweep_throughput_h200.json

Runs `tilewright sweep gemm:full` (bf16): 200 kernels, spread evenly over the space, on 50 of its
problems, spread evenly over those of at most 0.3 TFLOP, each pair verified and timed in the usual
way. The kernels are built first (`--compile-only`), by another clock. `--counts 1 2` sweeps on so
many GPUs, one count after the other, each into an empty directory. `--of DIR` takes the problems of
an earlier sweep and the kernels that were most often among its five best.

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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from environment import environment
from tilewright.measure.places import parse
from tilewright.measure.problems import shipped
from tilewright.measure.results import Results

MOST_FLOPS = 3e11


def flops(row: dict[str, str]) -> float:
    return 2.0 * int(row["m"]) * int(row["n"]) * int(row["k"])


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


Ask = Callable[..., list[str]]
"""From an output directory and options to a command line."""


def spread(count: int, problems: int, folder: Path) -> Ask:
    """A sweep of so many kernels of the space, and problems of its list."""
    source = shipped("gemm:full", "problems.csv")
    assert source is not None
    lines = [line for line in source.read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if flops(row) <= MOST_FLOPS]
    chosen = folder / "problems.csv"
    with chosen.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows[:: len(rows) // problems][:problems])
    return partial(command, ["gemm:full", "--max-kernels", str(count)], chosen)


def best_of(earlier: Path, count: int, folder: Path) -> Ask:
    """A sweep of an earlier one's problems and of the kernels most often among its five best."""
    often: Counter[str] = Counter()
    with Results(earlier) as results:
        texts = [text for (text,) in results.query("SELECT text FROM problem ORDER BY id")[1]]
        for (problem,) in results.query("SELECT id FROM problem")[1]:
            _, names = results.query(
                "SELECT kernel.name FROM measurement JOIN kernel ON kernel.id = kernel WHERE "
                f"status = 'ok' AND problem = {problem} AND kernel.name NOT LIKE 'vendor.%' "
                "ORDER BY median_us LIMIT 5"
            )
            often.update(name for (name,) in names)
    chosen = folder / "problems.json"
    chosen.write_text(json.dumps([json.loads(text) for text in texts]))
    return partial(command, [name for name, _ in often.most_common(count)], chosen)


def command(kernels: list[str], problems: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tilewright", "sweep", *kernels, "--out", str(out),
            "--problems", str(problems), "--signature", "dtype=bf16", *more]  # fmt: skip


def swept(ask: Ask, out: Path, count: int) -> dict[str, Any]:
    """One sweep on this many GPUs, and its figures."""
    uuids = [place.uuid for place in parse(str(count))]
    with Load(uuids) as load:
        begun = time.monotonic()
        ended = subprocess.run(ask(out, "--devices", str(count)))
        wall = time.monotonic() - begun
    with Results(out) as results:
        _, rows = results.query(
            "SELECT status, flags, low_us, median_us, high_us, attempts, kernel.name "
            "FROM measurement JOIN kernel ON kernel.id = kernel"
        )
        _, ((since_first,),) = results.query(
            "SELECT (julianday(max(measured_at)) - julianday(min(measured_at))) * 86400 "
            "FROM measurement WHERE status = 'ok'"
        )
    ran = [row for row in rows if row[0] != "unsupported"]
    intervals = [(high - low) / 2 / median for _, _, low, median, high, *_ in ran if median]
    flags = Counter(flag for row in ran for flag in (row[1] or "").split(",") if flag)
    work = load.share * wall
    return {
        "gpus": count,
        "exit": ended.returncode,
        "measured": len(ran),
        "of_the_vendor": sum(row[6].startswith("vendor.") for row in ran),
        "statuses": Counter(row[0] for row in rows),
        "flags": flags,
        "tried_again": sum(row[5] > 1 for row in ran),
        "half_interval_median": statistics.median(intervals),
        "wall_seconds": wall,
        "from_first_to_last_result_seconds": since_first,
        "busy_share": load.share,
        "overhead": (wall - work) / work,
        "measured_per_second": len(ran) / wall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=200)
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--counts", type=int, nargs="+", default=[1], help="of GPUs")
    parser.add_argument("--of", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    document: dict[str, Any] = {"environment": environment(), "sweeps": []}
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        if options.of:
            ask = best_of(options.of, options.kernels, folder)
        else:
            ask = spread(options.kernels, options.problems, folder)
        begun = time.monotonic()
        subprocess.run(ask(folder / "build", "--compile-only"), check=True)
        document["build_seconds"] = time.monotonic() - begun
        for number, count in enumerate(options.counts):
            out = folder / f"sweep{number}"
            document["sweeps"].append(swept(ask, out, count))
    print(json.dumps(document, indent=2))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
