"""How far a search has to go, and how often two tunings agree: simulated on a sweep's times.

    python benchmarks/tune_search.py DIR --json benchmarks/results/tune_search_h200.json

DIR has a sweep of every kernel on every problem (`tilewright sweep`), so what a search finds is
known without a GPU. `searches`: for several efforts, the share of the exhaustive best that the best
kernel found reaches, and how many were measured; kernels are ranked as the analytical selector
ranks them, and nothing else is tried first. `tunings`: two finals of each problem's near
kernels, with the sweep's medians as the truth (where between two ticks of the clock, is drawn), and
noise: what rounds of a take say of a kernel is off by a share of its worker's. Of those that cannot
be told apart, the first by name is preferred. `one_take`: the same of a single take; `fastest`: the
fastest of one take.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environment import environment
from sweep_again import Times, times
from tilewright import ops
from tilewright.arch.model import Device
from tilewright.jsonfile import convert, parse_json
from tilewright.measure.results import Results, read_problem
from tilewright.tune.finals import TAKES, Take, decided, pooled, winner
from tilewright.tune.search import Effort, next_step
from tilewright.tune.tuner import FINALISTS, NEAR

EFFORTS = (
    Effort(first=1, step=1, patience=1),
    Effort(first=8, step=8, patience=1),
    Effort(first=8, step=8, patience=2),
    Effort(first=8, step=16, patience=1),
    Effort(),
    Effort(first=8, step=16, patience=3),
    Effort(first=16, step=32, patience=2),
    Effort(patience=0),
)
WORKERS = (0.0005, 0.001, 0.002, 0.005)
CLOCK_US = 0.032
PAIRS = 100
"""Of tunings, for each problem."""


def ranked(found: Times, device: Device) -> dict[str, list[str]]:
    """The kernels of each problem, as the analytical selector ranks them."""
    order = {}
    for said, of in found.items():
        problem = read_problem(said, "the sweep")
        family = ops.family(problem.family)
        configs = [family.parse_name(name) for name in sorted(of)]
        order[said] = [config.name for config, _ in family.rank(problem, configs, device)]
    return order


def searched(found: Times, order: Mapping[str, list[str]], effort: Effort) -> dict[str, Any]:
    """What a search with `effort` comes to."""
    shares, counts = [], []
    for said, of in found.items():
        known: dict[str, float | None] = {}
        while step := next_step(order[said], known, effort):
            known.update({name: of[name][0] for name in step})
        best = min(us for us in known.values() if us is not None)
        shares.append(min(us for us, _ in of.values()) / best)
        counts.append(len(known))
    return {
        "first": effort.first,
        "step": effort.step,
        "patience": effort.patience,
        "mean_share": statistics.mean(shares),
        "worst_share": min(shares),
        "mean_measured": statistics.mean(counts),
        "of": statistics.mean(map(len, found.values())),
    }


def tuned(true: Mapping[str, float], worker: float, noise: random.Random) -> tuple[list[Take], str]:
    """The takes of a tuning's finals, and the winner."""
    takes: list[Take] = []
    while len(takes) < TAKES and not decided(takes, by_name):
        takes.append({name: [us * noise.gauss(1, worker)] for name, us in true.items()})
    return takes, winner(pooled(takes), by_name)


def by_name(name: str) -> str:
    """The order of preference."""
    return name


def agreed(found: Times, worker: float) -> dict[str, Any]:
    """How often two tunings choose the same."""
    noise = random.Random(0)
    same, one_take, fastest = 0, 0, 0
    takes, losses = [], []
    for of in found.values():
        off = CLOCK_US / 2
        medians = {name: us + noise.uniform(-off, off) for name, (us, _) in of.items()}
        best = min(medians.values())
        near = sorted((us, name) for name, us in medians.items() if us <= best * (1 + NEAR))
        true = {name: us for us, name in near[:FINALISTS]}
        for _ in range(PAIRS):
            (a, first), (b, second) = (tuned(true, worker, noise) for _ in range(2))
            same += first == second
            one_take += len({winner(pooled(some[:1]), by_name) for some in (a, b)}) == 1
            fastest += next(iter(pooled(a[:1]))) == next(iter(pooled(b[:1])))
            takes.append(len(a))
            losses.append(true[first] / best - 1)
    count = PAIRS * len(found)
    return {
        "worker_noise": worker,
        "same_share": same / count,
        "one_take_same_share": one_take / count,
        "fastest_same_share": fastest / count,
        "mean_takes": statistics.mean(takes),
        "most_takes": TAKES,
        "mean_loss": statistics.mean(losses),
        "worst_loss": max(losses),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found, _, began = times(options.folder)
    with Results(options.folder) as results:
        ((said,),) = results.rows("SELECT text FROM device")
    device = convert(parse_json(said, "the sweep"), Device, "the sweep")
    order = ranked(found, device)
    document: dict[str, Any] = {
        "environment": environment(),
        "device": device.name,
        "measured_from": began,
        "problems": len(found),
        "searches": [searched(found, order, effort) for effort in EFFORTS],
        "tunings": [agreed(found, worker) for worker in WORKERS],
    }
    print(json.dumps(document, indent=2))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
