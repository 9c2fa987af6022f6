"""Products between layout steps: images cut into patches where windows lie side by side, and arrays
that are turned where no product has whole rows as they lie."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from shared_builds import build_once
from simulate import worst_error
from tilewright import Constraints, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.conv import FAMILY, ConvProblem, patches, turning
from tilewright.ops.conv.config import GEMM, TURNED
from tilewright.ops.conv.pipelines import by_gemm_space
from tilewright.ops.conv.product import product
from tilewright.ops.conv.stated import first_strides

SM_90, GFX942, H200 = arch("sm_90"), arch("gfx942"), device("h200_sxm")
DIRECTIONS = ("forward", "data", "weights")


def first(p: ConvProblem, names: str = "xwy") -> ConvProblem:
    """The same with channels outside of pixels."""
    strides = first_strides(p)
    return replace(p, **{f"{name}_strides": strides[f"{name}_strides"] for name in names})


def side_by_side(n: int, c: int, k: int, spatial, taps, **more) -> ConvProblem:
    return ConvProblem(n, c, k, spatial, taps, stride=taps, **more)


EMBEDDING = side_by_side(2, 8, 24, (20, 22), (4, 4))
SEQUENCE = side_by_side(2, 16, 24, (21,), (2,))
SEVEN = side_by_side(2, 3, 24, (21, 23), (7, 7))
ONE = ConvProblem(2, 24, 16, (13,), (1,))


def configs(p, this=SM_90):
    found = FAMILY.default_space(p, this).expand(this).configs
    return [c for c in found if c.pipeline == GEMM and c.turned]


# --- which steps --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "steps"),
    [
        (EMBEDDING, ("p",)),
        (first(EMBEDDING), ("py",)),
        (first(replace(EMBEDDING, spatial=(32, 32))), ("p",)),  # rows of y are whole
        (first(EMBEDDING, "x"), ("p",)),
        (SEVEN, ("pw",)),  # 147 elements
        (first(SEVEN), ("pwy",)),
        (replace(SEQUENCE, spatial=(20,)), ()),  # rows of x as they lie
        (first(SEQUENCE), ("py",)),
        (first(ONE), ("xy",)),
        (first(replace(ONE, spatial=(16,))), ()),
        (first(replace(ONE, k=15)), ()),  # nor has y whole rows when it is turned
        (replace(EMBEDDING, alignment=4), ()),
        (first(replace(EMBEDDING, pad=(1, 1))), ("oy",)),
        (first(ConvProblem(2, 8, 24, (20, 22), (3, 3), pad=(1, 1))), ()),
    ],
    ids=str,
)
def test_which_steps_leave_a_product_of_whole_rows(p, steps):
    for direction in DIRECTIONS:
        q = replace(p, direction=direction)
        assert by_gemm_space.turnings(q) == steps
        assert {c.turned for c in configs(q)} == {*steps}
        for how in steps:
            assert product(turning.inside(q, how)).alignment == 16


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"filter": (1, 1), "stride": (1, 1)}, "windows of 1x1 by 1x1 are no patches"),
        ({"stride": (4, 2)}, "windows of 4x4 by 4x2"),
        ({"pad": (4, 0)}, "a padded image"),
        ({"dilation": (1, 2)}, "a dilated filter"),
        ({"groups": 2}, "of groups"),
        ({"n": 0}, "no patches"),
        ({"x_strides": (2**33, 2**28, 22, 1)}, "an image spans 1879048631 elements, .* over"),
        ({"w_strides": (128, 1, 8, 32)}, "elements of a filter do not lie as a row"),
        ({"direction": "data", "epilogue": "bias"}, "a row has all taps'"),
    ],
)
def test_what_is_not_cut(fields, why):
    c = configs(EMBEDDING)[0]
    p = replace(EMBEDDING, **fields)
    assert re.search(why, patches.refusal(p))
    alike = replace(c, direction=p.direction, epilogue=p.epilogue)
    verdict = FAMILY.supports(alike, p, SM_90)
    assert verdict.rule == "turned" and re.search(why, verdict.reason)
    assert not configs(p) or "p" not in configs(p)[0].turned


def test_what_is_left_has_the_elements_of_a_filter_as_channels():
    for p, row in ((EMBEDDING, 128), (first(EMBEDDING), 128)):
        left = turning.inside(p, "p")
        assert (left.c, left.spatial, left.filter, left.stride) == (row, (5, 5), (1, 1), (1, 1))
        assert left.flops == p.flops and not left.w_strides and not left.x_strides
    assert turning.inside(SEVEN, "pw").c == 152
    refused = FAMILY.supports(replace(configs(SEVEN)[0], turned="p"), SEVEN, SM_90)
    assert refused.rule == "turned" and "147 elements are no whole 16 bytes" in refused.reason
    assert turning.inside(first(EMBEDDING), "py").y_strides == ()
    apart = replace(EMBEDDING, w_strides=(200, *EMBEDDING.strides_of("w")[1:]))
    assert turning.inside(apart, "p").strides_of("w")[0] == 200


# --- configs ------------------------------------------------------------------------------------


def test_names_say_the_steps_before_the_product():
    kernel = configs(EMBEDDING)[0]
    assert kernel.name.startswith("conv_forward_2d_turn-p_gemm_rcr_")
    for turned in TURNED:
        c = replace(kernel, turned=turned)
        assert FAMILY.parse_name(c.name) == c
        axes = {**FAMILY.axes(), "gemm": c.gemm, "turned": turned}
        assert FAMILY.make_config(axes, SM_90) == c
    assert len(TURNED) == len({*TURNED}) == 26
    with pytest.raises(BadArgument, match="turned = 'px' is not one of"):
        FAMILY.make_config({**axes, "turned": "px"}, SM_90)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_launch_cuts_before_the_product_and_puts_together_behind_it(direction):
    p = first(replace(SEVEN, direction=direction))
    c = next(c for c in configs(p) if FAMILY.supports(c, p, SM_90) and "pdl" not in c.name)
    launch, made = FAMILY.launch(c, p, H200), p.output_name
    parts = [step.part for step in launch.steps]
    assert parts[:2] == [f"turn_{name}" for name in "xwy" if name != made]
    assert parts[-1] == f"turn_{made}" and {*parts} <= {*FAMILY.sources(c, SM_90)}
    shapes = {t.name: t.shape for t in launch.temporaries}
    assert shapes["turned_x"] == (2, 3, 3, 152) and shapes["turned_w"] == (24, 1, 1, 152)
    assert shapes["turned_y"] == (2, 3, 3, 24)


def test_the_estimate_counts_the_steps_and_says_so():
    p = first(side_by_side(16, 512, 512, (599,), (2,), direction="data"))
    dispatcher = Dispatcher(device=H200, selector="analytical")
    plan = dispatcher.select(p)
    assert plan.config.turned == "py" and turning.TURNING in plan.reason
    found = FAMILY.estimate(plan.config, p, H200)
    plain = FAMILY.estimate(
        replace(plan.config, turned=""), turning.inside(p, plan.config.turned), H200
    )
    assert found.total_us == pytest.approx(plain.total_us + dict(found.terms)[turning.TURNING])
    assert turning.us(p, "py", H200) > turning.us(p, "p", H200) > 0
    assert "turn-py_gemm" in str(dispatcher.explain(p))
    ranked = FAMILY.rank(p, configs(p), H200)
    assert [*ranked] == [(c, FAMILY.estimate(c, p, H200)) for c, _ in ranked]


def test_a_constraint_forbids_them():
    p = first(side_by_side(16, 512, 512, (599,), (2,)))
    plan = Dispatcher(device=H200, constraints=Constraints(max_workspace=0)).select(p)
    assert not plan.config.turned and plan.launch.workspace_bytes == 0


# --- results ------------------------------------------------------------------------------------

CASES = (
    EMBEDDING,
    first(EMBEDDING),
    first(replace(EMBEDDING, spatial=(32, 32), dtype="fp16", dtype_out="")),
    first(SEQUENCE),
    first(replace(SEVEN, dtype="fp32", dtype_out="")),
    first(SEVEN, "xw"),
    first(side_by_side(2, 4, 24, (3, 5, 6), (1, 2, 2)), "xy"),
    first(side_by_side(1, 3, 16, (5, 4, 4), (2, 2, 2)), "w"),
    first(ONE),
)


@pytest.mark.grid(4)
@pytest.mark.parametrize("p", CASES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_right(p, direction):
    p = replace(p, direction=direction, dtype_out="")
    small = [c for c in configs(p, GFX942) if c.alignment == 16 and c.tile_m <= 64 >= c.tile_n]
    c = next(c for c in small if FAMILY.supports(c, p, GFX942))
    found = verify.verify(Dispatcher(), p, c.name, seed=1)
    assert found.ok, (c.name, found)


@pytest.mark.parametrize("epilogue", ["bias+relu", "scale"])
def test_epilogues_are_of_what_is_made(epilogue):
    p = first(replace(EMBEDDING, epilogue=epilogue))
    c = next(c for c in configs(p, GFX942) if FAMILY.supports(c, p, GFX942))
    assert verify.verify(Dispatcher(), p, c.name, seed=2).ok
    add = replace(p, epilogue="add")
    refused = FAMILY.supports(replace(c, epilogue="add"), add, GFX942)
    assert refused.rule == "turned" and "lies as the result" in refused.reason


@pytest.mark.parametrize("p", [first(SEQUENCE), SEVEN], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_hoppers_kernels_are_right_between_the_steps(p, direction):
    """In the simulation, with the steps' kernels."""
    p, three = replace(p, direction=direction), replace(H200, compute_units=3)
    found = [c for c in configs(p) if "gluon_ws" in c.gemm and not c.tile_n & (c.tile_n - 1)]
    c = next(c for c in found if FAMILY.supports(c, p, SM_90))
    assert worst_error(c, p, three, seed=1) <= 1


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["sm_90", "gfx942", "gfx1201"])
def test_it_is_built(name, store):
    this, p = arch(name), first(SEVEN)
    c = next(c for c in configs(p, this) if c.gemm_config.pipeline == "basic")
    kernels = build_once([(c, this)], store).kernels
    assert {k.part for k in kernels} == {"main", "turn_x", "turn_w", "turn_y"}
    cut = [k for k in kernels if k.part in ("turn_x", "turn_w")]
    assert len(cut) == 2 and not any(k.resources.spill_bytes for k in cut)


def test_under_numpy_patches_are_embedded():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 8, 9), np.float32)
    w = rng.standard_normal((16, 4, 4, 4), np.float32)
    cut = x[..., :8].reshape(2, 4, 2, 4, 2, 4)
    wanted = np.einsum("nchiwj,kcij->nkhw", cut.astype(float), w)
    np.testing.assert_allclose(tw.conv2d(x, w, stride=4), wanted, rtol=1e-4, atol=1e-4)
