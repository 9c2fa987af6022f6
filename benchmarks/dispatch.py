"""Planning with no GPU: import, first plan, cached plan, explanation.

python benchmarks/dispatch.py --json benchmarks/results/dispatch.json

With --json the claim ``host-planning`` is written too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import claims
from environment import environment
from tilewright import Dispatcher, GemmProblem


def import_milliseconds() -> float:
    """Median time of ``import tilewright`` over fresh processes."""
    script = (
        "import time; t = time.perf_counter(); import tilewright; "
        "print((time.perf_counter() - t) * 1e3)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True).stdout)
        for _ in range(15)
    ]
    return statistics.median(runs)


def microseconds(call, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()

    dispatcher = Dispatcher(device="h200_sxm")
    problems = [GemmProblem(m, 4096, k) for m in range(1, 513) for k in (4096, 7168)]
    start = time.perf_counter()
    dispatcher.select(problems[0])
    first = (time.perf_counter() - start) * 1e6
    fresh = iter(problems[1:])
    results = {
        "import_ms": import_milliseconds(),
        "first_plan_of_a_signature_us": first,
        "new_problem_us": microseconds(lambda: dispatcher.select(next(fresh)), 300),
        "cached_plan_us": microseconds(lambda: dispatcher.select(problems[0]), 20000),
        "explain_us": microseconds(lambda: dispatcher.explain(problems[0]), 50),
        "candidates": len(dispatcher.explain(problems[0]).fates),
    }
    for name, value in results.items():
        print(f"{name:30} {value:10.1f}")
    if options.json:
        document = {"environment": environment(), **results}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
        times = {
            "`import tilewright`": results["import_ms"] * 1e3,
            f"plan a new problem among {results['candidates']} kernels": results["new_problem_us"],
            "a cached plan": results["cached_plan_us"],
            f"explain a choice among {results['candidates']} kernels": results["explain_us"],
        }
        claims.save_times("host-planning", times, options.json)


if __name__ == "__main__":
    main()
