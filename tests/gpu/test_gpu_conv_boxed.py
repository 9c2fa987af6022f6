"""Convolutions by boxes of pixels on a real GPU: problems with every kind of edge, real sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from boxed_cases import CASES as FORWARD_AND_DATA  # noqa: E402
from boxed_cases import (  # noqa: E402
    DENSE,
    ODD_TILES,
    WEIGHTS,
    configs,
    kinds,
    odd_tile,
    weights_tile,
)
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.ops.conv import ConvProblem  # noqa: E402
from tilewright.ops.conv.pipelines import PIPELINES  # noqa: E402
from tilewright.ops.conv.pipelines.boxed import shape  # noqa: E402

RECORD = PIPELINES["gluon_ws"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not RECORD.runs_on(arch(ARCH)), reason=f"{ARCH} lacks {RECORD.needs}"),
]

LARGE = [
    ConvProblem(n, c, k, (size, size), (3, 3), pad=(1, 1), direction=direction)
    for n, c, size, k in ((8, 640, 32, 640), (32, 256, 56, 256))
    for direction in ("forward", "data", "weights")
]
FITTED = [
    replace(p, n=n, c=c, k=c, spatial=(size, size))
    for n, c, size in ((8, 320, 64), (64, 64, 56), (32, 192, 28))
    for p in LARGE[:3]
]
"""For tiles that fit these channels."""
FOLDED = [
    ConvProblem(9, 96, 72, (30, 46), (2, 2), stride=(2, 2), direction="data"),
    ConvProblem(2, 64, 136, (6, 20, 28), (2, 2, 2), stride=(2, 2, 2), direction="data"),
]
"""Whose widths are folded."""
CASES = [
    *((c, p) for p in FOLDED for c in kinds(p)),
    *((c, p) for p in (*FORWARD_AND_DATA.values(), *WEIGHTS.values()) for c in kinds(p)),
    *(odd_tile(columns, direction) for columns in ODD_TILES for direction in ("forward", "data")),
    *(weights_tile(seed) for seed in range(24)),
    *((c, p) for p in LARGE for c in configs(p)),
    *((c, p) for p in FITTED for c in configs(p) if c.spread or shape.odd(c)),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, seed=number, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


def test_gradients_of_weights_repeat_bit_for_bit(dispatcher):
    problem = replace(DENSE, direction="weights")
    kernel = next(c for c in configs(problem) if c.scheduler == "split")
    x, y = (torch.randn(problem.shape_of(name), device="cuda").bfloat16() for name in "xy")
    x, y = (one.to(memory_format=torch.channels_last) for one in (x, y))
    made = [
        dispatcher.run_named(
            kernel.name, x, y, direction="weights", filter=problem.filter, pad=problem.pad
        )
        for _ in range(3)
    ]
    assert all(torch.equal(made[0], other) for other in made[1:])
