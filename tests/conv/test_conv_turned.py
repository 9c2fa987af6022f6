"""Layout steps: arrays with channels outside of their pixels are turned into temporaries, around
the kernels that want channels as neighbours."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from shared_builds import build_once
from tilewright import Constraints, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import FAMILY, ConvProblem, turning
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.turning import TURNING

SM_90, H200 = arch("sm_90"), device("h200_sxm")


def first(p: ConvProblem, names: str = "xwy", gap: int = 0) -> ConvProblem:
    """The same with channels outside of pixels; gap: elements between channels."""

    def strides(shape):
        _, channels, *sizes = shape
        inner = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
        row = math.prod(sizes) + gap
        return (channels * row, row, *inner)

    return replace(p, **{f"{name}_strides": strides(p.shape_of(name)) for name in names})


DENSE = ConvProblem(2, 24, 40, (9, 7), (3, 3), pad=(1, 1))


@pytest.mark.parametrize(
    ("p", "turned"),
    [
        (first(DENSE), "xwy"),
        (first(DENSE, gap=8), "xwy"),
        (first(DENSE, "y"), "y"),
        (DENSE, ""),
        (first(replace(DENSE, c=1)), "y"),  # one channel lies as it may
        (first(replace(DENSE, filter=(1, 1), pad=(), pad_after=())), "xy"),
        (first(replace(DENSE, n=0)), "w"),
        (replace(DENSE, x_strides=(24 * 126, 126, 14, 2)), ""),  # pixels that are no neighbours
    ],
)
def test_what_can_be_turned(p, turned):
    assert turning.turnable(p) == turned


def configs(p, arch=SM_90):
    return [c for c in FAMILY.default_space(p, arch).expand(arch).configs if c.turned]


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_kernels_of_the_turned_problem_are_candidates(direction):
    p = first(replace(DENSE, direction=direction))
    found = [c for c in configs(p) if c.turned == "xwy"]
    assert {c.pipeline for c in found} >= {"implicit", *(["gluon_ws"] * (direction != "weights"))}
    for c in found[::7]:
        assert c.name.endswith("_turn-xwy") and FAMILY.parse_name(c.name) == c
        plain = replace(c, turned="")
        inside = turning.inside(p, c.turned)
        assert bool(FAMILY.supports(c, p, SM_90)) == bool(FAMILY.supports(plain, inside, SM_90))
        refused = FAMILY.supports(c, inside, SM_90)
        assert refused.rule == "turned" and "does not lie as rows of pixels" in refused.reason
    assert not configs(turning.inside(p, "xwy"))


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_a_launch_turns_what_is_read_before_and_what_is_made_after(direction):
    p = first(replace(DENSE, direction=direction))
    c = next(c for c in configs(p) if FAMILY.supports(c, p, SM_90) and not c.two_stage)
    launch = FAMILY.launch(c, p, H200)
    made = p.output_name
    parts = [step.part for step in launch.steps]
    read = [f"turn_{name}" for name in "xwy" if name != made]
    assert parts[:2] == read and parts[-1] == f"turn_{made}"
    assert {t.name for t in launch.temporaries} >= {f"turned_{name}" for name in "xwy"}
    assert set(parts) <= set(FAMILY.sources(c, SM_90))
    for step in launch.steps[2:-1]:
        assert not {getattr(a, "operand", "") for a in step.arguments} & {"x", "w", "y"}


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    "p",
    [
        DENSE,
        ConvProblem(2, 16, 24, (70,), (4,), stride=(2,), pad=(1,), dtype="fp16", dtype_out=""),
        replace(DENSE, c=48, k=48, groups=3, stride=(2, 1), dtype="fp32", dtype_out=""),
        ConvProblem(1, 8, 8, (3, 5, 4), (2, 3, 1), pad=(0, 1, 0)),
        ConvProblem(2, 3, 20, (41, 50), (3, 3), pad=(1, 1)),  # pixels with all of few channels
    ],
    ids=str,
)
@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_it_is_right(p, direction):
    p = first(replace(p, direction=direction, dtype_out=""), gap=3)
    gfx942 = arch("gfx942")
    found = [c for c in configs(p, gfx942) if c.pipeline == "implicit"]
    c = next(c for c in found if FAMILY.supports(c, p, gfx942))
    assert verify.verify(Dispatcher(), p, c.name, seed=1).ok


def test_an_epilogue_reads_its_vector_and_no_array_that_is_turned():
    p = first(replace(DENSE, epilogue="bias+relu"))
    c = next(c for c in configs(p, arch("gfx942")) if c.pipeline == "implicit")
    assert verify.verify(Dispatcher(), p, c.name, seed=2).ok
    add = replace(p, epilogue="add")
    refused = FAMILY.supports(replace(c, epilogue="add"), add, arch("gfx942"))
    assert refused.rule == "turned" and "lies as the result" in refused.reason


def test_the_estimate_counts_the_steps_and_says_so():
    p = first(ConvProblem(16, 256, 256, (2400,), (7,), pad=(3,)))
    dispatcher = Dispatcher(device=H200, selector="analytical")
    plan = dispatcher.select(p)
    assert plan.config.turned == "xwy" and TURNING in plan.reason
    plain = FAMILY.estimate(replace(plan.config, turned=""), turning.inside(p, "xwy"), H200)
    found = FAMILY.estimate(plan.config, p, H200)
    steps = dict(found.terms)[TURNING]
    assert found.total_us == pytest.approx(plain.total_us + steps)
    moved = 2 * 2 * (2 * 16 * 256 * 2400 + 256 * 256 * 7)
    assert steps > moved / H200.bandwidth_gbs / 1e3 / CONV.TURN_SHARE
    assert "layout steps" in str(dispatcher.explain(p))


def test_a_constraint_forbids_them():
    p = first(ConvProblem(16, 256, 256, (2400,), (7,), pad=(3,)))
    plan = Dispatcher(device=H200, constraints=Constraints(max_workspace=0)).select(p)
    assert not plan.config.turned and plan.launch.workspace_bytes == 0


def test_weights_that_are_kept_with_channels_innermost_are_not_turned():
    p = first(ConvProblem(16, 256, 256, (2400,), (7,), pad=(3,)), "xy")
    plan = Dispatcher(device=H200, selector="analytical").select(p)
    assert plan.config.turned == "xy" and "turn_w" not in {step.part for step in plan.launch.steps}


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["sm_90", "gfx942", "gfx1201"])
def test_it_is_built(name, store):
    this = arch(name)
    p = first(DENSE)
    c = next(c for c in configs(p, this) if c.pipeline == "implicit")
    kernels = build_once([(c, this)], store).kernels
    assert {k.part for k in kernels} == {"main", "turn_x", "turn_w", "turn_y"}


def test_few_channels_fill_the_tiles_that_turn_them():
    stem = first(ConvProblem(8, 3, 64, (224, 224), (3, 3), pad=(1, 1)))
    c = next(c for c in configs(stem) if FAMILY.supports(c, stem, SM_90))
    grids = {step.part: step.grid[0] for step in FAMILY.launch(c, stem, H200).steps}
    assert grids["turn_x"] == 8 * math.ceil(3 * 224 * 224 / 64**2)
    assert grids["turn_y"] == 8 * 224 * 224 // 64


def test_under_numpy_channels_first_calls_are_right():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 8, 12), np.float32), rng.standard_normal((8, 8, 3), np.float32)
    wanted = sum(
        np.einsum("kc,nct->nkt", w[:, :, r].astype(float), x[:, :, r : r + 10].astype(float))
        for r in range(3)
    )
    np.testing.assert_allclose(tw.conv1d(x, w), wanted, rtol=1e-4, atol=1e-4)


def test_few_long_rows_are_packed_by_few_workgroups():
    """One row of a sequence is one workgroup's, which takes its blocks one after the other."""
    line = ConvProblem(1, 1, 512, (96000,), (10,), stride=(5,), direction="weights")
    image = ConvProblem(1, 1, 512, (300, 320), (3, 3), direction="weights")
    us = []
    for p in (line, image):
        found = FAMILY.default_space(p, SM_90).expand(SM_90).configs
        c = next(c for c in found if c.pipeline == "packed" and FAMILY.supports(c, p, SM_90))
        us.append(dict(FAMILY.estimate(c, p, H200).terms)["pack"])
    assert us[0] > 10 * us[1]


