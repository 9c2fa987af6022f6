"""The estimate of kernels through pointers, beside what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright import ops
from tilewright.arch import device
from tilewright.ops.conv import ConvProblem
from tilewright.plan import Planner

FAMILY = ops.family("conv")
H200 = device("h200_sxm")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RECORD = RESULTS / "conv_depthwise_stems_h200.json"
TUNED = json.loads((RESULTS / "conv_tuned_h200.json").read_text())["rows"]
STEMS = (
    ConvProblem(32, 3, 64, (224, 224), (7, 7), stride=(2, 2), pad=(3, 3)),
    ConvProblem(32, 3, 96, (224, 224), (4, 4), stride=(4, 4)),
)


@pytest.mark.parametrize("number", range(len(STEMS)))
def test_stems_take_what_was_measured(number):
    """And the first kernel by the estimate is not far from the fastest."""
    stem, row = STEMS[number], json.loads(RECORD.read_text())["sets"]["stems forward"][number]
    assert f"{stem.filter[0]}x{stem.filter[1]}" in row["problem"]
    measured = {FAMILY.parse_name(n): us for n, us in row["brief_us"].items() if "conv_" in n}
    assert len(measured) == 8
    ranked = FAMILY.rank(stem, measured, device("h200"))
    for config, estimate in ranked:
        assert 0.85 < measured[config] / estimate.total_us < 1.5, config.name
        assert estimate.limiter == "gathering"
    assert measured[ranked[0][0]] < 1.12 * min(measured.values())


@pytest.mark.parametrize(
    ("n", "c", "k", "size"),
    [(64, 216, 864, 56), (64, 664, 2656, 14), (64, 456, 1824, 14), (64, 1000, 496, 14),
     (16, 2904, 7392, 14), (4, 136, 72, 400)],
)  # fmt: skip
def test_rows_that_lie_askew_cost_the_copy_engine_what_was_measured(n, c, k, size):
    """Rows of these are 16 bytes off a sector. With channels that are not, the same kernel is
    faster; and kernels through pointers are chosen."""
    p = ConvProblem(n, c, k, (size, size), (1, 1))
    row = next(row for row in TUNED if row["problem"] == str(p))
    config = FAMILY.parse_name(row["kernel"])
    expected = FAMILY.estimate(config, p, H200).total_us
    assert 0.8 <= row["us"] / expected <= 1.6
    even = replace(p, c=-(-c // 64) * 64)
    assert FAMILY.estimate(config, even, H200).total_us < expected
    chosen = Planner(device=H200, selector="analytical").select(p).config
    assert "gluon" not in chosen.name
