"""What a dispatcher chooses for products that nothing was tuned or fitted for, beside torch's.

    python benchmarks/gemm_unseen.py --json benchmarks/results/gemm_unseen_h200.json
    python benchmarks/gemm_unseen.py --weights models --json benchmarks/results/gemm_between.json
    python benchmarks/gemm_unseen.py --operands fp8-blocks --json benchmarks/results/unseen.json

N and K are drawn between those of the sweep `full`, which models have, in steps of 64 and, for one
size in three, of 8; no pair of them is in the sweep. M is drawn from 1 to 8192, evenly by its
logarithm. With `--weights models`, N and K are a pair of the sweep: what shipped rows for other Ms
are worth, beside the estimate alone (`estimated`). With `--weights narrow`, they are drawn, with N
of up to 1792 and K from 2048, and M is 33 to 64. `--operands fp8-rows` has a scale for each row of
A and column of B, `fp8-blocks` one for 1×128 of A and 128×128 of B; sizes are rounded up to what
torch takes. `chosen` is what the default dispatcher runs, `ours` the same with `only_ours`. Each is
checked against float64, then timed in turns with torch's call (torch.mm or torch._scaled_mm): by
single calls with L2 flushed (see `harness`) and in replayed CUDA graphs whose calls walk over
copies of the operands. A kernel whose result is wrong is listed and not timed. A ratio is the time
of torch's call over the other's.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import environment
from gemm_ladder import weights
from gemm_middle import copies, geomean, replayed
from tilewright.ops.gemm import GemmProblem

MOST_M = 8192
MOST_BYTES = 2 << 30
BANDS = ((1, 16), (17, 64), (65, 512), (513, 2048), (2049, MOST_M))
KINDS = ("chosen", "ours", "estimated")


@dataclass(frozen=True, slots=True)
class Form:
    """A form of product: fields of its problem, and the multiples of M, N and K that torch
    takes."""

    fields: dict[str, str]
    multiples: tuple[int, int, int] = (1, 1, 1)

    def problem(self, m: int, n: int, k: int) -> GemmProblem:
        scales: dict[str, Any] = {}
        if "scale_a" in self.fields:  # as torch has them
            scales = {"strides_sa": (1, m), "strides_sb": (1, k // 128)}
        return GemmProblem(m, n, k, **self.fields, **scales)


FORMS = {
    "bf16": Form({"dtype_a": "bf16"}),
    "fp16": Form({"dtype_a": "fp16"}),
    "fp8-rows": Form({"dtype_a": "e4m3fn", "epilogue": "row_scale+col_scale"}, (1, 16, 16)),
    "fp8-blocks": Form(
        {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}, (4, 16, 512)
    ),
}


def drawn(by_chance: random.Random, known: Sequence[int], step: int) -> int:
    """A multiple of `step` between two neighbours of the sorted `known`, or the lower of them."""
    number = by_chance.choice(known[:-1])
    following = known[bisect.bisect_right(known, number)]
    return max(step, by_chance.randrange(number, following) // step * step)


NARROW_M, NARROW_N, NARROW_K = (33, 64), 1792, 2048
WEIGHTS = ("drawn", "models", "narrow")


def sizes(
    count: int, seed: int, kind: str = "drawn", multiples: tuple[int, int, int] = (1, 1, 1)
) -> list[tuple[int, int, int]]:
    """(M, N, K) of `count` products, each size a multiple; `kind` is one of `WEIGHTS`."""
    of_models, narrow = kind == "models", kind == "narrow"
    pairs = {*weights()}
    every_n, every_k = (sorted({pair[axis] for pair in pairs}) for axis in (0, 1))
    by_chance = random.Random(seed)
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        step = 8 if len(found) % 3 == 2 else 64
        if of_models:
            n, k = by_chance.choice(sorted(pairs))
        else:
            n, k = (drawn(by_chance, known, step) for known in (every_n, every_k))
        m = round(math.exp(by_chance.uniform(0, math.log(MOST_M))))
        if narrow:
            m = by_chance.randint(*NARROW_M)
            if n > NARROW_N or k < NARROW_K:
                continue
        m, n, k = (-(-x // of) * of for x, of in zip((m, n, k), multiples, strict=True))
        if ((n, k) in pairs) == of_models and GemmProblem(m, n, k).min_bytes <= MOST_BYTES:
            found.append((m, n, k))
    return found


def measured(
    problem: GemmProblem, dispatchers: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """One size's row of the results."""
    from harness import compare
    from tilewright import verify
    from tilewright.measure.contenders import dispatched, results
    from tilewright.measure.vendor import vendor_bind

    operands = [verify.operands_of(problem, seed, "cuda:0") for seed in range(copies(problem))]
    first, *_ = operands
    reference = verify.reference(problem, first.inputs)
    vendor, bind = vendor_bind(problem)
    row: dict[str, Any] = {"m": problem.m, "n": problem.n, "k": problem.k, "wrong": []}
    binds = {vendor: bind}
    for kind, dispatcher in dispatchers.items():
        one = dispatched(kind, dispatcher, problem)
        row[kind] = one.config.name
        verify.reset(first, {})
        written = results(problem, first, one.bind(first.inputs, first.outputs)())
        if verify.compare_all(problem, one.config, written, reference).ok:
            binds[kind] = one.bind
        else:
            row["wrong"].append(one.config.name)
    del reference
    calls = {name: [make(x.inputs, x.outputs) for x in operands] for name, make in binds.items()}
    single = compare({name: listed[0] for name, listed in calls.items()}, options.rounds)
    row["single_us"] = {name: timing.median for name, timing in single.items()}
    graphs = replayed(calls, options.rounds)
    row["graphs_us"] = {name: statistics.median(times) for name, times in graphs.items()}
    for word in ("single", "graphs"):
        times = row[f"{word}_us"]
        for kind in calls.keys() & {*KINDS}:
            row[f"{kind}_{word}"] = times[vendor] / times[kind]
    return row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each kind and way of measuring, over all sizes and ranges of M."""
    found: dict[str, Any] = {}
    for least, most in ((1, MOST_M), *BANDS):
        for name in (f"{kind}_{word}" for kind in KINDS for word in ("single", "graphs")):
            some = sorted(row[name] for row in rows if least <= row["m"] <= most and name in row)
            if some:
                found[f"{name}, M {least} to {most}"] = {
                    "sizes": len(some),
                    "geomean": geomean(some),
                    "p10": some[len(some) // 10],
                    "least": some[0],
                }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--weights", choices=WEIGHTS, default=WEIGHTS[0])
    parser.add_argument("--count", type=int, default=300, help="how many sizes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operands", choices=[*FORMS], default="bf16")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each contender")
    options = parser.parse_args()

    from tilewright.arch.detect import live_device
    from tilewright.compile import Store, build
    from tilewright.dispatch import Dispatcher
    from tilewright.ops.library import library_of
    from tilewright.select.constraints import Constraints

    gpu, store = live_device(0), Store()
    dispatchers = {
        "chosen": Dispatcher(store=store),
        "ours": Dispatcher(store=store, constraints=Constraints(only_ours=True)),
    }
    if options.weights == "models":
        dispatchers["estimated"] = Dispatcher(store=store, selector="analytical")
    form = FORMS[options.operands]
    drawn_sizes = sizes(options.count, options.seed, options.weights, form.multiples)
    problems = [form.problem(*size) for size in drawn_sizes]
    chosen = {d.select(p).config for d in dispatchers.values() for p in problems}
    wanted = sorted((c for c in chosen if not library_of(c)), key=lambda c: c.name)
    build([(config, gpu.arch) for config in wanted], store=store).raise_if_failed()
    rows: list[dict[str, Any]] = []
    for problem in problems:
        row = measured(problem, dispatchers, options)
        rows.append(row)
        ratios = {name: round(row[name], 3) for name in row if name.endswith(("single", "graphs"))}
        print(problem, ratios, *(f"WRONG {name}" for name in row["wrong"]), flush=True)
        if options.json and len(rows) % 20 in (0, len(problems) % 20):
            document = {
                "environment": environment(),
                "operands": options.operands,
                "seed": options.seed,
                "rounds": options.rounds,
                "summary": summary(rows),
                "rows": rows,
            }
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
