"""Kernels in Gluon on problems of any of their features, in the simulation (`tests/simulate`)."""

from __future__ import annotations

import pytest
from parity_cases import toys

from simulate import worst_error
from tilewright.arch import device

H200 = device("h200")
COUNTS = {"gluon_ws": 3, "gluon_turned": 4, "gluon_decode": 8, "gluon_latent": 5}


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("name", "place"), [(n, place) for n in COUNTS for place in range(COUNTS[n])]
)
def test_it_is_right(name, place):
    config, problem, seed = toys(name, "sm_90", 4e3)[place]
    assert worst_error(config, problem, H200, seed) <= 1.0, f"{config.name} on {problem}"
