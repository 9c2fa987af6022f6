"""Execute kernels of every pipeline, dtype, layout, epilogue and kind of problem on emulated AMD
GPUs, and write what became of each.

    make emulate
    python benchmarks/emulated.py --json benchmarks/results/emulated.json

What is executed is derived from the rules: see `tests/emulate/spread.py`. Each kernel is built (or
found in the store), its listing is proven to be its machine code, it is executed on fresh data, and
its result is compared with float64. A kernel is right if nothing is found, either. Exit status 1 if
one is not. Values that the rules refuse are listed with their reasons. No hardware takes part, and
nothing is timed but this machine's own work.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environment import environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "emulate"))
from emulated_cases import ARCHS, cases, refusals
from executing import Outcome, dispatcher, execute

from tilewright.compile import Store, build
from tilewright.compile.report import BuildResult
from tilewright.dispatch import Dispatcher

QUIET_SECONDS = 60
"""If no case ends for so long, those under way are named."""
STATUSES = ("right", "wrong", "finding", "error", "not built")


@functools.cache
def _on(arch: str, store: str) -> Dispatcher:
    return dispatcher(arch, cases(arch), Store(store))


def run(arch: str, number: int, store: str, seed: int) -> Outcome:
    """Execute one case; in a process that keeps its emulated GPUs."""
    return execute(cases(arch)[number], _on(arch, store), seed)


def end_with_parent() -> None:
    """Begin a worker: it exits when the process that started it ends, killed or not."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def ended(futures: dict[Future[Outcome], str]) -> Iterator[Future[Outcome]]:
    """Each future when it is done; `futures` gives their labels. Those that keep all others
    waiting are named."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, QUIET_SECONDS, return_when="FIRST_COMPLETED")
        if not done:
            for label in (futures[future] for future in pending if future.running()):
                print(f"still under way, or next: {label}", file=sys.stderr)
        yield from done


def build_all(wanted: Iterable[tuple[str, int]], store: Store, workers: int) -> dict[str, float]:
    """Build the kernels of cases; what failed is told again when its case is executed."""
    requests = [(cases(name)[number].config, name) for name, number in wanted]

    def tell(result: BuildResult, number: int, of: int) -> None:
        if number % 50 == 0 or number == of:
            print(f"built {number} of {of}", file=sys.stderr)

    report = build(requests, store=store, workers=workers, timeout=600.0, progress=tell)
    compiled = sum(result.seconds for result in report.results)
    return {"seconds": round(report.seconds, 1), "compiling": round(compiled, 1)}


def table(outcomes: list[Outcome]) -> str:
    """What became of the cases, by architecture and pipeline."""
    rows = [("architecture", "pipeline", "cases", *STATUSES, "refused", "instructions", "seconds")]
    kinds: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        config = outcome.case.config
        kinds.setdefault((outcome.case.arch, config.family, config.pipeline), []).append(outcome)
    for (arch, family, pipeline), those in kinds.items():
        counts = Counter(outcome.status for outcome in those)
        refused = [r for r in refusals(arch) if (r.family, r.pipeline) == (family, pipeline)]
        rows.append(
            (
                arch,
                pipeline if family == "gemm" else f"{family} {pipeline}",
                str(len(those)),
                *(str(counts[status] or "") for status in STATUSES),
                str(len(refused)),
                str(sum(outcome.instructions for outcome in those)),
                f"{sum(outcome.seconds for outcome in those):.1f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def record(outcome: Outcome) -> dict[str, Any]:
    """A case and what became of it, for the results' file."""
    case = outcome.case
    return {
        "kernel": case.config.name,
        "problem": str(case.problem),
        "covers": [" ".join(value) for value in case.covers],
        "status": outcome.status,
        **({"detail": outcome.detail} if outcome.detail else {}),
        "instructions": outcome.instructions,
        "seconds": round(outcome.seconds, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", action="append", choices=ARCHS, help="only this one; repeatable")
    parser.add_argument("--match", default="", help="only kernels whose name has this in it")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=int, default=cores, help="processes; by default all cores"
    )
    parser.add_argument("--seed", type=int, default=19, help="makes the data")
    parser.add_argument("--store", type=Path, help="kernels' store; by default the user's")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    began = time.monotonic()
    archs = tuple(options.arch or ARCHS)
    store = Store(options.store) if options.store else Store()
    outcomes: dict[tuple[str, int], Outcome] = {}
    wanted = [
        (name, number)
        for name in archs
        for number, case in enumerate(cases(name))
        if options.match in case.config.name
    ]
    building = build_all(wanted, store, options.workers)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, end_with_parent) as pool:
        how = (str(store.path), options.seed)
        futures = {pool.submit(run, *which, *how): which for which in wanted}
        labels = {future: cases(name)[n].label for future, (name, n) in futures.items()}
        for number, future in enumerate(ended(labels), 1):
            outcome = outcomes[futures[future]] = future.result()
            if outcome.status != "right":
                print(f"{outcome.status}: {outcome.case.label}: {outcome.detail}", file=sys.stderr)
            if number % 50 == 0 or number == len(wanted):
                print(f"executed {number} of {len(wanted)}", file=sys.stderr)
    found = [outcomes[which] for which in wanted]
    print(table(found))
    if options.json:
        document = {
            "environment": environment(),
            "seconds": round(time.monotonic() - began, 1),
            "building": building,
            "architectures": {
                name: {
                    "cases": [record(o) for o in found if o.case.arch == name],
                    "refused": [
                        {key: value for key, value in asdict(r).items() if key != "arch"}
                        for r in refusals(name)
                    ],
                }
                for name in archs
            },
        }
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return int(any(outcome.status != "right" for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
