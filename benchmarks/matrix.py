"""Times of many kernels on problems that nothing was tuned for, for the scripts that compare
estimates with them.

    python benchmarks/matrix.py attention --json FILE [--budget SECONDS]
    python benchmarks/matrix.py padded --json FILE [--budget SECONDS]
    python benchmarks/matrix.py gradients --json FILE [--budget SECONDS]
    python benchmarks/matrix.py conv --json FILE [--budget SECONDS]

Needs a GPU. Each kernel is held to the float64 reference, and timed by a few single calls with L2
flushed. What the file has already is not timed again.

`attention`, `gradients`: the problems of both draws of `cases/attention_unseen.py` in turn that
move at least `LEAST_BYTES`, and long ones of the head dims at which tiles compete. The kernels are
those of the spaces of a tuning, but for tiles of `basic` that few rows want. `padded`: such
problems with rows of multiples of 64.

`conv`: the layers of half 0 of `cases/conv_unseen.csv`, in an order drawn by chance. The kernels
are the `EACH` of each kind, which are a pipeline and the arrays that are turned around it, that the
estimate puts first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case
from cases.attention import CAUSAL, shape
from cases.attention_unseen import COUNTED, HELD_OUT, PADDED, drawn
from cases.attention_unseen import gradients as gradients_of
from cases.conv import unseen
from environment import environment
from gpu_bench import Bench
from on_gpu import OnGpu
from tilewright import ops
from tilewright.compile import Store, default_store_path
from tilewright.errors import TilewrightError
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.library import library_of

LEAST_BYTES = 8 << 20
"""Of attention's operands: what is less takes as long as a launch."""
LONG = (2048, 4096)
"""Rows of the long problems."""
EACH = 2
"""Kernels of a kind of convolution's."""
BATCH = 6
"""Problems whose kernels are built together."""


def attention() -> Iterator[AttentionProblem]:
    draws = ([p for p in drawn(seed) if p.min_bytes > LEAST_BYTES] for seed in (COUNTED, HELD_OUT))
    for some in itertools.zip_longest(*draws, long()):
        yield from (p for p in some if p is not None)


def padded() -> Iterator[AttentionProblem]:
    draws = (
        [
            p for p in drawn(seed, step=PADDED)
            if p.min_bytes > LEAST_BYTES and p.head_dim in (64, 128)
        ]
        for seed in (COUNTED, HELD_OUT)
    )  # fmt: skip
    return itertools.chain.from_iterable(zip(*draws, strict=False))


def long() -> list[AttentionProblem]:
    return [shape(length, dim, **mask) for length in LONG for dim in (64, 128) for mask in CAUSAL]


def gradients() -> Iterator[Any]:
    """Of the head dims that most models have."""
    draws = (
        [p for p in gradients_of(seed) if p.min_bytes > LEAST_BYTES and p.head_dim in (64, 128)]
        for seed in (COUNTED, HELD_OUT)
    )
    return itertools.chain.from_iterable(zip(*draws, strict=False))


def conv() -> list[Any]:
    found = [*unseen(0)]
    random.Random(0).shuffle(found)
    return found


# --- kernels ------------------------------------------------------------------------------------


def of_spaces(problem: Any, bench: Bench) -> Sequence[Any]:
    return [c for c in bench.job(problem).candidates if not library_of(c) and _few_rows(c)]


def _few_rows(config: Any) -> bool:
    if config.family == "attention" and config.pipeline == "basic":
        return (
            config.tile_q >= 64 and config.tile_kv <= 64 and config.num_stages > 1
            and config.num_warps * 16 <= config.tile_q and config.scheduler == "tile"
        )  # fmt: skip
    return getattr(config, "scheduler", "") != "split"


def of_kinds(problem: Any, bench: Bench) -> Sequence[Any]:
    """The first of each kind of the default space."""
    family = ops.family(problem.family)
    configs = family.default_space(problem, bench.arch).expand(bench.arch).configs
    serving = [c for c in configs if family.supports(c, problem, bench.arch)]
    seen: Counter[Any] = Counter()
    found = []
    for c, _ in family.rank(problem, serving, bench.device):
        kind = c.turned, c.pipeline, c.gemm and c.gemm_config.pipeline
        seen[kind] += 1
        if seen[kind] <= EACH:
            found.append(c)
    return found


@dataclass(frozen=True, slots=True)
class Set:
    problems: Callable[[], Iterator[Any] | Sequence[Any]]
    kernels: Callable[[Any, Bench], Sequence[Any]]


SETS: Mapping[str, Set] = {
    "attention": Set(attention, of_spaces),
    "padded": Set(padded, of_spaces),
    "gradients": Set(gradients, of_spaces),
    "conv": Set(conv, of_kinds),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=300.0)
    args = parser.parse_args()
    ends = time.time() + args.budget
    found = json.loads(args.json.read_text()) if args.json.exists() else {}
    times: dict[str, Any] = found.setdefault("calls_us", {})
    bench, this = Bench(Store(default_store_path())), SETS[args.set]
    todo = [p for p in this.problems() if str(p) not in times]
    for start in range(0, len(todo), BATCH):
        some = todo[start : start + BATCH]
        kernels = {p: this.kernels(p, bench) for p in some if time.time() < ends}
        bench.built(c for configs in kernels.values() for c in configs)
        for problem, configs in kernels.items():
            if time.time() < ends:
                timed(problem, configs, bench, times)
    found["environment"] = environment()
    args.json.write_text(json.dumps(found, indent=1) + "\n")


def timed(problem: Any, configs: Sequence[Any], bench: Bench, times: dict[str, Any]) -> None:
    """Put a problem's times into `times`."""
    names = [c.name for c in configs]
    case = Case("matrix", "", "", lambda: [problem], ours="estimated")
    try:
        stage = OnGpu(case, problem, bench, 1, lambda text: None)
        stage.add(configs)
        taken = stage.tried([*names, *stage.field.vendor])
        times[str(problem)] = {name: round(us, 2) for name, us in taken.items() if us is not None}
        print(problem, len(times[str(problem)]), *stage.wrong.items(), flush=True)
    except TilewrightError as error:
        print(problem, error, flush=True)
    finally:
        stage = None
        bench.release()


if __name__ == "__main__":
    main()
