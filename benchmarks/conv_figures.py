"""Convolution's figures (`arch/figures/conv.json`) against records of kernels' times.

    python benchmarks/conv_figures.py              # each figure, with other values
    python benchmarks/conv_figures.py --fit        # a search over all of them

Needs no GPU. The kernels that are fitted to are those of `conv_tuned_h200.json`, which a tuning and
the estimate chose for the layers of `conv:full`, and those of one half of `conv_unseen_h200.json`,
which the estimate chose for layers drawn from models that nothing was tuned for. The kernels of the
other half take no part. Both records are of an H200.

The measure is the spread of estimate over median: the geometric standard deviation, over the
kernels of the pipelines that a figure is of. With `--fit`, figures move one at a time by `STEPS` as
long as the first record's spread gets less. What that makes of the second record is printed beside
it: a value that helps the one and not the other is not one to take over.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import conv_counted
import conv_tuned
from tilewright.arch import device
from tilewright.arch.figures import stated
from tilewright.ops.conv import FAMILY, ConvConfig, ConvProblem
from tilewright.ops.conv.figures import CONV

H200 = device("h200_sxm")
FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0)
STEPS = (1.3, 1.1, 1.03)

OF = {
    "BANDS": ("gluon_bands",), "GROUPED": ("gluon_grouped",), "OLDER": ("gluon_grouped",),
    "TAP": ("depthwise",), "APART": ("window", "depthwise"),
    "DIRECT": ("direct",), "WINDOW": ("window",), "MEMORY": ("gluon_ws", "gluon_pingpong"),
}  # fmt: skip
"""The pipelines that a figure is of, by the word that it begins with; others are `implicit`'s."""

Timed = tuple[ConvProblem, ConvConfig, float]


def tuned() -> Iterator[Timed]:
    """The kernels of `conv_tuned_h200.json`."""
    for problem, row in conv_tuned.layers():
        pairs = {row[word]: row[f"{word}_us"] for word in ("ours", "untuned") if word in row}
        for name, us in ({row["kernel"]: row["us"]} | pairs).items():
            yield from _own(problem, name, us)


def unseen(half: int) -> Iterator[Timed]:
    """The kernels of a half of `conv_unseen_h200.json`."""
    kernels = json.loads(conv_counted.DRAW.record.read_text())["kernels"]
    for problem, us, *_ in conv_counted.DRAW.timed(half):
        yield from _own(problem, kernels[str(problem)], us)


def _own(problem: ConvProblem, name: str, us: float) -> Iterator[Timed]:
    config = FAMILY.parse_name(name)
    if not config.library and not config.gemm:
        yield problem, config, us


def spread(kernels: Iterable[Timed]) -> float:
    """The geometric standard deviation of estimate over median; 1.0 is none."""
    logs = [math.log(FAMILY.estimate(c, p, H200).total_us / us) for p, c, us in kernels]
    mean = sum(logs) / len(logs)
    return math.exp(math.sqrt(sum((one - mean) ** 2 for one in logs) / len(logs)))


def pipelines_of(figure: str) -> tuple[str, ...]:
    return OF.get(figure.partition("_")[0], ("implicit",))


def of(kernels: Iterable[Timed], figure: str) -> list[Timed]:
    """The kernels that a figure is of."""
    if figure.startswith("TURN"):
        return [one for one in kernels if one[1].turned]
    return [one for one in kernels if one[1].pipeline in pipelines_of(figure)]


def with_value(figure: str, value: float, kernels: Sequence[Timed]) -> float:
    """The spread with another value of a figure."""
    before = CONV.__dict__[figure]
    CONV.__dict__[figure] = value
    try:
        return spread(kernels)
    finally:
        CONV.__dict__[figure] = before


def search(figures: Sequence[str], kernels: Sequence[Timed]) -> dict[str, float]:
    """The values with which the spread is least, one figure at a time."""
    found = {figure: float(CONV.__dict__[figure]) for figure in figures}
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for figure in figures:
                some = of(kernels, figure)
                best = with_value(figure, found[figure], some) if some else 1.0
                for factor in (step, 1 / step):
                    value = found[figure] * factor
                    if some and (now := with_value(figure, value, some)) < best - 1e-4:
                        found[figure], best, moved = value, now, True
                CONV.__dict__[figure] = found[figure]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    first, second = [*tuned(), *unseen(0)], [*unseen(1)]
    print(f"{len(first)} kernels that are fitted to, {len(second)} that take no part")
    figures = [name for name, one in stated("conv").items() if isinstance(one.value, int | float)]
    result: dict[str, Any] = {}
    for figure in figures:
        ours, others = of(first, figure), of(second, figure)
        value = float(CONV.__dict__[figure])
        result[figure] = {
            "kernels": [len(ours), len(others)],
            "spread": {
                f"{factor * value:.4g}": [
                    round(with_value(figure, factor * value, some), 4) if some else None
                    for some in (ours, others)
                ]
                for factor in FACTORS
            },
        }
        print(figure, result[figure], flush=True)
    if args.fit:
        before = [round(spread(some), 4) for some in (first, second)]
        values = {name: round(value, 4) for name, value in search(figures, first).items()}
        after = [round(spread(some), 4) for some in (first, second)]
        result["fit"] = {"spread before": before, "spread after": after, "values": values}
        print(result["fit"])
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
