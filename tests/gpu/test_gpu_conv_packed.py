"""Images of few channels on a real GPU, packed before a kernel multiplies them, and their gradients
in blocks of pixels: problems with every kind of edge, and stems of real sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402
from packed_cases import CASES as SMALL  # noqa: E402
from packed_cases import OF_DATA, STEM, configs  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.ops.conv import ConvProblem  # noqa: E402

pytestmark = pytest.mark.gpu

LARGE = (
    replace(STEM, n=32, spatial=(224, 224)),
    ConvProblem(32, 3, 96, (224, 224), (4, 4), stride=(4, 4)),
    ConvProblem(8, 4, 320, (64, 64), (3, 3), pad=(1, 1)),
    ConvProblem(2, 3, 128, (9, 128, 128), (3, 3, 3), pad=(2, 1, 1), pad_after=(0, 1, 1)),
)
WEIGHTS = tuple(replace(p, direction="weights") for p in LARGE)
DATA = (*OF_DATA.values(), *(replace(p, direction="data") for p in LARGE))
CASES = [
    *((c, p) for p in (*SMALL.values(), *LARGE, *WEIGHTS) for c in configs(p, ARCH)),
    *((c, p) for p in DATA for c in configs(p, ARCH, "subpixel")),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_it_is_right(dispatcher, number):
    c, p = CASES[number]
    for seed in range(2):
        result = verify.verify(dispatcher, p, c.name, seed=seed, device="cuda:0")
        assert result.ok, f"{c.name} on {p}: {result}"
