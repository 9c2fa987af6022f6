"""A bundle served on a GPU where Triton cannot be imported: right results, and a call's host time.

    tilewright bundle shipped:sm_90 --device h200_sxm -o h200.bundle
    python benchmarks/bundle_served.py h200.bundle --json benchmarks/results/bundle_served_h200.json

Two processes serve in turn, one without a C compiler and one with. In both, importing Triton
raises. Each verifies problems spread over the rows of the bundle's table against float64, looks
every row's choice up, and measures the host time of a cached call of the smallest problem: the
median over batches. The bundle is trusted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CALLS_A_BATCH = 200
BATCHES = 60
MOST_BYTES = 1 << 30
"""Larger problems are not verified: their references would take too long."""

NO_COMPILER = {"CC": "/nonexistent"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--problems", type=int, default=24, help="how many to verify")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        print(json.dumps(served(options.bundle, options.problems)))
        return
    found = {
        "no compiler": in_a_process(options, NO_COMPILER),
        "a compiler": in_a_process(options, {}),
    }
    for how, result in found.items():
        wrong = [one for one in result["verified"] if not one["ok"]]
        print(
            f"{how}: launched by {result['launcher']}; {len(result['verified'])} problems, "
            f"{len(wrong)} wrong; {result['own_kernel']} of {result['rows']} rows by their own "
            f"kernel, {result['tied']} by one not told from it; opened in "
            f"{result['open_ms']:.1f} ms, first call {result['first_call_ms']:.0f} ms, "
            f"cached call {result['host_us']:.2f} µs of host time"
        )
        for one in wrong:
            print(f"  WRONG: {one}")
    if options.json:
        import claims  # here, since the processes that serve import nothing of it
        from environment import environment

        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"environment": environment(), "served": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
        said = "from a bundle without Triton, a larger problem, with a C compiler"
        with_one, without = (found[how]["host_us"] for how in ("a compiler", "no compiler"))
        times = {said: with_one, "the same, without a C compiler": without}
        claims.save_times("host-bundle", times, options.json)
    if any(not one["ok"] for result in found.values() for one in result["verified"]):
        sys.exit(1)


def in_a_process(options: Any, changes: dict[str, str]) -> dict[str, Any]:
    """What `served` says in a process of its own, with a home where nothing is."""
    command = [sys.executable, __file__, str(options.bundle), "--serve"]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "TILEWRIGHT_HOME": str(Path(home) / "home"), **changes}
        for name in ("TILEWRIGHT_BUNDLE", "TILEWRIGHT_TABLES", "TILEWRIGHT_STORE"):
            environment.pop(name, None)
        done = subprocess.run(
            [*command, "--problems", str(options.problems)],
            env=environment, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def served(path: Path, count: int) -> dict[str, Any]:
    sys.modules["triton"] = None  # type: ignore[assignment]  # as where it is not installed
    import torch

    from tilewright import verify
    from tilewright.arch.detect import live_device
    from tilewright.bundle import Bundle
    from tilewright.dispatch import Dispatcher
    from tilewright.runtime.launcher import launcher

    start = time.perf_counter()
    bundle = Bundle(path, trusted=True)
    opened = time.perf_counter()
    dispatcher = Dispatcher(bundle=bundle)
    gpu = live_device(0)
    rows = [row for row in bundle.table or () if row.device.name == gpu.name]
    if not rows:
        sys.exit(f"{path} has no row of this GPU, {gpu}")
    smallest = min(rows, key=lambda row: (row.problem.min_bytes, str(row.problem))).problem
    first_call, host = timed(dispatcher, smallest, torch)
    chosen = [dispatcher.select(row.problem).config.name for row in rows]
    small = [row for row in rows if row.problem.min_bytes <= MOST_BYTES]
    verified = []
    for row in small[:: max(1, len(small) // count)]:
        check = verify.verify(dispatcher, row.problem, device="cuda:0")
        name = dispatcher.select(row.problem).config.name
        verified.append(
            {"problem": str(row.problem), "kernel": name, "ok": check.ok, "worst": check.worst}
        )
    assert sys.modules["triton"] is None
    pairs = list(zip(rows, chosen, strict=True))
    return {
        "launcher": launcher().__name__.rpartition(".")[2],
        "kernels": len(bundle.names(gpu.arch)),
        "rows": len(rows),
        "own_kernel": sum(row.kernel == name for row, name in pairs),
        "tied": sum(name in row.ties for row, name in pairs),
        "open_ms": (opened - start) * 1e3,
        "first_call_ms": first_call * 1e3,
        "host_problem": str(smallest),
        "host_us": host * 1e6,
        "verified": verified,
    }


def timed(dispatcher: Any, problem: Any, torch: Any) -> tuple[float, float]:
    """Seconds of a problem's first call, and host seconds of a cached call."""
    from tilewright import ops, verify

    inputs, out = verify.make_operands(problem, 0, "cuda:0")
    options = ops.family(problem.family).options(problem)
    torch.cuda.synchronize()
    start = time.perf_counter()
    dispatcher.run(problem.family, *inputs, out=out, **options)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    samples = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS_A_BATCH):
            dispatcher.run(problem.family, *inputs, out=out, **options)
        samples.append((time.perf_counter() - start) / CALLS_A_BATCH)
    return first, statistics.median(samples[5:])


if __name__ == "__main__":
    main()
