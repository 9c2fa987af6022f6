"""Deterministic gradients of attention on Hopper beside the others: the same kernel with sums of dQ
in turns and in any order, in one interleaved run.

    python benchmarks/attention_deterministic.py --json attention_deterministic_h200.json
    python benchmarks/attention_deterministic.py --match d256 --side 1 2 4 8
    python benchmarks/attention_deterministic.py --build

Both are checked against float64 at full size, then timed in single calls with L2 flushed. A share
is the time in any order over the time in turns: the part of the speed that is kept. `--side` also
times so many heads of keys side by side, where the rule (`arguments`) has another number.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attention_backward_vendor import SETS, kernels
from attention_vendor import FINAL, GPU, checked
from environment import environment
from tilewright.arch.detect import live_device
from tilewright.arch.model import Device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.contenders import Contender, kernel_bind
from tilewright.ops.attention_backward import (
    AttentionBackwardConfig,
    AttentionBackwardProblem,
    arguments,
)
from tilewright.ops.nouns import Scalar

LENGTHS = (1024, 4096, 16384)


def problems() -> Iterator[AttentionBackwardProblem]:
    """Of the sets that the backward pass is compared with torch on."""
    for name in ("dense", "gqa", "256", "192/128"):
        yield from (p for p in SETS[name]() if name in ("256", "192/128") or p.q_len in LENGTHS)


def pairs(p: AttentionBackwardProblem) -> list[AttentionBackwardConfig]:
    """The kernels of one pipeline, in any order and in turns: `gluon_lean` where it serves `p`,
    which is the faster of two there."""
    found = kernels(p, False, [])
    pipeline = "gluon_lean" if any(c.pipeline == "gluon_lean" for c in found) else found[0].pipeline
    return sorted((c for c in found if c.pipeline == pipeline), key=lambda c: c.ordered)


FREE, TURNS = "in any order", "in turns"


def contenders(
    p: AttentionBackwardProblem, here: Device, store: Store, sides: list[int]
) -> Iterator[Contender]:
    """Both kernels; and the ordered one with so many heads side by side."""
    free, ordered = pairs(p)

    def bound(c: AttentionBackwardConfig) -> Any:
        return kernel_bind(Dispatcher(device=here, store=store, build_missing=False), c.name, p)

    def with_side(side: int) -> Any:
        def bind(inputs: Any, outputs: Any) -> Any:
            fixed = replace(usual, values=lambda _: (Scalar("i32", side),))
            with patch.dict(arguments.ARGUMENTS, kv_section=fixed):
                call = bound(ordered)(inputs, outputs)
                call()  # plans, with this number
                return call

        return bind

    usual = arguments.ARGUMENTS["kv_section"]
    yield Contender(FREE, free, bound(free))
    yield Contender(TURNS, ordered, bound(ordered))
    for n in dict.fromkeys(min(n, p.batch * p.kv_heads) for n in sides):
        yield Contender(f"{n} side by side", ordered, with_side(n))


def measure(
    p: AttentionBackwardProblem, each: list[Contender], flush: timing.Call
) -> dict[str, Any]:
    """One problem's line."""
    calls, wrong = checked(each, p)
    line: dict[str, Any] = {"problem": str(p), "kernel": pairs(p)[1].name, "wrong": wrong}
    if FREE in wrong:
        return line
    series = timing.measure({n: [c] for n, c in calls.items()}, timing.Events(flush, GPU), FINAL)
    us = {name: statistics.median(taken.samples_us) for name, taken in series.items()}
    shares = {name: round(us[FREE] / value, 3) for name, value in us.items() if name != FREE}
    return line | {"us": {name: round(value, 2) for name, value in us.items()}, "share": shares}


def main() -> None:
    """Build, check and time both kernels of each problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--match", default="", help="a part of a problem's text, as d256")
    parser.add_argument(
        "--side", type=int, nargs="+", default=[], help="heads side by side, all at most"
    )
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
    flush = timing.flusher(here.l2_bytes, GPU)
    document: dict[str, Any] = {"environment": environment(), "lines": []}
    for p in asked:
        document["lines"].append(measure(p, [*contenders(p, here, store, options.side)], flush))
        print(json.dumps(document["lines"][-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
