"""Products of windows that overlap or lie in padding: cut out before the product, and added up
behind it for gradients of x."""

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
from tilewright.ops.conv import FAMILY, ConvProblem, patches, turning
from tilewright.ops.conv.config import GEMM, WINDOWS, of_gemm
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.pipelines import by_gemm_space
from tilewright.ops.conv.product import product
from tilewright.ops.conv.stated import first_strides
from tilewright.ops.gemm import FAMILY as PRODUCTS
from tilewright.ops.nouns import Scalar

SM_90, GFX942, H200 = arch("sm_90"), arch("gfx942"), device("h200_sxm")
DIRECTIONS = ("forward", "data", "weights")


def first(p: ConvProblem, names: str = "xwy") -> ConvProblem:
    """The same with channels outside of pixels."""
    strides = first_strides(p)
    return replace(p, **{f"{name}_strides": strides[f"{name}_strides"] for name in names})


CODEC = first(ConvProblem(2, 12, 24, (43,), (8,), stride=(4,)))
PADDED = first(ConvProblem(2, 12, 24, (41,), (10,), stride=(5,), pad=(3,), pad_after=(6,)))
IMAGE = first(ConvProblem(2, 16, 24, (9, 11), (3, 3), stride=(2, 2), pad=(1, 1)))
DEEP = first(ConvProblem(1, 64, 80, (4, 5), (3, 3), pad=(1, 1)))
"""Of few pixels: its filters have most elements."""
STEM = ConvProblem(2, 3, 32, (9, 16), (3, 3), pad=(1, 1), direction="data")


def configs(p, this=SM_90):
    found = FAMILY.default_space(p, this).expand(this).configs
    return [c for c in found if c.pipeline == GEMM and c.turned.startswith(WINDOWS)]


# --- when ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "steps"),
    [
        (CODEC, ("oy",)),
        (replace(CODEC, spatial=(36,), x_strides=(432, 36, 1), y_strides=(192, 8, 1)), ("o",)),
        (first(replace(CODEC, c=3, k=8)), ("oy",)),
        (first(replace(CODEC, c=3, k=8, filter=(5,))), ("owy",)),  # 15 elements
        (IMAGE, ("oy",)),
        (DEEP, ("oy",)),
        (first(replace(DEEP, n=16, spatial=(40, 40))), ()),  # windows have nine times as much as x
        (ConvProblem(2, 12, 24, (43,), (8,), stride=(4,)), ()),  # nothing would be turned
        (first(replace(IMAGE, groups=2)), ()),
    ],
    ids=str,
)
def test_which_layers_are_cut_into_windows(p, steps):
    for direction in DIRECTIONS:
        q = replace(p, direction=direction)
        assert by_gemm_space.turnings(q) == steps
        assert {c.turned for c in configs(q)} == {*steps}


def test_gradients_of_few_channels_are_added_up_wherever_they_lie():
    """Where y has more channels than a window has elements."""
    for p in (STEM, first(STEM)):
        assert by_gemm_space.turnings(p) == ("ow",)
        assert (
            by_gemm_space.turnings(replace(p, k=26, x_strides=(), w_strides=(), y_strides=())) == ()
        )
    assert by_gemm_space.turnings(replace(STEM, direction="forward")) == ()
    large = replace(STEM, n=4, k=128, spatial=(256, 256))
    plan = Dispatcher(device=H200, selector="analytical").select(first(large))
    assert plan.config.turned == "ow", "other kernels would have y turned"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"filter": (1,), "pad": (0,), "pad_after": (0,)}, "windows of one tap"),
        ({"filter": (5,), "pad": (0,), "pad_after": (0,)}, "cut as patches"),
        ({"groups": 2}, "of groups"),
        ({"n": 0}, "no patches"),
        ({"direction": "data", "dilation": (2,)}, "a dilated filter are not put together"),
        ({"direction": "data", "epilogue": "relu"}, "where no epilogue"),
        ({"direction": "data", "dtype_out": "fp32"}, "or dtype follows"),
        ({"n": 2**24, "spatial": (320,)}, "there are 1073741824 windows"),
    ],
)
def test_what_is_not_cut(fields, why):
    alike = {"direction": fields.get("direction", "forward")}
    c = configs(replace(PADDED, **alike))[0]
    p = first(replace(PADDED, x_strides=(), w_strides=(), y_strides=(), **fields))
    assert re.search(why, patches.windows_refusal(p))
    like = replace(c, epilogue=p.epilogue, dtype_out=p.dtype_out)
    verdict = FAMILY.supports(like, p, SM_90)
    assert not verdict and re.search(why, verdict.reason)


def test_names_say_that_windows_overlap():
    c = configs(replace(CODEC, direction="data"))[0]
    assert c.name.startswith("conv_data_1d_turn-oy_gemm_rrc_bf16_bf16_fp32_fp32_")
    assert FAMILY.parse_name(c.name) == c
    assert (c.dtype, c.dtype_out) == ("bf16", "bf16"), "what is added up is rounded once"


