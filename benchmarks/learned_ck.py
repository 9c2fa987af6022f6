"""Learned selection on the public measurements of CK Tile Engine's grouped convolutions on gfx950,
beside what CK published of its own models on the same rows.

    python benchmarks/learned_ck.py benchmark_forward_300_bf16_gfx950.csv \\
        --summary comparison_summary_300.csv --json benchmarks/results/learned_ck_gfx950.json

Needs no GPU; needs LightGBM. The two files lie in ROCm's rocm-libraries, in the folder
projects/composablekernel/tile_engine/ops/grouped_conv. The first has a row for each kernel on each
problem, with its latency; the second has CK's published figures (`mean_efficiency`,
`p10_efficiency`, `min_efficiency`).

CK's kernels are not ours, so the family's estimate does not know them. A roofline of the tiles that
a kernel cuts a layer into takes its place (`estimate_us`). All else is the chain that serves: the
trees (`learn.train.fit`), their walk. Problems are held out in five parts,
by problem as CK holds them out, and by kin, which says what a model makes of layers that it saw no
image size of. It prints, and writes, the speed of the kernel chosen in percent of the fastest one:
mean, median, P10, least, and how often the fastest is first and among the first five, with the
number of candidates.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import re
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
PUBLISHED = {"mean": "mean_efficiency", "p10": "p10_efficiency", "least": "min_efficiency"}
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


Times = Mapping[Kernel, float]
"""Microseconds by kernel."""


def read(path: Path) -> dict[Layer, dict[Kernel, float]]:
    """The times of every kernel on every layer. A kernel without a time, or whose output was all
    zeros, is left out."""
    found: dict[Layer, dict[Kernel, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            n, c, k, groups = (int(row[word]) for word in ("N", "C", "K", "G"))
            pairs = (("Hi", "Wi"), ("Y", "X"), ("stride_h", "stride_w"), ("pad_h", "pad_w"))
            sizes = [(int(row[a]), int(row[b])) for a, b in pairs]
            us = float(row["latency_ms"] or 0) * 1e3
            if us > 0 and int(row["non_zero"] or 0) > 0:
                layer = Layer(n, c, k, groups, *sizes)
                found.setdefault(layer, {})[Kernel.of(row["kernel"])] = us
    return {layer: times for layer, times in found.items() if len(times) > 1}


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
        float(pipelines.index(kernel.pipeline)),
    ]


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


def judged(measured: Mapping[Layer, Times], by: str) -> dict[str, Any]:
    """Figures of the kernels that models choose which did not see the layer."""
    layers = [*measured]
    pipelines = sorted({kernel.pipeline for times in measured.values() for kernel in times})
    sheets = []
    for layer in layers:
        kernels = sorted(measured[layer], key=lambda kernel: kernel.name)
        us = np.array([measured[layer][kernel] for kernel in kernels])
        x = np.array([row(layer, kernel, pipelines) for kernel in kernels])
        sheets.append((x, us))
    chosen: dict[str, list[tuple[float, int]]] = {"roofline": [], "learned": []}
    for part in folds(layers, by):
        held = set(part)
        seen = [sheet for number, sheet in enumerate(sheets) if number not in held]
        trees, _ = fit([x for x, _ in seen], [x[:, 0] for x, _ in seen], [us for _, us in seen])
        for number in part:
            x, us = sheets[number]
            scores = {"roofline": np.log(x[:, 0]), "learned": np.log(x[:, 0]) + trees.values(x)}
            for name, score in scores.items():
                order = np.argsort(score, kind="stable")
                rank = 1 + int(np.flatnonzero(order == us.argmin())[0])
                chosen[name].append((float(us.min() / us[order[0]]), rank))
    return {name: figures_of(shares) for name, shares in chosen.items()}


def published(path: Path) -> dict[str, float]:
    """CK's own figures."""
    with path.open(newline="") as file:
        said = {one["metric"]: float(one["value"]) for one in csv.DictReader(file)}
    return {name: said[word] for name, word in PUBLISHED.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="CK's measurements (.csv)")
    parser.add_argument("--summary", type=Path, help="CK's published figures (.csv)")
    parser.add_argument("--json", type=Path, help="where to write the record")
    args = parser.parse_args()
    measured = read(args.file)
    cells = sum(map(len, measured.values()))
    record: dict[str, Any] = {
        "environment": environment(),
        "sha256": hashlib.sha256(args.file.read_bytes()).hexdigest(),
        "problems": len(measured),
        "cells": cells,
        "candidates": round(cells / len(measured), 1),
        "by_problem": judged(measured, "problem"),
        "by_kin": judged(measured, "kin"),
    }
    if args.summary is not None:
        record["published"] = published(args.summary)
    print(f"{record['problems']} problems, {record['candidates']} candidates of each on average")
    for held in ("by_problem", "by_kin"):
        for name, said in record[held].items():
            print(f"{held:11} {name:9}", *(f"{word} {value:.2f}" for word, value in said.items()))
    if "published" in record:
        print(
            "CK's own   ", *(f"{word} {value:.2f}" for word, value in record["published"].items())
        )
    if args.json is not None:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
