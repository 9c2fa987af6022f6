"""Products of sizes that nothing was tuned for: what a dispatcher chooses.

N and K are drawn between those of the sweep `full`, which models have, in steps of 64 and, for one
size in three, of 8; no pair of them is in the sweep. M is drawn from 1 to 8192, evenly by its
logarithm. Of the sizes of models, N and K are a pair of the sweep, and M is any. Sizes are rounded
up to what torch takes. The sizes of several seeds are pooled, so that none can be picked.

The gradients of a layer that was drawn so, with M rows of x [M, K] and weights [N, K] as torch has
them: of x a product in layout `rrr`, of the weights one in layout `crr`, whose sum is over M.
"""

from __future__ import annotations

import bisect
import csv
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources

import rivals
from cases import Case, Part
from cases.gemm import blocks
from tilewright.ops.gemm import GemmProblem

SEEDS, EACH = (101, 102, 103), 40
"""Seeds that nothing was fitted to, and sizes of each."""
SPARE = 10
"""Further sizes of each seed, in place of those that an earlier one drew too."""
LAYERS, LAYERS_SEED, FEWEST_ROWS = 32, 402, 65
"""Of layers with gradients: how many, their seed, and the least M. Those of seed 401 are in
`library_record`."""
MOST_M = 8192
MOST_BYTES = 2 << 30

Multiples = tuple[int, int, int]


def weights() -> list[tuple[int, int]]:
    """Every (N, K) of the sweep `full`, the smallest first."""
    listed = resources.files("tilewright.ops.gemm") / "sweeps" / "full" / "problems.csv"
    lines = [line for line in listed.read_text().splitlines() if not line.startswith("#")]
    every = {(int(row["n"]), int(row["k"])) for row in csv.DictReader(lines)}
    return sorted(every, key=lambda pair: (pair[0] * pair[1], pair))


def between(by_chance: random.Random, known: Sequence[int], step: int) -> int:
    """A multiple of `step` between two neighbours of the sorted `known`, or the lower of them."""
    number = by_chance.choice(known[:-1])
    following = known[bisect.bisect_right(known, number)]
    return max(step, by_chance.randrange(number, following) // step * step)


def sizes(
    count: int, seed: int, of_models: bool = False, multiples: Multiples = (1, 1, 1)
) -> list[tuple[int, int, int]]:
    """(M, N, K) of `count` products, each size a multiple."""
    pairs = {*weights()}
    every_n, every_k = (sorted({pair[axis] for pair in pairs}) for axis in (0, 1))
    by_chance = random.Random(seed)
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        step = 8 if len(found) % 3 == 2 else 64
        if of_models:
            n, k = by_chance.choice(sorted(pairs))
        else:
            n, k = (between(by_chance, known, step) for known in (every_n, every_k))
        m = round(math.exp(by_chance.uniform(0, math.log(MOST_M))))
        m, n, k = (-(-x // of) * of for x, of in zip((m, n, k), multiples, strict=True))
        if ((n, k) in pairs) == of_models and GemmProblem(m, n, k).min_bytes <= MOST_BYTES:
            found.append((m, n, k))
    return found


def pooled(
    make: Callable[..., GemmProblem], of_models: bool = False, multiples: Multiples = (1, 1, 1)
) -> list[GemmProblem]:
    """The products of all seeds, each once."""
    found: dict[tuple[int, int, int], None] = {}
    for seed in SEEDS:
        drawn = sizes(EACH + SPARE, seed, of_models, multiples)
        found |= dict.fromkeys([size for size in drawn if size not in found][:EACH])
    return [make(*size) for size in found]


def layers() -> list[tuple[int, int, int]]:
    drawn = sizes(4 * LAYERS, LAYERS_SEED)
    return [size for size in drawn if size[0] >= FEWEST_ROWS][:LAYERS]


def gradients() -> list[GemmProblem]:
    """The products of layers' backward passes."""
    return [
        GemmProblem(*size, layout=layout)
        for m, n, k in layers()
        for size, layout in (((m, k, n), "rrr"), ((n, k, m), "crr"))
    ]


def biased() -> list[GemmProblem]:
    """The products of layers with a bias, with weights as torch and as JAX have them."""
    return [
        GemmProblem(*size, layout=layout, epilogue="bias")
        for size in layers()
        for layout in ("rcr", "rrr")
    ]


def fp8_rows(m: int, n: int, k: int) -> GemmProblem:
    """fp8 with a scale for each row of A and column of B."""
    return GemmProblem(m, n, k, "e4m3fn", epilogue="row_scale+col_scale")


def _case(name: str, says: str, against: str, problems: Callable[[], list[GemmProblem]]) -> Case:
    count = f"{len(SEEDS) * EACH} sizes"
    return Case(name, f"{count} {says}, by what is chosen", against, problems, ours="answered")


_ANY = "that nothing was tuned for or had seen"
CASES = (
    _case("gemm-unseen-bf16", f"{_ANY}, bf16", "`torch.mm`", partial(pooled, GemmProblem)),
    Case(
        "gemm-unseen-gradients", f"the gradients of {LAYERS} layers {_ANY}, bf16, by what is "
        "chosen", "`torch.mm`", gradients, ours="answered", seconds=0.4,
        parts=(
            Part("x", "`torch.mm`", where=lambda p: p.layout == "rrr"),
            Part("weights", "`torch.mm`", where=lambda p: p.layout == "crr"),
        ),
    ),
    Case(
        "gemm-unseen-bias", f"{LAYERS} layers with a bias {_ANY}, bf16, by what is chosen",
        "`torch.addmm`", biased, ours="answered", seconds=0.4, vendor=(rivals.addmm,), exact="near",
    ),
    _case(
        "gemm-between-bf16", "with N and K of models and any M, bf16", "`torch.mm`",
        partial(pooled, GemmProblem, of_models=True),
    ),
    _case(
        "gemm-unseen-fp8-rows", f"{_ANY}, fp8 with a scale for each row and column",
        "`torch._scaled_mm`", partial(pooled, fp8_rows, multiples=(1, 16, 16)),
    ),
    _case(
        "gemm-unseen-fp8-blocks", f"{_ANY}, fp8 with scales for 1×128 and 128×128 blocks",
        "`torch._scaled_mm`", partial(pooled, blocks, multiples=(4, 16, 512)),
    ),
)  # fmt: skip
