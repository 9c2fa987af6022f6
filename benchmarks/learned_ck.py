"""Learned selection on the public measurements of CK Tile Engine's grouped convolutions on gfx950,
beside what CK published of its own models on the same rows.

    python benchmarks/learned_ck.py benchmark_forward_300_bf16_gfx950.csv \\
        --train training_data_forward_bf16_20.csv --summary comparison_summary_300.csv \\
        --json benchmarks/results/learned_ck_gfx950.json

Needs no GPU; needs LightGBM. The three files lie in ROCm's rocm-libraries, in the folder
projects/composablekernel/tile_engine/ops/grouped_conv. The first and the second have a row for each
kernel on each problem, with its latency; the third has CK's published figures (`PUBLISHED`). CK's
model learned from the rows of the second (3,760, as the manifest of its model has it), and was
judged on those of the first.

CK's kernels are not ours, so the family's estimate does not know them. A roofline of the tiles that
a kernel cuts a layer into takes its place (`estimate_us`). All else is the chain that serves: the
trees (`learn.train.fit`), their walk. `as_ck` is as CK's: learned from the second file, judged on
the first. The others learn from a part of the first. Problems are held out in five parts: by
problem; by kin, which says what a model makes of layers that it saw no image size of; and by
problem with the parts exchanged, so that a model sees one part and is judged on four (`few`). It
prints, and writes, the
speed of the kernel chosen in percent of the fastest one: mean, median, P10, least, and how often
the fastest is first and among the first five, with the number of candidates. `one_kernel` always
chooses the kernel that is best on average where the model learned.

The second file has no kernels of the pipeline compv5. CK's features tell such a kernel from others
by not being compv3 nor compv4, of which the latter has less of the LDS for each of its two buffers.
Here a pipeline that a model did not see is taken for one that it saw with as many (`stand_in`).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from environment import environment
from tilewright import arch
from tilewright.learn.judge import FOLDS, figures_of
from tilewright.learn.train import fit
from tilewright.ops.tile_traits import of_product

DEVICE = "mi355x"
LAUNCH_US = 3.0
PUBLISHED = {
    "mean": "mean_efficiency", "median": "p50_efficiency", "p10": "p10_efficiency",
    "least": "min_efficiency", "top_1": "top1_accuracy", "top_5": "top5_hit_rate",
}  # fmt: skip
BUFFERS = {"compv4": 2}
"""In the LDS, of a pipeline's tiles. Others have one."""
_KERNEL = re.compile(r"_(\d+)x(\d+)x(\d+)_(\w+)$")


@dataclass(frozen=True)
class Layer:
    """A grouped convolution, forward."""

    n: int
    c: int
    k: int
    groups: int
    size: tuple[int, int]
    filter: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]

    @property
    def kin(self) -> Hashable:
        """The layer, without the images."""
        return self.c, self.k, self.groups, self.filter, self.stride, self.pad

    @property
    def product(self) -> tuple[int, int, int]:
        """Rows, columns and length of the sums of the product that each group is."""
        out = [
            (size + 2 * pad - taps) // stride + 1
            for size, taps, stride, pad in zip(
                self.size, self.filter, self.stride, self.pad, strict=True
            )
        ]
        taps = math.prod(self.filter)
        return self.n * math.prod(out), self.k // self.groups, self.c // self.groups * taps

    @property
    def flops(self) -> int:
        return 2 * self.groups * math.prod(self.product)

    @property
    def bytes(self) -> int:
        """Of x, w and y in bf16, each once."""
        rows, columns, depth = self.product
        x = self.n * self.c * math.prod(self.size)
        return 2 * (x + self.k * depth + self.groups * rows * columns)


@dataclass(frozen=True)
class Kernel:
    """One of CK's kernels: its tile, and its pipeline."""

    name: str
    tile: tuple[int, int, int]
    pipeline: str

    @classmethod
    def of(cls, name: str) -> Kernel:
        found = _KERNEL.search(name)
        if found is None:
            raise SystemExit(f"kernel '{name}' says no tile and pipeline")
        rows, columns, step = map(int, found.groups()[:3])
        return cls(name, (rows, columns, step), found[4])


Problem = tuple[Layer, Mapping[Kernel, float]]
"""A layer, and what each kernel took on it, in microseconds."""


