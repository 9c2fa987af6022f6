"""The estimate of kernels through pointers, beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright import ops
from tilewright.arch import device
from tilewright.ops.conv import ConvProblem

FAMILY = ops.family("conv")
RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "conv_depthwise_stems_h200.json"
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
