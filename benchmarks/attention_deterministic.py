"""Deterministic gradients of attention on Hopper beside the others: the same kernel with sums of dQ
in turns and in any order, in one interleaved run.

    python benchmarks/attention_deterministic.py --json attention_deterministic_h200.json
    python benchmarks/attention_deterministic.py --match d256
    python benchmarks/attention_deterministic.py --build

Both are checked against float64 at full size, then timed in single calls with L2 flushed. A share
is the time in any order over the time in turns: the part of the speed that is kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attention_backward_vendor import SETS, kernels
from attention_vendor import FINAL, GPU, checked
from environment import environment
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.contenders import Contender, kernel_bind
from tilewright.ops.attention_backward import AttentionBackwardConfig, AttentionBackwardProblem

LENGTHS = (1024, 4096, 16384)


def problems() -> Iterator[AttentionBackwardProblem]:
    """Of the sets that the backward pass is compared with torch on."""
    for name in ("dense", "gqa", "256", "192/128"):
        yield from (p for p in SETS[name]() if name in ("256", "192/128") or p.q_len in LENGTHS)


def pairs(p: AttentionBackwardProblem) -> list[AttentionBackwardConfig]:
    """The kernels of one pipeline, in any order and in turns: of the estimate's first pipeline for
    the head dims."""
    found = kernels(p, False, [])
    pipeline = "gluon_lean" if any(c.pipeline == "gluon_lean" for c in found) else found[0].pipeline
    return sorted((c for c in found if c.pipeline == pipeline), key=lambda c: c.ordered)


def measure(
    p: AttentionBackwardProblem, dispatcher: Dispatcher, flush: timing.Call
) -> dict[str, Any]:
    """One problem's line."""
    free, ordered = pairs(p)
    both = [Contender(c.name, c, kernel_bind(dispatcher, c.name, p)) for c in (free, ordered)]
    calls, wrong = checked(both, p)
    line: dict[str, Any] = {"problem": str(p), "kernel": ordered.name, "wrong": wrong}
    if wrong:
        return line
    series = timing.measure({n: [c] for n, c in calls.items()}, timing.Events(flush, GPU), FINAL)
    us = {name: statistics.median(taken.samples_us) for name, taken in series.items()}
    return line | {
        "us": {"in any order": round(us[free.name], 2), "in turns": round(us[ordered.name], 2)},
        "share": round(us[free.name] / us[ordered.name], 3),
    }


def main() -> None:
    """Build, check and time both kernels of each problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--match", default="", help="a part of a problem's text, as d256")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--build", action="store_true", help="build only, without a GPU")
    options = parser.parse_args()
    asked = [p for p in problems() if options.match in str(p)]
    store = Store()
    print(build([(c, "sm_90") for c in {c.name: c for p in asked for c in pairs(p)}.values()],
                store=store))  # fmt: skip
    if options.build:
        return
    here = live_device(0)
    dispatcher = Dispatcher(device=here, store=store, build_missing=False)
    flush = timing.flusher(here.l2_bytes, GPU)
    document: dict[str, Any] = {"environment": environment(), "lines": []}
    for p in asked:
        document["lines"].append(measure(p, dispatcher, flush))
        print(json.dumps(document["lines"][-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
