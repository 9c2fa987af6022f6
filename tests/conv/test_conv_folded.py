"""Gradients of x whose windows lie side by side along the width: the width is folded into
channels, and nothing is moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulate import worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import FAMILY, ConvProblem, boxes, folding, turning
from tilewright.ops.conv.stated import first_strides

SM_90, H200 = arch("sm_90"), device("h200_sxm")
HALVED = ConvProblem(2, 24, 40, (12, 14), (2, 2), stride=(2, 2), direction="data")
CUBES = ConvProblem(1, 16, 24, (4, 6, 6), (2, 2, 2), stride=(2, 2, 2), direction="data")
APART = ConvProblem(2, 16, 24, (11, 12), (3, 2), stride=(2, 2), pad=(1, 0), direction="data")
"""Windows overlap along the height, and are folded along the width alone."""
CASES = (
    HALVED,
    CUBES,
    APART,
    replace(HALVED, dtype="fp32", dtype_out=""),
    replace(HALVED, epilogue="add+relu"),
    replace(HALVED, **first_strides(HALVED)),  # between layout steps
    ConvProblem(3, 32, 16, (5, 12), (1, 4), stride=(1, 4), direction="data"),
)


def test_what_is_left_has_the_pixels_of_a_window_as_channels():
    for p, c, sizes, classes in ((HALVED, 48, (12, 7), 2), (CUBES, 32, (4, 6, 3), 4)):
        found = turning.inside(p, "")
        assert (found.c, found.spatial, found.filter[-1], found.stride[-1]) == (c, sizes, 1, 1)
        assert (found.out_sizes, found.flops, found.min_bytes) == (
            p.out_sizes,
            p.flops,
            p.min_bytes,
        )
        assert len([*boxes.residues(found)]) == classes
    turned = replace(HALVED, **first_strides(HALVED))
    assert not folding.folds(turned) and turning.inside(turned, "xwy").c == 48


@pytest.mark.parametrize(
    "fields",
    [
        {"direction": "forward"},
        {"groups": 2},
        {"c": 12},
        {"pad": (0, 1)},
        {"spatial": (12, 15)},  # a pixel beyond the last window
        {"stride": (2, 1)},
        {"stride": (2, 3)},
        {"dilation": (1, 2)},
        {"epilogue": "bias"},  # a value for each channel
        {"x_strides": (12 * 14 * 32, 1, 14 * 32, 32)},  # pixels with gaps
        {"n": 0},
    ],
    ids=str,
)
def test_what_is_not_folded(fields):
    p = replace(HALVED, **fields)
    assert folding.folded(p) is p


@pytest.mark.grid(2)
@pytest.mark.parametrize("p", CASES, ids=str)
def test_it_is_right(p):
    """By a kernel of each pipeline that the interpreter runs."""
    assert folding.folds(p) or turning.inside(p, "xwy").c != p.c
    found = {}
    for c in FAMILY.default_space(p, SM_90).expand(SM_90).configs:
        if c.pipeline in ("implicit", "direct", "subpixel") and FAMILY.supports(c, p, SM_90):
            found.setdefault((c.pipeline, c.turned), c.name)
    assert found
    for name in found.values():
        check = verify.verify(Dispatcher(), p, name, seed=1)
        assert check.ok, (name, check)


@pytest.mark.parametrize("p", [HALVED, CUBES, APART], ids=str)
def test_hoppers_kernels_are_right(p):
    """In the simulation, each pipeline's."""
    p, by_pipeline = replace(p, n=18), {}
    for c in FAMILY.default_space(p, SM_90).expand(SM_90).configs:
        small = "gluon" in c.pipeline and not c.tile_n & (c.tile_n - 1) and c.tile_n <= 64
        if small and FAMILY.supports(c, p, SM_90):
            by_pipeline.setdefault(c.pipeline, c)
    assert "gluon_ws" in by_pipeline
    for c in by_pipeline.values():
        assert worst_error(c, p, replace(H200, compute_units=3), seed=2) <= 1, c.name


def test_halved_images_take_fewer_launches():
    p = ConvProblem(8, 192, 384, (56, 56), (2, 2), stride=(2, 2), direction="data")
    plan = Dispatcher(device=H200, selector="analytical").select(p)
    assert plan.config.pipeline in ("gluon_ws", "gluon_pingpong") and len(plan.launch.steps) == 1
    assert plan.config.classes == 2
