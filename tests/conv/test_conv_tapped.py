"""Layers of few filters, forward: a product before the sum over taps."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from shared_builds import build_once
from simulate import worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.arch.figures import DEVICE
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import FAMILY, ConvProblem, tapping, turning
from tilewright.ops.conv.config import TAPS
from tilewright.ops.conv.pipelines import by_gemm_space
from tilewright.ops.conv.stated import first_strides

SM_90, GFX942, H200 = arch("sm_90"), arch("gfx942"), device("h200_sxm")


def first(p: ConvProblem) -> ConvProblem:
    return replace(p, **first_strides(p))


LAST = ConvProblem(2, 40, 3, (9, 16), (3, 3), pad=(1, 1))
CASES = (
    LAST,
    first(LAST),
    replace(LAST, dtype="fp16", dtype_out=""),
    replace(LAST, dtype="fp32", dtype_out=""),
    replace(LAST, dtype_out="fp32"),
    replace(LAST, pad=(0, 2), pad_after=(1, 0)),
    replace(LAST, pad=(-1, 3), pad_after=(4, -2)),
    replace(LAST, stride=(2, 3), dilation=(2, 1)),
    replace(LAST, k=1, filter=(5, 7), pad=(2, 3)),
    replace(LAST, epilogue="bias+relu"),
    first(replace(LAST, epilogue="scale+bias")),
    ConvProblem(2, 16, 2, (301,), (7,), pad=(6,), pad_after=(0,)),
    ConvProblem(1, 56, 3, (4, 5, 6), (3, 2, 3), pad=(1, 0, 1)),
    first(ConvProblem(1, 40, 2, (4, 6, 4), (2, 3, 3), pad=(1, 1, 1))),
)


def configs(p, this=SM_90):
    found = FAMILY.default_space(p, this).expand(this).configs
    return [c for c in found if c.turned.startswith(TAPS) and FAMILY.supports(c, p, this)]


@pytest.mark.grid(5)
@pytest.mark.parametrize("p", CASES, ids=str)
def test_it_is_right(p):
    made = configs(p, GFX942)
    c = next(c for c in made if c.gemm_config.tile_m <= 64 >= c.gemm_config.tile_n)
    found = verify.verify(Dispatcher(), p, c.name, seed=1)
    assert found.ok, (c.name, found)


def test_hoppers_kernels_are_right_before_the_step():
    """In the simulation, with the step's kernel."""
    for p in (replace(LAST, epilogue="bias"), first(LAST)):
        found = [c for c in configs(p) if "gluon_ws" in c.gemm and c.gemm_config.tile_n <= 64]
        c = next(c for c in found if not c.gemm_config.tile_n & (c.gemm_config.tile_n - 1))
        assert worst_error(c, p, replace(H200, compute_units=3), seed=1) <= 1


def test_names_say_what_follows_the_sum():
    for p, turned in ((replace(LAST, epilogue="bias+relu"), "t"), (first(LAST), "tw")):
        c = configs(p)[0]
        assert c.turned == turned and (c.epilogue, c.dtype_out) == (p.epilogue, "bf16")
        assert f"_turn-{turned}_gemm_" in c.name and FAMILY.parse_name(c.name) == c
        assert (c.gemm_config.epilogue, c.gemm_config.dtype_c) == ("", "fp32")
        axes = {**FAMILY.axes(), "gemm": c.gemm, "turned": turned}
        assert FAMILY.make_config(axes, SM_90) == c
        assert FAMILY.interpreted(c).epilogue == p.epilogue
        launch = FAMILY.launch(c, p, H200)
        parts = [step.part for step in launch.steps]
        assert parts[-1] == "turn_y" and ("turn_w" in parts) == (turned == "tw")
        shapes = {one.name: one.shape for one in launch.temporaries}
        assert shapes["turned_y"] == (27, 288), "tap by tap, with all pixels"


def test_a_taps_products_are_whole_16_bytes():
    p = replace(LAST, spatial=(9, 15))
    assert tapping.plane(p) == 272 and tapping.elements(p) == 27 * 272
    inside = tapping.inside(p)
    assert inside.y_strides == (135, 272, 15, 1)
    assert any(c.gemm_config.layout[2] == "c" for c in configs(p))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"direction": "data"}, "only forward"),
        ({"filter": (1, 1), "pad": (0, 0)}, "no sum over taps"),
        ({"groups": 3}, "groups"),
        ({"dtype": "int8", "dtype_out": ""}, "not of int8"),
        ({"k": 15}, "135 taps together, over 128"),
        ({"n": 0}, "no elements"),
        ({"w_strides": (360, 9, 3, 1)}, "do not lie as rows"),
    ],
)
def test_what_is_not_computed_so(fields, why):
    p = replace(LAST, c=39 if "groups" in fields else 40, **fields)
    assert re.search(why, tapping.refusal(p, turned=False))
    assert "t" not in by_gemm_space.turnings(p)


def test_filters_of_more_taps_than_channels_are_no_candidates():
    """Their products would be more than x."""
    assert by_gemm_space.turnings(LAST) == ("t",)
    assert by_gemm_space.turnings(replace(LAST, k=5)) == ()


@pytest.mark.parametrize("lying", [lambda p: p, first])
def test_the_last_layer_of_a_decoder_takes_it(lying):
    p = lying(ConvProblem(1, 128, 3, (512, 512), (3, 3), pad=(1, 1), epilogue="bias"))
    plan = Dispatcher(device=H200, selector="analytical").select(p)
    assert plan.config.turned.startswith(TAPS)
    rows, y = 4 * 27 * 512 * 512, 2 * 3 * 512 * 512
    us, more = (turning.us(p, how, H200) for how in ("t", "tw"))
    assert more == pytest.approx(us + DEVICE.SECOND_US, rel=0.01)
    assert us > (rows + y) / H200.bandwidth_gbs / 1e3


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["sm_90", "gfx942", "gfx1201"])
def test_it_is_built(name, store):
    this, p = arch(name), replace(LAST, epilogue="bias")
    c = next(c for c in configs(p, this) if c.gemm_config.pipeline == "basic")
    kernels = build_once([(c, this)], store).kernels
    assert "turn_y" in {kernel.part for kernel in kernels}
