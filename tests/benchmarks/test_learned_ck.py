"""CK's measurements of convolutions, as a file of a few made-up rows."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

import learned_ck
from learned_ck import Kernel, Layer, estimate_us, folds, judged, published, read

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
    """Kernels of pipeline v4 take half as long again as the roofline says."""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(COLUMNS)
        for number, p in enumerate(LAYERS):
            for name in KERNELS:
                us = estimate_us(p, Kernel.of(name)) * (1.5 if name.endswith("v3") else 1.0)
                said = (*p.size, *p.filter, *p.stride, *p.pad)
                rows.writerow((name, number, p.n, p.c, p.k, p.groups, *said, us / 1e3, 1.0, 9))
        p = LAYERS[0]
        said = (*p.size, *p.filter, *p.stride, *p.pad)
        wrong = KERNELS[0].replace("16x", "256x")
        rows.writerow((wrong, 0, p.n, p.c, p.k, p.groups, *said, 1e-9, 1.0, 0))
    return path


def test_rows_are_read_and_wrong_kernels_are_not(file: Path):
    found = read(file)
    assert {*found} == {*LAYERS}
    assert {kernel.name for kernel in found[LAYERS[0]]} == {*KERNELS}
    assert Kernel.of(KERNELS[0]) == Kernel(KERNELS[0], (16, 64, 64), "compv3")
    assert LAYERS[0].product == (14 * 14, 64, 32 * 9)
    with pytest.raises(SystemExit, match="no tile"):
        Kernel.of("grouped_conv")


@pytest.mark.parametrize(("by", "groups"), [("problem", len(LAYERS)), ("kin", 5)])
def test_nothing_held_out_is_seen(by: str, groups: int):
    parts = folds(LAYERS, by)
    assert sorted(number for part in parts for number in part) == [*range(len(LAYERS))]
    keys: Any = [{LAYERS[n].kin if by == "kin" else LAYERS[n] for n in part} for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys)) == groups


@pytest.mark.turns(8)
def test_what_is_planted_is_learned_and_recorded(file: Path, tmp_path: Path, monkeypatch: Any):
    pytest.importorskip("lightgbm")
    said = judged(read(file), "problem")
    assert said["roofline"]["mean"] < 99.9 <= said["learned"]["mean"]
    summary = tmp_path / "summary.csv"
    summary.write_text("metric,value\nmean_efficiency,93\np10_efficiency,79\nmin_efficiency,63\n")
    assert published(summary) == {"mean": 93.0, "p10": 79.0, "least": 63.0}
    record = tmp_path / "record.json"
    words = [str(file), "--summary", str(summary), "--json", str(record)]
    monkeypatch.setattr("sys.argv", ["learned_ck.py", *words])
    learned_ck.main()
    written = json.loads(record.read_text())
    assert (written["problems"], written["candidates"]) == (len(LAYERS), len(KERNELS))
    assert written["by_problem"] == said and written["published"]["least"] == 63.0
    assert math.isfinite(written["by_kin"]["learned"]["p10"])
