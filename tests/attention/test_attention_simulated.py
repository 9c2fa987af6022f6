"""Kernels in Gluon on problems of any of their features, in the simulation (`tests/simulate`)."""

from __future__ import annotations

import pytest
from parity_cases import of_pipeline, toy

from simulate import worst_error
from tilewright.arch import arch, device
from tilewright.ops.attention.pipelines import PIPELINES

H200 = device("h200")
CASES = [
    (config, problem, number)
    for name, count in (
        ("gluon_ws", 3),
        ("gluon_turned", 4),
        ("gluon_decode", 8),
        ("gluon_latent", 5),
    )
    for number, (config, problem) in [
        each
        for each in enumerate(of_pipeline(PIPELINES[name], arch("sm_90"), 60))
        if toy(each[1][1], 4e3)
    ][:count]
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_is_right(number):
    config, problem, seed = CASES[number]
    assert worst_error(config, problem, H200, seed) <= 1.0, f"{config.name} on {problem}"
