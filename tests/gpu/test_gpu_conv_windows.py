"""Windows and many parts on a real GPU: windows that overlap are cut out of channels-first images
and added up, and gradients of weights are added up by the kernels for many parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.ops.conv import FAMILY, ConvProblem  # noqa: E402
from tilewright.ops.conv.config import GEMM, WINDOWS  # noqa: E402
from tilewright.ops.conv.stated import first_strides  # noqa: E402

pytestmark = pytest.mark.gpu

WINDOWED = (
    ConvProblem(2, 40, 72, (1204,), (8,), stride=(4,)),
    ConvProblem(3, 24, 64, (2000,), (2,), pad=(32,), dilation=(64,)),
    ConvProblem(2, 12, 24, (243,), (10,), stride=(5,), pad=(3,), pad_after=(6,)),
    ConvProblem(2, 64, 96, (19, 23), (3, 3), stride=(2, 2), pad=(1, 1)),
    ConvProblem(2, 100, 128, (136,), (7,), pad=(3,), dtype="fp16", dtype_out="fp16"),
)
MANY = (
    ConvProblem(4, 3, 40, (120, 120), (3, 3), stride=(2, 2), pad=(1, 1), direction="weights"),
    ConvProblem(8, 48, 48, (40, 40), (3, 3), groups=48, pad=(1, 1), direction="weights"),
    ConvProblem(8, 64, 64, (32, 32), (1, 1), direction="weights"),
    ConvProblem(
        8, 64, 64, (1600,), (1,), direction="weights", x_strides=(102400, 1600, 1),
        y_strides=(102400, 1600, 1),
    ),
)  # fmt: skip


def fitting(p: ConvProblem) -> list:
    this = arch(ARCH)
    every = FAMILY.default_space(p, this).expand(this).configs
    return [c for c in every if FAMILY.supports(c, p, this)]


def windows(p: ConvProblem) -> list:
    """A kernel of each of GEMM's pipelines behind the cut."""
    found = {
        c.gemm_config.pipeline: c
        for c in fitting(p)
        if c.pipeline == GEMM and c.turned.startswith(WINDOWS)
    }
    return [*found.values()]


def summed(p: ConvProblem) -> list:
    """A kernel of each pipeline whose parts a second one adds up; of GEMM's, of the most parts."""
    found = {c.pipeline: c for c in fitting(p) if c.pipeline != GEMM and c.two_stage}
    products = [c.gemm_config for c in fitting(p) if c.pipeline == GEMM and not c.turned]
    most = max((kernel.split_k for kernel in products), default=0)
    of_gemm = (c for c in fitting(p) if c.pipeline == GEMM and c.gemm_config.split_k == most > 32)
    return [*found.values(), *islice(of_gemm, 2)]


CASES = [
    (c, q)
    for p in WINDOWED
    for direction in ("forward", "data", "weights")
    for q in [replace(p, direction=direction, **first_strides(replace(p, direction=direction)))]
    for c in windows(q)
] + [(c, p) for p in MANY for c in summed(p)]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_is_right(dispatcher, number):
    c, p = CASES[number]
    for seed in range(2):
        result = verify.verify(dispatcher, p, c.name, seed=seed, device="cuda:0")
        assert result.ok, f"{c.name} on {p}: {result}"
