"""Layers of few filters on a real GPU: by kernels for few channels, with x and y exchanged, and
forward by a product before the sum over taps."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.ops.conv import FAMILY, ConvProblem  # noqa: E402
from tilewright.ops.conv.config import SWAPPED, TAPS  # noqa: E402
from tilewright.ops.conv.stated import first_strides  # noqa: E402

pytestmark = pytest.mark.gpu

LAST = ConvProblem(2, 96, 3, (67, 130), (3, 3), pad=(1, 1))
LAYERS = (
    LAST,
    replace(LAST, **first_strides(LAST)),
    replace(LAST, epilogue="bias+relu"),
    replace(LAST, pad=(2, 0), pad_after=(0, 1), dilation=(2, 1)),
    ConvProblem(1, 72, 7, (6, 20, 33), (3, 3, 2), pad=(1, 0, 1)),
    ConvProblem(3, 136, 1, (1999,), (7,), pad=(3,)),
)


@pytest.mark.parametrize("p", LAYERS, ids=str)
@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_it_is_right(dispatcher, p, direction):
    epilogue = "" if direction == "weights" else p.epilogue
    p, this, found = replace(p, direction=direction, epilogue=epilogue), arch(ARCH), {}
    for c in FAMILY.default_space(p, this).expand(this).configs:
        kernel = c.gemm_config.pipeline if c.gemm else c.pipeline
        new = c.turned.startswith((SWAPPED, TAPS)) and kernel not in found
        if new and FAMILY.supports(c, p, this):
            found[kernel] = c.name
    for name in found.values():
        result = verify.verify(dispatcher, p, name, device="cuda:0")
        assert result.ok, f"{name} on {p}: {result}"
