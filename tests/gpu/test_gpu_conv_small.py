"""Channels-first layers of small images and odd lengths on a real GPU: rows of pixels that are no
whole 16 bytes, and depthwise filters as matrices."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402

from tilewright import ops, verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.ops.conv import ConvProblem  # noqa: E402
from tilewright.ops.conv.stated import first_strides  # noqa: E402

pytestmark = pytest.mark.gpu

FAMILY = ops.family("conv")
LAYERS = (
    # Images, channels, filters, pixels; taps and strides of depthwise ones.
    (3, 24, 21, (7, 7), 1, 1), (64, 96, 200, (7, 7), 1, 1), (33, 120, 40, (14, 14), 1, 1),
    (2, 256, 136, (2001,), 1, 1), (1, 64, 264, (3, 9, 11), 1, 1), (17, 40, 72, (28, 28), 1, 1),
    (40, 37, 37, (7, 7), 3, 1), (70, 24, 24, (14, 14), 5, 1), (19, 33, 33, (14, 14), 3, 2),
    (20, 16, 16, (11, 9), 3, 3),
)  # fmt: skip


def cases():
    this = arch(ARCH)
    for n, c, k, spatial, taps, stride in LAYERS:
        rank = len(spatial)
        for direction in ("forward", "data", "weights"):
            p = ConvProblem(
                n, c, k, spatial, (taps,) * rank, c if taps > 1 else 1, stride=(stride,) * rank,
                pad=(taps // 2,) * rank, direction=direction,
                epilogue="" if direction == "weights" else "bias+relu",
            )  # fmt: skip
            p = replace(p, **first_strides(p))
            for config in FAMILY.default_space(p, this).expand(this).configs:
                own = config.pipeline in ("askew", "planes")
                if own and FAMILY.supports(config, p, this):
                    yield config, p


CASES = [*cases()][::3]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_is_right(dispatcher, number):
    config, p = CASES[number]
    result = verify.verify(dispatcher, p, config.name, seed=number, device="cuda:0")
    assert result.ok, f"{config.name} on {p}: {result}"
