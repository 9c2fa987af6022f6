"""Orders in which kernels walk the tiles of C (`group_m`), for M of 65 to 2048.

    python benchmarks/gemm_orders.py --json benchmarks/results/gemm_orders_h100.json
    python benchmarks/gemm_orders.py --tall --json benchmarks/results/gemm_orders_tall_h100.json

Sizes are those of `gemm_middle`, or, with `--tall`, of 9 rows of tiles and more. For each, of every
kind of kernel (whole tiles or a split K, A and B swapped or not) the one with the least estimate is
built in several orders, checked against float64 and timed, by single calls with L2 flushed (see
`harness`) and in replayed CUDA graphs whose calls walk over copies of the operands. All take turns
with torch.mm. A kernel whose result is wrong is listed and not timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from environment import environment
from gemm_ladder import weights
from gemm_middle import geomean, replayed, rotated_operands, sizes
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, swap
from tilewright.ops.gemm.sizes import tiles

ORDERS = {"whole": (1, 2, 4, 8, 16), "split": (1, 2, 8)}
"""Of kernels with whole tiles, and of those that split K."""


TALL = ((520, 760), (1030, 1500), (2050, 2900), (3000, 6000))
"""Ranges of M of tall products: nine rows and more of tiles with 64 rows, with 128, with 192."""
MOST_WEIGHTS = 300_000_000
"""Elements of B of a tall product."""


def tall_sizes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """(M, N, K) of `count` tall products of models."""
    by_chance = random.Random(seed)
    pairs = [pair for pair in weights() if pair[0] * pair[1] < MOST_WEIGHTS]
    ranges = itertools.islice(itertools.cycle(TALL), count)
    return [(by_chance.randrange(*each), *by_chance.choice(pairs)) for each in ranges]


def kind(config: GemmConfig) -> str:
    """``whole`` or ``split``, and ``swapped``; empty for kernels that are not compared."""
    if config.pipeline not in ("gluon_ws", "gluon_pingpong"):
        return ""
    words = {("persistent", "none"): "whole", ("split_k", "linear"): "split"}
    word = words.get((config.scheduler, config.reduction), "")
    return f"{word} swapped" if word and config.swap_ab else word


def contenders(problem: GemmProblem, device: Device) -> dict[str, list[GemmConfig]]:
    """By kind, the kernel with the least estimate in every order."""
    this = arch(device.arch)
    spaces = FAMILY.tuning_spaces(problem, this)
    every = {c.name: c for space in spaces for c in space.expand(this).configs}
    usable = [c for c in every.values() if kind(c) and FAMILY.supports(c, problem, this)]
    first: dict[str, GemmConfig] = {}
    for config, _ in FAMILY.rank(problem, usable, device):
        first.setdefault(kind(config), config)
    return {
        word: [replace(config, group_m=order) for order in ORDERS[word.split()[0]]]
        for word, config in first.items()
    }


def grid(problem: GemmProblem, config: GemmConfig) -> tuple[int, int]:
    """Tiles along M and N, as the kernel sees them."""
    if config.swap_ab:
        config, problem = swap.config(config), swap.problem(problem)
    across = -(-problem.n // config.tile_n)
    return tiles(config, problem) // across, across


def measured(
    problem: GemmProblem, kinds: dict[str, list[GemmConfig]], store: Any, rounds: int
) -> dict[str, Any]:
    """One size's row of the results."""
    import torch

    from harness import bound, compare
    from tilewright import verify
    from tilewright.dispatch import Dispatcher
    from tilewright.registry import Registry

    m, n, k = problem.m, problem.n, problem.k
    operands = rotated_operands(problem)
    a, b, out = operands[0]
    reference = a.double() @ b.double()
    dispatcher = Dispatcher(store=store)
    single = {"torch.mm": partial(torch.mm, a, b, out=out)}
    rotated = {"torch.mm": [partial(torch.mm, x, y, out=z) for x, y, z in operands]}
    wrong = []
    for config in (one for listed in kinds.values() for one in listed):
        dispatcher.run_named(config.name, a, b, out=out.fill_(float("nan")))
        if not verify.compare(out, reference, verify.tolerance(problem, config)).ok:
            wrong.append(config.name)
            continue
        single[config.name] = bound(store, config, a, b, out=out)
        only = Dispatcher(Registry("one").register_all([config]), store=store)
        rotated[config.name] = [partial(only.run, "gemm", x, y, out=z) for x, y, z in operands]
    del reference
    singly = {name: timing.median for name, timing in compare(single, rounds).items()}
    graphs = {name: statistics.median(t) for name, t in replayed(rotated, rounds).items()}
    return {
        "m": m,
        "n": n,
        "k": k,
        "wrong": wrong,
        "torch.mm_us": {"single": singly["torch.mm"], "graphs": graphs["torch.mm"]},
        "kinds": {
            word: {
                "kernel": replace(listed[0], group_m=8).name,
                "tiles": grid(problem, listed[0]),
                "single_us": {c.group_m: singly[c.name] for c in listed if c.name in singly},
                "graphs_us": {c.group_m: graphs[c.name] for c in listed if c.name in graphs},
            }
            for word, listed in kinds.items()
        },
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How much longer each order takes than order 8: geometric means of every kind."""
    found = defaultdict(list)
    for row in rows:
        for word, one in row["kinds"].items():
            for way in ("single", "graphs"):
                times = one[f"{way}_us"]
                for order in times.keys() - {8}:
                    if 8 in times:
                        found[f"{word}, order {order} over 8, {way}"].append(
                            times[order] / times[8]
                        )
    return {f"{name} ({len(found[name])})": geomean(found[name]) for name in sorted(found)}


def write(path: Path, options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    document = {
        "environment": environment(),
        "dtype": options.dtype,
        "seed": options.seed,
        "rounds": options.rounds,
        "summary": summary(rows),
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--tall", action="store_true", help="sizes of 9 rows of tiles and more")
    parser.add_argument("--count", type=int, default=50, help="how many sizes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each contender")
    options = parser.parse_args()

    from tilewright.arch.detect import live_device
    from tilewright.compile import Store, build

    gpu, store = live_device(0), Store()
    drawn = (tall_sizes if options.tall else sizes)(options.count, options.seed)
    problems = [GemmProblem(*size, options.dtype) for size in drawn]
    every = [contenders(problem, gpu) for problem in problems]
    wanted = {c for kinds in every for listed in kinds.values() for c in listed}
    pairs = [(config, gpu.arch) for config in sorted(wanted, key=lambda c: c.name)]
    build(pairs, store=store).raise_if_failed()
    rows: list[dict[str, Any]] = []
    for problem, kinds in zip(problems, every, strict=True):
        rows.append(measured(problem, kinds, store, options.rounds))
        print(json.dumps(rows[-1]), flush=True)
        if options.json:
            write(options.json, options, rows)
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
