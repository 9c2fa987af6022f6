"""Times of nearly all kernels of the spaces on short attention in batches, for
`attention_figures.py`.

    python benchmarks/attention_matrix.py --json FILE [--gradients] [--budget SECONDS]

Needs a GPU. The problems are those of both draws of `cases/attention_unseen.py` in turn that move
at least `LEAST_BYTES`, and long ones of the head dims at which tiles compete. Each kernel is held
to the float64 reference, and timed by a few single calls with L2 flushed. The kernels are those of
the spaces of a tuning, but for tiles of `basic` that few rows want. What the file has already is
not timed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cases import Case
from cases.attention import CAUSAL, shape
from cases.attention_unseen import COUNTED, HELD_OUT, drawn, gradients
from environment import environment
from on_gpu import Bench, OnGpu
from tilewright.compile import Store, default_store_path
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardProblem

LEAST_BYTES = 8 << 20
"""Of the operands: what is less takes as long as a launch."""
LONG = (2048, 4096)
"""Rows of the long problems."""


def problems() -> Iterator[AttentionProblem]:
    draws = ([p for p in drawn(seed) if p.min_bytes > LEAST_BYTES] for seed in (COUNTED, HELD_OUT))
    for some in itertools.zip_longest(*draws, long()):
        yield from (p for p in some if p is not None)


def long() -> list[AttentionProblem]:
    return [shape(length, dim, **mask) for length in LONG for dim in (64, 128) for mask in CAUSAL]


def backward() -> Iterator[AttentionBackwardProblem]:
    """The gradients of the draws' problems, of the head dims that most models have."""
    draws = (
        [p for p in gradients(seed) if p.min_bytes > LEAST_BYTES and p.head_dim in (64, 128)]
        for seed in (COUNTED, HELD_OUT)
    )
    return itertools.chain.from_iterable(zip(*draws, strict=False))


def wanted(config: Any) -> bool:
    """Whether a kernel is timed."""
    if config.family == "attention_backward":
        return True
    if config.pipeline == "basic":
        return (
            config.tile_q >= 64 and config.tile_kv <= 64 and config.num_stages > 1
            and config.num_warps * 16 <= config.tile_q and config.scheduler == "tile"
        )  # fmt: skip
    return bool(config.scheduler != "split")


CASE = Case("matrix", "", "", lambda: [*problems()], only=wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--gradients", action="store_true", help="of these problems instead")
    args = parser.parse_args()
    ends = time.time() + args.budget
    found = json.loads(args.json.read_text()) if args.json.exists() else {}
    found.setdefault("calls_us", {})
    bench = Bench(Store(default_store_path()))
    every = backward() if args.gradients else problems()
    todo = [p for p in every if str(p) not in found["calls_us"]]
    batch = 6  # whose kernels are built together
    for start in range(0, len(todo), batch):
        some = todo[start : start + batch]
        if time.time() > ends:
            break
        bench.built(c for p in some for c in bench.job(p).candidates if wanted(c))
        for problem in some:
            if time.time() > ends:
                break
            timed(problem, bench, found["calls_us"])
    found["environment"] = environment()
    args.json.write_text(json.dumps(found, indent=1) + "\n")


def timed(problem: Any, bench: Bench, times: dict[str, Any]) -> None:
    """Put a problem's times into `times`."""
    try:
        stage = OnGpu(CASE, problem, bench, 1, lambda text: None)
        names = dict.fromkeys((*stage.field.starters, *stage.field.ours, *stage.field.vendor))
        taken = stage.tried([*names])
        times[str(problem)] = {name: round(us, 2) for name, us in taken.items() if us is not None}
        print(problem, len(times[str(problem)]), *stage.wrong.items(), flush=True)
    finally:
        stage = None
        bench.release()


if __name__ == "__main__":
    main()
