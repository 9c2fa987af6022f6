"""Causal convolutions on a real GPU: every feature, layout and form of a state, small problems with
edges and those of state-space models."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
from causal_conv_cases import FEATURES, KINDS, PLAIN, UPDATES, strided

from tilewright import verify
from tilewright.ops.causal_conv import CausalConvProblem

pytestmark = pytest.mark.gpu

MAMBA = CausalConvProblem(4, 4096, 2048, dtype="bf16", extras="bias+silu")
SMALL = replace(PLAIN, tokens=24, extras="bias+silu")
CASES = [
    *(
        replace(p, direction=direction)
        for direction in ("forward", "backward")
        for p in (
            *(replace(PLAIN, **{"dtype_w": "", **said}) for said in FEATURES),
            *(strided(replace(SMALL, direction=direction), kind) for kind in KINDS),
            MAMBA,
            replace(MAMBA, channels=5376, tokens=777, dtype="fp16"),
        )
    ),
    *(
        replace(p, **{"direction": "update", "tokens": 1, **said})
        for said in UPDATES
        for p in (replace(PLAIN, batch=3), replace(MAMBA, batch=64))
    ),
]


@pytest.mark.parametrize("problem", CASES, ids=str)
def test_it_is_right(dispatcher, problem):
    for seed in range(2):
        found = verify.verify(dispatcher, problem, seed=seed, device="cuda:0")
        assert found.ok, (problem, found)
