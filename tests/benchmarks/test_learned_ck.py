"""CK's measurements of convolutions, as a file of a few made-up rows."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import learned_ck
from learned_ck import (
    Kernel,
    Layer,
    carried,
    estimate_us,
    folds,
    judged,
    published,
    read,
    row,
    stand_in,
)  # fmt: skip

COLUMNS = [
    "kernel", "problem_idx", "N", "C", "K", "G", "Hi", "Wi", "Y", "X", "stride_h", "stride_w",
    "pad_h", "pad_w", "latency_ms", "tflops", "non_zero",
]  # fmt: skip
KERNELS = [
    f"grouped_conv_forward_bf16_2d_{m}x64x64_comp{v}"
    for m in (16, 32, 64, 128)
    for v in ("v3", "v4")
]
LAYERS = [
    Layer(n, c, 2 * c, 1, (size, size), (3, 3), (1, 1), (1, 1))
    for n in (1, 4)
    for c in (32, 64, 128, 256, 512)
    for size in (14, 28, 56)
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written_rows(tmp_path / "rows.csv", LAYERS)


def written_rows(path: Path, layers: Sequence[Layer], names: Sequence[str] = KERNELS) -> Path:
    """One pipeline takes half as long again as the roofline says: which, the channels decide."""
    with path.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(COLUMNS)
        for number, p in enumerate(layers):
            for name in names:
                slow = "v3" if p.c > 64 else "v4"
                us = estimate_us(p, Kernel.of(name)) * (1.5 if name.endswith(slow) else 1.0)
                said = (*p.size, *p.filter, *p.stride, *p.pad)
                rows.writerow((name, number, p.n, p.c, p.k, p.groups, *said, us / 1e3, 1.0, 9))
        p = layers[0]
        said = (*p.size, *p.filter, *p.stride, *p.pad)
        wrong = KERNELS[0].replace("16x", "256x")
        rows.writerow((wrong, 0, p.n, p.c, p.k, p.groups, *said, 1e-9, 1.0, 0))
    return path


def test_rows_are_read_and_wrong_kernels_are_not(file: Path):
    found = read(file)
    assert [layer for layer, _ in found] == LAYERS
    assert {kernel.name for kernel in found[0][1]} == {*KERNELS}
    assert Kernel.of(KERNELS[0]) == Kernel(KERNELS[0], (16, 64, 64), "compv3")
    assert LAYERS[0].product == (14 * 14, 64, 32 * 9)
    with pytest.raises(SystemExit, match="no tile"):
        Kernel.of("grouped_conv")


def test_a_layer_measured_twice_is_two_problems(file: Path):
    rows = file.read_text().splitlines()
    first = [row for row in rows[1:] if row.split(",")[1] == "0"]
    again = [row.replace(",0,", f",{len(LAYERS)},", 1) for row in first]
    file.write_text("\n".join([*rows, *again]) + "\n")
    found = read(file)
    assert [layer for layer, _ in found] == [*LAYERS, LAYERS[0]]
    (part,) = [part for part in folds([layer for layer, _ in found], "problem") if 0 in part]
    assert len(LAYERS) in part
    with file.open("a") as out:
        out.write(again[0].replace(",1,32,", ",2,32,", 1) + "\n")
    with pytest.raises(SystemExit, match="two layers"):
        read(file)


@pytest.mark.parametrize(("by", "groups"), [("problem", len(LAYERS)), ("kin", 5)])
def test_nothing_held_out_is_seen(by: str, groups: int):
    parts = folds(LAYERS, by)
    assert sorted(number for part in parts for number in part) == [*range(len(LAYERS))]
    keys: Any = [{LAYERS[n].kin if by == "kin" else LAYERS[n] for n in part} for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys)) == groups


def test_a_pipeline_that_was_not_seen_is_one_with_as_many_buffers():
    seen = ["compv3", "compv4"]
    assert [stand_in(f"compv{n}", seen) for n in (3, 4, 5)] == ["compv3", "compv4", "compv3"]
    fifth = KERNELS[0].replace("compv3", "compv5")
    rows = [row(LAYERS[0], Kernel.of(name), seen) for name in (fifth, *KERNELS[:2])]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.turns(4)
def test_what_is_learned_elsewhere_is_carried_over(tmp_path: Path):
    pytest.importorskip("lightgbm")
    others = [replace(layer, n=layer.n + 1) for layer in LAYERS]
    names = [*KERNELS, *(name.replace("compv3", "compv5") for name in KERNELS[::2])]
    problems = read(written_rows(tmp_path / "asked.csv", LAYERS, names))
    said = carried(read(written_rows(tmp_path / "learned.csv", others)), problems)
    assert said["learned"]["mean"] > max(said[name]["mean"] for name in ("roofline", "one_kernel"))
    with pytest.raises(SystemExit, match="30 layers are learned from and judged on"):
        carried(problems, problems)


@pytest.mark.turns(16)
def test_what_is_planted_is_learned_and_recorded(file: Path, tmp_path: Path, monkeypatch: Any):
    pytest.importorskip("lightgbm")
    said = judged(read(file), "problem")
    assert max(said[name]["mean"] for name in ("roofline", "one_kernel")) < 99.9
    assert said["learned"]["mean"] >= 99.9
    summary = tmp_path / "summary.csv"
    figures = {"mean": 93.0, "median": 97.0, "p10": 79.0, "least": 63.0, "top_1": 21.0}
    figures["top_5"] = 70.0
    words = [f"{learned_ck.PUBLISHED[name]},{value}" for name, value in figures.items()]
    summary.write_text("\n".join(["metric,value", *words]) + "\n")
    assert published(summary) == figures
    record = tmp_path / "record.json"
    others = [replace(layer, n=layer.n + 1) for layer in LAYERS]
    train = written_rows(tmp_path / "train.csv", others)
    words = [str(file), "--summary", str(summary), "--source", "made up", "--json", str(record)]
    words += ["--train", str(train)]
    monkeypatch.setattr("sys.argv", ["learned_ck.py", *words])
    learned_ck.main()
    written = json.loads(record.read_text())
    assert (written["problems"], written["candidates"]) == (len(LAYERS), len(KERNELS))
    assert written["by_problem"] == said and written["published"]["least"] == 63.0
    assert {*written["sha256"]} == {"rows.csv", "train.csv", "summary.csv"}
    assert written["source"] == "made up" and written["as_ck"]["learned"]["mean"] > 99
    assert written["learned_from"] == {
        "problems": len(LAYERS), "layers": len(LAYERS), "cells": len(LAYERS) * len(KERNELS),
        "kin_judged": len(LAYERS),
    }  # fmt: skip
    assert math.isfinite(written["by_kin"]["learned"]["p10"])
    assert written["few"]["learned"]["mean"] <= said["learned"]["mean"]
