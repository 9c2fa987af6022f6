"""Pipelines that copy boxes of pixels: which pixels a box meets, what the rules refuse, the kernel
in the simulation, faults put into it, and what it is built to."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import sim_language as language
import sim_names
from boxed_cases import (
    BOXED,
    CASES,
    DENSE,
    FAMILY,
    ODD,
    SM_90,
    WEIGHTS,
    built_by_name,
    check_built,
    configs,
    kinds,
)
from conv_problems import problems
from hypothesis import given, settings
from sim_values import Fault
from test_conv_geometry import dims

import selection
from simulate import worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import ConvProblem, boxes, pipelines
from tilewright.ops.conv.pipelines.boxed import parts
from tilewright.ops.conv.pipelines.gluon_ws import GLUON_WS
from tilewright.ops.nouns import Descriptor

TWO = replace(device("h200"), compute_units=2)
"""So few that each has several tiles."""

# --- which pixels ------------------------------------------------------------------------------


@given(dims())
def test_a_walk_meets_the_pixels_that_taps_join(dim):
    """Forward, and in each residue class of the gradient of the data."""
    joined = {
        (q, tap, h)
        for q in range(dim.out)
        for tap in range(dim.filter)
        if 0 <= (h := q * dim.stride - dim.pad + tap * dim.dilation) < dim.size
    }
    forward = boxes.walk(dim, "forward")
    assert joined == {
        (q, tap, h) for q, tap, h in _met(forward, range(forward.size)) if 0 <= h < dim.size
    }
    backward = set()
    for residue in range(min(dim.stride, dim.size)):
        walk = boxes.walk(dim, "data", residue)
        pixels = range(residue, dim.size, dim.stride)
        assert len(pixels) == walk.size
        backward |= {(q, tap, h) for h, tap, q in _met(walk, pixels) if 0 <= q < dim.out}
    assert joined == backward


def _met(walk, pixels):
    """(pixel of the result, tap, pixel of the source) of a walk."""
    return [
        (pixel, walk.first + j * walk.apart, i * walk.by_pixel + walk.origin + j * walk.by_tap)
        for i, pixel in enumerate(pixels)
        for j in range(walk.count)
    ]


@given(problems())
def test_boxes_have_their_rows_and_the_best_comes_first(problem):
    if any(0 in problem.shape_of(name) for name in "xwy"):
        return
    for rows in (32, 64, 128):
        found = boxes.best(problem, rows, 8)
        of = boxes.walks(problem, (0, 0, 0))
        if problem.direction == "weights":
            assert all(boxes.exact(boxes.in_three(box), problem) for box in found)
        covered = [math.prod(boxes.counts(boxes.in_three(box), problem, of)) for box in found]
        assert covered == sorted(covered) and len({*found}) == len(found)
        assert all(math.prod(boxes.sizes(box)) == rows for box in found)


def test_a_box_fits_the_image():
    assert boxes.best(replace(DENSE, spatial=(56, 56)), 64, 1) == ["1x8x8"]
    assert boxes.best(replace(DENSE, spatial=(16, 16)), 128, 1) == ["1x8x16"]
    assert boxes.best(replace(DENSE, spatial=(4, 4)), 64, 1) == ["4x4x4"]


@pytest.mark.turns(32)
@settings(max_examples=150)
@given(problems())
def test_tensor_maps_are_ones_that_the_driver_takes(problem):
    for c in configs(replace(problem, alignment=16)):
        for step in FAMILY.launch(c, problem, TWO).steps:
            for view in (one for one in step.arguments if isinstance(one, Descriptor)):
                size = DTYPES[view.dtype].bytes
                steps = view.element_strides or (1,) * len(view.shape)
                assert all(n >= 1 for n in view.shape) and view.strides[-1] == 1
                assert all(s > 0 and s * size % 16 == 0 for s in view.strides[:-1])
                assert view.offset * size % 16 == 0
                assert all(1 <= n <= 8 for n in steps) and steps[-1] == 1
                assert all(n * s <= 256 for n, s in zip(view.block, steps, strict=True))


# --- rules -------------------------------------------------------------------------------------


def config(**fields):
    said = {
        "pipeline": "gluon_ws", "scheduler": "persistent", "tile_m": 128, "tile_n": 128,
        "tile_k": 64, "num_warps": 8, "num_stages": 4, "box": "1x4x16",
    }  # fmt: skip
    return FAMILY.make_config({**FAMILY.axes(), **said, **fields}, SM_90)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"direction": "weights", "pipeline": "gluon_pingpong"}, "no gradients of weights"),
        ({"direction": "weights", "tile_k": 32}, "box 1x4x16 has 64 pixels, but tile_k = 32"),
        ({"direction": "weights", "dtype": "fp32"}, "not fp32 in direction weights"),
        ({"dtype": "fp32"}, "multiplies 16-bit types, and forward 8-bit types, not fp32"),
        ({"scheduler": "tile"}, "scheduler persistent, not tile"),
        ({"merged": True}, "cannot merge taps"),
        ({"alignment": 8}, "aligned to 16 bytes, not 8 and 16"),
        ({"tile_n": 16}, "tile 16x64 is under 32x16"),
        ({"num_warps": 16}, "multiplies with 4 or 8 or 12 warps, not 16"),
        ({"pipeline": "gluon_pingpong", "num_warps": 4}, "with 8 warps, not 4"),
        ({"box": ""}, "box '' is not of images and 2 dimensions"),
        ({"box": "1x64"}, "box '1x64' is not of images and 2 dimensions"),
        ({"box": "1x4x12"}, "box 1x4x12 is not of powers of two"),
        ({"box": "1x4x8"}, "box 1x4x8 has 32 pixels, but a group's rows = 64"),
        ({"tile_m": 512}, "tile_m = 512 is not 64 or 128 rows for each of 2 groups"),
        ({"pipeline": "implicit"}, "box 1x4x16 is for pipelines that copy boxes, not for implicit"),
        ({"pipeline": "implicit", "box": ""}, "scheduler persistent is for pipelines that copy"),
    ],
)
def test_what_cannot_be_built(fields, why):
    verdict = FAMILY.judge(config(**fields), SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason


def test_an_architecture_needs_the_copy_engine_and_wgmma():
    verdict = FAMILY.judge(config(), arch("sm_80"))
    assert "sm_80 has no tma, which pipeline gluon_ws needs" in verdict.reason
    assert "has no wgmma" in FAMILY.judge(config(), arch("sm_100")).reason
    assert not [c for c in configs_of_space("gfx942") if c.box]


def configs_of_space(name: str):
    return FAMILY.default_space(DENSE, arch(name)).expand(arch(name)).configs


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (replace(DENSE, groups=2), "not grouped is for one group, not for 2 groups"),
        (replace(DENSE, n=0), "x has no elements"),
        (replace(DENSE, stride=(9, 1)), "a stride of 9 is over 8"),
        (replace(DENSE, y_strides=(0, 1, 8192, 256)), "y repeats elements by a stride of 0"),
        (
            replace(DENSE, direction="weights", spatial=(32, 36)),
            "do not divide 8 images of (32, 36)",
        ),
        (
            replace(DENSE, direction="weights", w_strides=(1408, 1, 512, 128)),
            "taps of w do not lie at one distance",
        ),
    ],
)
def test_what_cannot_be_served(problem, why):
    """The weights' gradient needs exact boxes: beside a pixel that y lacks, x may be infinite."""
    mine = config(direction=problem.direction)
    verdict = FAMILY.supports(mine, problem, SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason
    plain = replace(DENSE, direction=problem.direction)
    assert FAMILY.supports(mine, plain, SM_90)


def test_a_box_may_not_reach_too_far():
    line = ConvProblem(2, 64, 64, (4096,), (4,), stride=(4,))
    wide = config(spatial_dims=1, box="1x128", tile_m=256, tile_n=64)
    assert "box 1x128 reaches over 512 pixels" in FAMILY.supports(wide, line, SM_90).reason
    assert {c.box for c in configs(replace(line, c=128))} <= {"1x64", "2x64", "2x32"}


def test_channels_must_be_aligned():
    for problem in (replace(DENSE, c=132), replace(DENSE, k=250), replace(DENSE, alignment=8)):
        assert not configs(problem)
    assert FAMILY.supports(config(), replace(DENSE, c=132), SM_90).rule == "vector_width"


def test_names_say_the_box():
    for c in configs(DENSE, tuned=True):
        assert f"_b{c.box}" in c.name and FAMILY.parse_name(c.name) == c


def test_dense_layers_prefer_boxes():
    """Not for few pixels, whose box would be empty mostly."""
    h200 = device("h200")
    for direction in ("forward", "data", "weights"):
        problem = replace(DENSE, direction=direction)
        found = FAMILY.default_space(problem, SM_90).expand(SM_90).configs
        best, _ = FAMILY.rank(problem, found, h200)[0]
        assert best.pipeline in BOXED


# --- the kernel --------------------------------------------------------------------------------


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", CASES)
def test_it_is_right(case):
    problem = CASES[case]
    assert len(kinds(problem)) >= 2
    for seed, c in enumerate(kinds(problem)):
        assert worst_error(c, problem, TWO, seed) <= 1, c.name


@pytest.mark.turns(48)
@pytest.mark.parametrize("case", WEIGHTS)
def test_gradients_of_weights_are_right(case):
    """In one part, and in as many as 50 compute units would have. Shared otherwise: see
    test_conv_weights."""
    problem, many = WEIGHTS[case], replace(TWO, compute_units=50)
    mine = [c for c in kinds(problem) if c.scheduler != "stream_k"]
    assert {c.scheduler for c in mine} == {"persistent", "split"}
    for seed, c in enumerate(mine):
        assert worst_error(c, problem, TWO, seed) <= 1, c.name
        if c.scheduler == "split":
            assert worst_error(c, problem, many, seed) <= 1, c.name


def test_parts_fill_the_device():
    """Where weights are few; not where each part would be many bytes."""
    few = ConvProblem(64, 64, 64, (56, 56), (3, 3), pad=(1, 1), direction="weights")
    many = replace(few, c=1024, k=1024, n=8, spatial=(16, 16))
    for problem, least, most in ((few, 8, 32), (many, 1, 1)):
        c = next(c for c in configs(problem) if c.scheduler == "split")
        assert least <= parts.splits(c, problem, device("h200")) <= most


@pytest.mark.parametrize("seed", range(4))
def test_tiles_follow_one_another(seed):
    """One workgroup has all tiles, in rings of two slots."""
    one = replace(TWO, compute_units=1)
    for pipeline in BOXED:
        small = next(c for c in configs(ODD) if c.pipeline == pipeline and c.num_warps == 8)
        assert worst_error(replace(small, num_stages=2), ODD, one, seed) <= 1


@pytest.fixture
def faulty(monkeypatch):
    """Functions take their names anew, so that a fault can replace one."""
    monkeypatch.setattr(sim_names, "known_functions", {})
    return monkeypatch


def first(p: ConvProblem, pipeline: str = "gluon_ws"):
    return next(c for c in configs(p) if c.pipeline == pipeline and c.num_warps == 8)


def test_a_tap_that_is_one_pixel_off_is_found(faulty):
    real = boxes.walks

    def walks(*arguments):
        return tuple(replace(walk, origin=walk.origin + 1) for walk in real(*arguments))

    faulty.setattr(boxes, "walks", walks)
    assert not worst_error(first(ODD), ODD, TWO) <= 1


def test_a_box_that_is_left_out_is_found(faulty):
    problem = WEIGHTS["2-D"]
    c = first(problem)
    real = GLUON_WS.steps
    fewer = replace(GLUON_WS, steps=lambda *arguments: real(*arguments) - 1)
    faulty.setitem(pipelines.PIPELINES, "gluon_ws", fewer)
    assert not worst_error(c, problem, TWO) <= 1


def test_a_class_that_is_left_out_is_found(faulty):
    problem = CASES["classes"]
    c = first(problem)
    every = [*boxes.residues(problem)]
    faulty.setattr(boxes, "residues", lambda p: every[:-1])
    assert not worst_error(c, problem, TWO) <= 1


def test_a_group_that_does_not_wait_for_its_turn_is_found(faulty):
    """It takes a slot's earlier phase for its own."""
    real = dict(language.BARRIER)
    barriers = []

    def init(barrier, count):
        barriers.append(barrier)
        real["init"](barrier, count)

    def wait(barrier, phase, **how):
        if barrier not in barriers[-2:]:  # the turns', which are made last
            real["wait"](barrier, phase, **how)

    for name, function in (("init", init), ("wait", wait)):
        faulty.setitem(language.BARRIER, name, function)
    with suppress(Fault):
        assert not worst_error(first(ODD, "gluon_pingpong"), ODD, TWO) <= 1


@pytest.mark.parametrize("problem", [ODD, WEIGHTS["2-D"]], ids=["forward", "weights"])
def test_a_slot_that_is_released_too_early_is_found(faulty, problem):
    def wait(count=0, deps=None):
        return language.warpgroup_mma_wait(2 * int(count), deps)

    settled = lambda x, flying: language.Tensor(x._data, x.dtype, x.layout)  # noqa: E731
    faulty.setattr(language, "_settled", settled)
    faulty.setitem(language.OBJECTS, id(language.hopper.warpgroup_mma_wait), wait)
    with pytest.raises(Fault, match="changed while a wgmma in flight was reading it"):
        worst_error(replace(first(problem), num_stages=2), problem, TWO)


def test_a_store_without_a_fence_is_found(faulty):
    faulty.setitem(language.OBJECTS, id(language.hopper.fence_async_shared), lambda **_: None)
    with pytest.raises(Fault, match="without fence_async_shared"):
        worst_error(first(ODD), ODD, TWO)


def test_staging_that_is_written_while_it_is_stored_is_found(faulty):
    def store_wait(pendings):
        if not int(pendings):
            language.world.wait_stores(0)

    faulty.setitem(language.OBJECTS, id(language.hopper.tma.store_wait), store_wait)
    with pytest.raises(Fault, match="changed while a store in flight was reading it"):
        worst_error(replace(first(ODD), num_stages=2), ODD, replace(TWO, compute_units=1))


def test_on_a_cpu_another_kernel_computes_the_same():
    problem = ConvProblem(1, 8, 16, (9, 8), (3, 3), pad=(1, 1), dtype="fp16", epilogue="bias")
    gradient = replace(problem, spatial=(8, 8), direction="weights", epilogue="")
    for p in (problem, gradient):
        for c in {c.scheduler: c for c in configs(p)}.values():
            found = verify.verify(Dispatcher(device="h200_sxm"), p, c.name, seed=1)
            assert found.ok, found


# --- builds ------------------------------------------------------------------------------------

BUILT = selection.some([
    first(DENSE), first(DENSE, "gluon_pingpong"),
    first(replace(DENSE, direction="data")),
    first(replace(DENSE, epilogue="col_scale+bias+silu+add"), "gluon_pingpong"),
    first(replace(DENSE, dtype="e4m3fn", dtype_out="")),
    *configs(replace(DENSE, direction="weights"))[:2],
], 2)  # fmt: skip


@pytest.fixture(scope="module")
def built(store):
    return built_by_name(BUILT, store)


@pytest.mark.turns(48)
@pytest.mark.parametrize("c", BUILT, ids=lambda c: c.name)
def test_nothing_spills_and_shared_memory_is_as_said(c, built):
    check_built(c, built[c.name])