@pytest.mark.parametrize(
    "p",
    [
        DENSE,
        replace(DENSE, c=12, k=20, filter=(1, 1), stride=(2, 2), pad=(), pad_after=()),
        replace(DENSE, c=3),
        replace(DENSE, c=4, k=36, dtype="fp32", dtype_out=""),
        replace(DENSE, c=12, k=12, groups=12),
        replace(DENSE, c=32, k=48, groups=4),
        replace(DENSE, c=25, k=24),
    ],
    ids=str,
)
def test_channels_are_the_vectors_that_steps_were_promised(p):
    found = 0
    for direction in ("forward", "data", "weights"):
        q = first(replace(p, direction=direction))
        for c in configs(q):
            if FAMILY.supports(c, q, SM_90):
                for name in turning.turned_arrays(c.turned):
                    assert q.shape_of(name)[1] % turning.whole_channels(c, name) == 0, (
                        c.name,
                        name,
                    )
                    found += 1
    assert found


def test_a_product_whose_rows_skip_pixels_does_not_make_channels_whole():
    p = first(ConvProblem(2, 16, 24, (9,), (1,), stride=(2,)))
    c = next(c for c in configs(p) if c.gemm and FAMILY.supports(c, p, SM_90))
    assert turning.whole_channels(c, "x") == 8
    refused = FAMILY.supports(c, first(replace(p, c=20)), SM_90)
    assert not refused and "20 channels of x are no multiple of 8" in refused.reason
    mine = FAMILY.serving(first(replace(p, c=20)), [c], SM_90)
    assert not len(mine)