def read(path: Path) -> list[Problem]:
    """The problems, with the times of every kernel: two may be of one layer, as they were measured.
    A kernel without a time, or whose output was all zeros, is left out. Raises `SystemExit` if rows
    of one problem are of different layers."""
    found: dict[str, tuple[Layer, dict[Kernel, float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            n, c, k, groups = (int(row[word]) for word in ("N", "C", "K", "G"))
            pairs = (("Hi", "Wi"), ("Y", "X"), ("stride_h", "stride_w"), ("pad_h", "pad_w"))
            sizes = [(int(row[a]), int(row[b])) for a, b in pairs]
            us = float(row["latency_ms"] or 0) * 1e3
            if us > 0 and int(row["non_zero"] or 0) > 0:
                layer = Layer(n, c, k, groups, *sizes)
                same, times = found.setdefault(row["problem_idx"], (layer, {}))
                if same != layer:
                    raise SystemExit(
                        f"{path}: rows of problem {row['problem_idx']} are of two layers"
                    )
                times[Kernel.of(row["kernel"])] = us
    return [(layer, times) for layer, times in found.values() if len(times) > 1]


def estimate_us(layer: Layer, kernel: Kernel) -> float:
    """A roofline: the waves of whole tiles at the matrix units' peak, or the traffic of the memory,
    and a launch."""
    device = arch.device(DEVICE)
    waves = traits_of(layer, kernel)["waves"]
    peak = arch.peak_tflops(arch.arch(device.arch), device, "bf16") * 1e6  # operations in 1 µs
    steps = math.ceil(layer.product[2] / kernel.tile[2]) * math.prod(kernel.tile)
    compute = waves * 2 * steps / (peak / device.compute_units)
    return LAUNCH_US + math.hypot(compute, layer.bytes / (device.bandwidth_gbs * 1e3))


def traits_of(layer: Layer, kernel: Kernel) -> dict[str, float]:
    sizes: Any = layer.product
    tile: Any = tuple(map(np.float64, kernel.tile))
    return {
        name: float(value)
        for name, value in of_product(
            sizes, tile, 1, layer.groups, arch.device(DEVICE)
        ).items()
    }  # fmt: skip


def row(layer: Layer, kernel: Kernel, pipelines: Sequence[str]) -> list[float]:
    """What a model is told of a kernel on a layer."""
    us = estimate_us(layer, kernel)
    return [
        us,
        layer.flops / us,
        layer.bytes / us,
        layer.flops / layer.bytes,
        *map(float, (layer.n, layer.c, layer.k, layer.groups, *layer.size, *layer.filter)),
        *map(float, (*layer.stride, *layer.pad)),
        *traits_of(layer, kernel).values(),
        float(pipelines.index(stand_in(kernel.pipeline, pipelines))),
    ]


def stand_in(pipeline: str, seen: Sequence[str]) -> str:
    """What a pipeline is for a model that saw `seen`: itself, or the first with as many buffers."""
    if pipeline in seen:
        return pipeline
    return next(one for one in seen if BUFFERS.get(one, 1) == BUFFERS.get(pipeline, 1))


def folds(layers: Sequence[Layer], by: str) -> list[list[int]]:
    """Numbers of layers in parts; those of one kin, or equal ones, are in one."""
    groups: dict[Hashable, list[int]] = {}
    for number, layer in enumerate(layers):
        groups.setdefault(layer.kin if by == "kin" else layer, []).append(number)
    parts: list[list[int]] = [[] for _ in range(FOLDS)]

    def chance(numbers: list[int]) -> tuple[int, str]:
        return -len(numbers), hashlib.sha256(repr(layers[numbers[0]]).encode()).hexdigest()

    for numbers in sorted(groups.values(), key=chance):
        min(parts, key=len).extend(numbers)
    return parts


Sheet = tuple[Sequence[Kernel], Any, Any]
"""The kernels of a problem, what a model is told of each, and what each took."""


def sheets_of(problems: Sequence[Problem], pipelines: Sequence[str]) -> list[Sheet]:
    """pipelines: those that a model of these sheets, or of others, sees."""
    found: list[Sheet] = []
    for layer, times in problems:
        kernels = sorted(times, key=lambda kernel: kernel.name)
        us = np.array([times[kernel] for kernel in kernels])
        found.append((kernels, np.array([row(layer, k, pipelines) for k in kernels]), us))
    return found


def pipelines_of(problems: Sequence[Problem]) -> list[str]:
    return sorted({kernel.pipeline for _, times in problems for kernel in times})


Chosen = dict[str, list[tuple[float, int]]]


def choose(seen: Sequence[Sheet], held: Sequence[Sheet], chosen: Chosen) -> None:
    """Add the share of the best speed, and the best kernel's rank, by each way of choosing that
    learned from `seen`, of each sheet in `held`."""
    features, us = [x for _, x, _ in seen], [u for *_, u in seen]
    trees, _ = fit(features, [x[:, 0] for x in features], us, [1.0] * len(seen))
    shares: Counter[Kernel] = Counter()
    for kernels, _, us in seen:
        shares.update(dict(zip(kernels, us.min() / us, strict=True)))
    for kernels, x, us in held:
        scores = {
            "one_kernel": np.array([-shares[kernel] for kernel in kernels]),
            "roofline": np.log(x[:, 0]),
            "learned": np.log(x[:, 0]) + trees.values(x),
        }
        for name, score in scores.items():
            order = np.argsort(score, kind="stable")
            rank = 1 + int(np.flatnonzero(order == us.argmin())[0])
            chosen.setdefault(name, []).append((float(us.min() / us[order[0]]), rank))


def judged(problems: Sequence[Problem], by: str, few: bool = False) -> dict[str, Any]:
    """Figures of the kernels that models choose which did not see the layer.

    few: whether a model sees one part of the problems instead of all others.
    """
    sheets = sheets_of(problems, pipelines_of(problems))
    chosen: Chosen = {}
    for part in folds([layer for layer, _ in problems], by):
        others = sorted({*range(len(problems))} - {*part})
        learned_from, held = (part, others) if few else (others, part)
        choose([sheets[n] for n in learned_from], [sheets[n] for n in held], chosen)
    return {name: figures_of(shares) for name, shares in chosen.items()}


def carried(learned_from: Sequence[Problem], problems: Sequence[Problem]) -> dict[str, Any]:
    """Figures of the kernels of `problems` that a model of others chooses. Raises `SystemExit` if
    both have a layer."""
    if common := {layer for layer, _ in learned_from} & {layer for layer, _ in problems}:
        raise SystemExit(f"{len(common)} layers are learned from and judged on")
    pipelines = pipelines_of(learned_from)
    chosen: Chosen = {}
    choose(sheets_of(learned_from, pipelines), sheets_of(problems, pipelines), chosen)
    return {name: figures_of(shares) for name, shares in chosen.items()}


def published(path: Path) -> dict[str, float]:
    """CK's own figures."""
    with path.open(newline="") as file:
        said = {one["metric"]: float(one["value"]) for one in csv.DictReader(file)}
    return {name: said[word] for name, word in PUBLISHED.items()}


def _line(name: str, figures: Mapping[str, float]) -> str:
    return f"{name:21} " + " ".join(f"{word} {value:.2f}" for word, value in figures.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="CK's measurements (.csv)")
    parser.add_argument("--train", type=Path, help="what CK's model learned from (.csv)")
    parser.add_argument("--summary", type=Path, help="CK's published figures (.csv)")
    parser.add_argument("--source", help="where the measurements are from, for the record")
    parser.add_argument("--json", type=Path, help="where to write the record")
    args = parser.parse_args()
    problems = read(args.file)
    cells = sum(len(times) for _, times in problems)
    record: dict[str, Any] = {
        "environment": environment(),
        "source": args.source,
        "sha256": {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in (args.file, args.train, args.summary)
            if file is not None
        },
        "problems": len(problems),
        "cells": cells,
        "candidates": round(cells / len(problems), 1),
    }
    if args.train is not None:
        others = read(args.train)
        record["learned_from"] = {
            "problems": len(others),
            "layers": len({layer for layer, _ in others}),
            "cells": sum(len(times) for _, times in others),
            "kin_judged": sum(layer.kin in {one.kin for one, _ in others} for layer, _ in problems),
        }
        record["as_ck"] = carried(others, problems)
    record |= {
        "by_problem": judged(problems, "problem"),
        "by_kin": judged(problems, "kin"),
        "few": judged(problems, "problem", few=True),
    }
    if args.summary is not None:
        record["published"] = published(args.summary)
    print(f"{record['problems']} problems, {record['candidates']} candidates of each on average")
    for held in ("as_ck", "by_problem", "by_kin", "few"):
        for name, said in record.get(held, {}).items():
            print(_line(f"{held} {name}", said))
    if "published" in record:
        print(_line("CK's own", record["published"]))
    if args.json is not None:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