def test_the_estimate_counts_the_windows():
    """They have twice as many elements as x, or four times the bytes where they are added up."""
    p = first(ConvProblem(8, 512, 1024, (4000,), (8,), stride=(4,)))
    x, rows = 8 * 512 * 4000, 8 * 999 * 4096
    moved = {"forward": 2 * x + 2 * rows, "data": 2 * x + 4 * rows}
    shares = {"forward": CONV.WINDOWS_SHARE, "data": CONV.ADDED_SHARE}
    us = {d: turning.us(replace(p, direction=d), "o", H200) - DEVICE.SECOND_US for d in moved}
    wanted = {d: moved[d] / shares[d] for d in moved}
    found = us["data"] / us["forward"]
    assert found == pytest.approx(wanted["data"] / wanted["forward"], rel=0.02)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_images_may_lie_far_apart(direction):
    p = replace(CODEC, direction=direction, x_strides=(2**33, 43, 1))
    c = configs(p)[0]
    steps = {step.part: step for step in FAMILY.launch(c, p, H200).steps}
    given = [one for one in steps["turn_x"].arguments if isinstance(one, Scalar)]
    assert (2**33, "i64") in {(one.value, one.type) for one in given}
    assert all(-(2**31) <= one.value < 2**31 for one in given if one.type == "i32")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layers_of_audio_codecs_take_them(direction):
    p = first(ConvProblem(8, 1024, 2048, (136,), (16,), stride=(8,), direction=direction))
    plan = Dispatcher(device=H200, selector="analytical").select(p)
    assert plan.config.turned.startswith(WINDOWS) and turning.TURNING in plan.reason


# --- results ------------------------------------------------------------------------------------

DILATED = first(ConvProblem(2, 8, 16, (30,), (4,), stride=(2,), dilation=(3,), pad=(4,)))
NEGATIVE = first(ConvProblem(1, 8, 16, (40,), (8,), stride=(4,), pad=(-3,), pad_after=(2,)))
CASES = (
    CODEC,
    replace(CODEC, dtype="fp16", dtype_out=""),
    replace(CODEC, dtype="fp32", dtype_out=""),
    PADDED,
    NEGATIVE,
    first(replace(CODEC, c=3, k=8, filter=(5,))),
    first(replace(CODEC, pad=(2,), filter=(4,))),  # a padded patch
    first(
        ConvProblem(2, 12, 24, (29,), (5,), stride=(4,)), "xy"
    ),  # filters with channels innermost
    IMAGE,
    DEEP,
    first(ConvProblem(1, 4, 16, (5, 6, 7), (3, 2, 3), stride=(2, 2, 1), pad=(1, 0, 1))),
)


@pytest.mark.grid(5)
@pytest.mark.parametrize("p", (*CASES, DILATED), ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_right(p, direction):
    if p is DILATED and direction == "data":
        pytest.skip("refused")
    p = replace(p, direction=direction, dtype_out="")
    how = WINDOWS + "w" * (patches.row(p, True) != patches.columns(p)) + "y"
    c = _smallest(p, how)
    assert verify.verify(Dispatcher(), p, c.name, seed=1).ok, c.name


def _smallest(p, how):
    """A small kernel of GEMM's behind these steps, whether they are worth it or not."""
    space = PRODUCTS.default_space(product(turning.inside(p, how)), GFX942)
    made = (
        of_gemm(p.direction, len(p.spatial), kernel, how)
        for kernel in space.expand(GFX942).configs
        if kernel.tile_m <= 64 >= kernel.tile_n
    )
    return next(c for c in made if FAMILY.supports(c, p, GFX942))


@pytest.mark.grid(1)
@pytest.mark.parametrize("p", [STEM, first(STEM), replace(STEM, stride=(2, 1))], ids=str)
def test_gradients_of_few_channels_are_right(p):
    c = _smallest(p, by_gemm_space.turnings(p)[0])
    assert verify.verify(Dispatcher(), p, c.name, seed=2).ok


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_several_images_and_lines_are_walked(direction):
    """More blocks than workgroups, so that each walks on to other lines and images."""
    p = first(ConvProblem(3, 8, 8, (5, 67), (2, 4), stride=(1, 2), pad=(1, 1), direction=direction))
    c = _smallest(p, "oy")
    assert worst_error(c, p, replace(H200, arch="gfx942", compute_units=1), seed=3) <= 1


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_hoppers_kernels_are_right_between_the_steps(direction):
    """In the simulation, with the steps' kernels."""
    p, three = replace(PADDED, direction=direction), replace(H200, compute_units=3)
    found = [c for c in configs(p) if "gluon_ws" in c.gemm and not c.tile_n & (c.tile_n - 1)]
    c = next(c for c in found if FAMILY.supports(c, p, SM_90))
    assert worst_error(c, p, three, seed=1) <= 1


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["sm_90", "gfx942", "gfx1201"])
@pytest.mark.parametrize("direction", ["forward", "data"])
def test_it_is_built(name, direction, store):
    this = arch(name)
    p = replace(CODEC, direction=direction)
    c = next(c for c in configs(p, this) if c.gemm_config.pipeline == "basic")
    kernels = build_once([(c, this)], store).kernels
    assert {"turn_x", "turn_y"} <= {kernel.part for kernel in kernels}
