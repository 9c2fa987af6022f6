"""Patches on a real GPU: in place, of images with channels outside of pixels, and with channels
innermost all residue classes of x's gradient in one launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.ops.conv import FAMILY, ConvProblem  # noqa: E402
from tilewright.ops.conv.stated import first_strides  # noqa: E402

pytestmark = pytest.mark.gpu

LAYERS = (
    ConvProblem(3, 72, 136, (30, 44), (2, 2), stride=(2, 2)),
    ConvProblem(2, 24, 40, (6, 20, 28), (2, 2, 2), stride=(2, 2, 2)),
    ConvProblem(3, 8, 96, (48, 80), (4, 4), stride=(4, 4), dtype="fp16", dtype_out="fp16"),
    ConvProblem(5, 48, 96, (208,), (8,), stride=(8,), dtype_out="fp32"),
    ConvProblem(2, 40, 72, (11, 13), (4, 6), stride=(2, 3), pad=(1, 2), epilogue="add+relu"),
)


def kernels(p: ConvProblem):
    this = arch(ARCH)
    every = FAMILY.default_space(p, this).expand(this).configs
    mine = (c for c in every if c.classes > 1 or c.pipeline == "in_place")
    return [c for c in mine if FAMILY.supports(c, p, this)]


CASES = [
    (c, q)
    for p in LAYERS
    for direction in ("forward", "data")
    for q in (
        replace(p, direction=direction),
        replace(p, direction=direction, **first_strides(replace(p, direction=direction))),
    )
    for c in kernels(q)
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_is_right(dispatcher, number):
    c, p = CASES[number]
    for seed in range(2):
        result = verify.verify(dispatcher, p, c.name, seed=seed, device="cuda:0")
        assert result.ok, f"{c.name} on {p}: {result}"
