"""Convolutions as products on a real GPU: images summed as they lie, patches, arrays that are
turned. What is chosen is right, and so is a kernel of each kind of product."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.ops.conv import FAMILY, ConvProblem  # noqa: E402
from tilewright.ops.conv.config import GEMM  # noqa: E402
from tilewright.ops.conv.stated import first_strides  # noqa: E402

pytestmark = pytest.mark.gpu


def first(p: ConvProblem) -> ConvProblem:
    return replace(p, **first_strides(p))


def side_by_side(n: int, c: int, k: int, spatial, taps) -> ConvProblem:
    return ConvProblem(n, c, k, spatial, taps, stride=taps)


LAYERS = (
    first(ConvProblem(5, 96, 160, (600,), (1,))),
    first(ConvProblem(3, 136, 72, (28, 28), (1, 1))),
    first(ConvProblem(3, 64, 72, (199,), (1,))),
    first(side_by_side(3, 64, 72, (199,), (2,))),
    side_by_side(3, 3, 96, (64, 66), (4, 4)),
    first(side_by_side(3, 3, 96, (64, 66), (7, 7))),
    first(side_by_side(2, 24, 40, (6, 30, 32), (1, 2, 2))),
    first(ConvProblem(3, 64, 72, (203,), (8,), stride=(4,), pad=(3,))),
    first(ConvProblem(3, 64, 72, (198,), (4,), stride=(2,))),
    first(ConvProblem(2, 136, 160, (6, 8), (3, 3), pad=(1, 1))),
)


def kinds(p: ConvProblem):
    """A kernel of each kind: pipeline, how parts of a sum meet, and layout steps."""
    this, found = arch(ARCH), {}
    for c in FAMILY.default_space(p, this).expand(this).configs:
        if c.pipeline == GEMM and (c.turned or "summed" in c.gemm) and c.alignment == 16:
            kernel = c.gemm_config
            key = (kernel.pipeline, kernel.scheduler, kernel.reduction, c.turned)
            if key not in found and FAMILY.supports(c, p, this):
                found[key] = c.name
    return found.values()


@pytest.mark.parametrize("p", LAYERS, ids=str)
@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_products_are_right(dispatcher, p, direction):
    p = replace(p, direction=direction)
    for name in ("", *kinds(p)):
        result = verify.verify(dispatcher, p, name, device="cuda:0")
        assert result.ok, f"{name} on {p}: {result}"
