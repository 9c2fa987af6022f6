"""Figures of grouped GEMM's estimate against records of kernels' times: what a choice costs.

    python benchmarks/grouped_figures.py           # the figures as they are
    python benchmarks/grouped_figures.py --fit     # and searches of `FITTED` and of `TRIED`

Needs no GPU. The records of few rows have products of layers that were drawn: these are fitted to.
`grouped_loads_h200.json` has other products, most of many rows, timed before: they take no part,
and values that make them worse are not to be taken over. Of each product the records have some of
the kernels, those that the estimates of their day put first, without those that the default space
has left out since; those of `THEN` were launched with other numbers of workgroups
(`launched_then`). Low tiles were upright in all records but those of `TURNED`.

Loss: how much longer the kernel that the estimate puts first takes than the fastest that was timed,
the geometric mean and the most. Spread: the geometric standard deviation of estimate over median
among a product's kernels: what all of them share says nothing about a choice, and the loads of the
records are not the assumed ones. A search takes the combination of values with the least loss, and
of those the one with the least spread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from tilewright.arch import arch, device
from tilewright.arch.figures import Figures, stated
from tilewright.arch.model import Arch
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.grouped_gemm import GroupedGemmProblem, estimate, low_tiles, names, spaces
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import PIPELINES

RESULTS = Path(__file__).parent / "results"
RECORDS = {
    "few rows, fitted to": (
        "grouped_few_h200.json",
        "grouped_step_h200.json",
        "grouped_shared_h200.json",
        "grouped_turned_h200.json",
    ),
    "timed before, which take no part": ("grouped_loads_h200.json",),
}
THEN = ("grouped_few_h200.json", "grouped_step_h200.json", "grouped_loads_h200.json")
TURNED = ("grouped_turned_h200.json",)
H200 = device("h200_sxm")
SM_90 = arch("sm_90")

TRIED = {
    "CONVERTED_BY_WARP": (2, 3, 4, 6, 8),
    "LATENCY_US": (0.5, 0.7, 0.85, 1.0, 1.25),
    "BETWEEN_US": (1.0, 2.0, 3.0, 4.0),
    "FLATTENED_US": (0.25, 0.5, 1.0),
}
"""Values of figures of `arch/figures/grouped_gemm.json`. `WALK_US` is the same for all kernels, so
that no choice depends on it."""
FITTED = ("CONVERTED_BY_WARP", "LATENCY_US", "BETWEEN_US")
"""What is taken over: the other fits the record that takes no part no better."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A product's kernels, and their medians in microseconds.

    then, turned: see `THEN`, `TURNED`.
    """

    then: bool
    turned: bool
    problem: GroupedGemmProblem
    kernels: Sequence[GroupedGemmConfig]
    us: Sequence[float]


@dataclass(frozen=True, slots=True)
class Fit:
    """How the estimate stands to a record's times."""

    products: int
    loss: float
    worst: float
    spread: float


LAUNCHED_NOW, TURNED_NOW = low_tiles.resident, low_tiles.turned


def upright(config: GroupedGemmConfig, arch: Arch) -> bool:
    """As `low_tiles.turned` was."""
    return False


def launched_then(config: GroupedGemmConfig, arch: Arch) -> int:
    """Workgroups for each compute unit: as many of low tiles as shared memory has room for with
    all stages in it, whatever their registers."""
    count = PIPELINES[config.pipeline].workgroups
    if not low_tiles.low(config):
        return count
    need = shared_memory(config.one, arch) + arch.shared_memory_reserved
    return max(count, min(low_tiles.MOST, arch.shared_memory_per_cu // need))


def record(names_of: Sequence[str]) -> list[Timed]:
    found = []
    for name in names_of:
        for one in json.loads((RESULTS / name).read_text())["products"]:
            us = {names.parse(kernel): time for kernel, time in one["us"].items()}
            if name in TURNED:
                us = {c: time for c, time in us.items() if not spaces.broad(c, SM_90)}
            problem = GroupedGemmProblem(**one["problem"])
            found.append(Timed(name in THEN, name in TURNED, problem, [*us], [*us.values()]))
    return found


def fit_of(products: Sequence[Timed]) -> Fit:
    losses, logs = [], []
    for one in products:
        low_tiles.resident = launched_then if one.then else LAUNCHED_NOW
        low_tiles.turned = TURNED_NOW if one.turned else upright
        expected = estimate.estimates(one.kernels, one.problem, H200).total_us
        losses.append(math.log(one.us[int(np.argmin(expected))] / min(one.us)))
        ratios = np.log(expected / np.array(one.us))
        logs += [*(ratios - ratios.mean())]
    loss, worst = math.exp(sum(losses) / len(losses)), math.exp(max(losses))
    spread = math.exp(float(np.std(logs)))
    return Fit(len(products), *(round(value, 4) for value in (loss, worst, spread)))


def fits(records: Mapping[str, Sequence[Timed]]) -> dict[str, dict[str, float]]:
    return {word: asdict(fit_of(timed)) for word, timed in records.items()}


def put(values: Mapping[str, float]) -> None:
    """Let the estimate use other values."""
    known = stated("grouped_gemm")
    changed = {name: replace(known[name], value=value) for name, value in values.items()}
    estimate.GROUPED = Figures({**known, **changed})


def search(figures: Sequence[str], products: Sequence[Timed]) -> dict[str, float]:
    """The best values of these figures; the estimate uses them from then on."""
    best: dict[str, float] = {}
    least = (math.inf, math.inf)
    for tried in itertools.product(*(TRIED[name] for name in figures)):
        values = dict(zip(figures, tried, strict=True))
        put(values)
        fit = fit_of(products)
        if (fit.loss, fit.spread) < least:
            best, least = values, (fit.loss, fit.spread)
    put(best)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    records = {word: record(names_of) for word, names_of in RECORDS.items()}
    fitted_to, *_ = records.values()
    said: dict[str, object] = {"as it is": fits(records)}
    for word, figures in (("fitted", FITTED), ("all fitted", tuple(TRIED))) if args.fit else ():
        values = search(figures, fitted_to)
        said[word] = {"values": values, **fits(records)}
    text = json.dumps(said, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
