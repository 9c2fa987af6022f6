"""Layers of few filters by kernels for few channels: x and y are exchanged."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from shared_builds import build_once
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import FAMILY, ConvProblem, swapping, turning
from tilewright.ops.conv.config import SWAPPED
from tilewright.ops.conv.stated import first_strides

SM_90, H200 = arch("sm_90"), device("h200_sxm")
DIRECTIONS = ("data", "weights")


def first(p: ConvProblem) -> ConvProblem:
    return replace(p, **first_strides(p))


LAST = ConvProblem(2, 24, 3, (9, 13), (3, 3), pad=(1, 1))
CASES = (
    LAST,
    first(LAST),
    replace(LAST, dtype="fp16", dtype_out=""),
    replace(LAST, dtype="fp32", dtype_out=""),
    replace(LAST, pad=(0, 2), pad_after=(1, 0)),
    replace(LAST, pad=(-1, 3), pad_after=(4, -2)),
    replace(LAST, dilation=(2, 1), pad=(2, 1)),
    replace(LAST, k=7, filter=(1, 1), pad=(0, 0)),
    ConvProblem(2, 16, 1, (37,), (5,), pad=(4,), pad_after=(0,)),
    ConvProblem(1, 16, 3, (4, 5, 6), (3, 1, 2), pad=(1, 0, 1)),
    first(ConvProblem(1, 20, 2, (4, 5, 6), (2, 3, 3), pad=(1, 1, 1))),
)


def configs(p, this=SM_90):
    found = FAMILY.default_space(p, this).expand(this).configs
    return [c for c in found if c.turned == SWAPPED and FAMILY.supports(c, p, this)]


@pytest.mark.grid(3)
@pytest.mark.parametrize("p", CASES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_right(p, direction):
    """By a kernel of each pipeline that has one."""
    p = replace(p, direction=direction, dtype_out="")
    by_pipeline = {c.pipeline: c for c in sorted(configs(p), key=lambda c: -c.tile_m)}
    assert by_pipeline
    for c in by_pipeline.values():
        found = verify.verify(Dispatcher(), p, c.name, seed=1)
        assert found.ok, (c.name, found)


def test_epilogues_are_of_what_is_made():
    p = replace(LAST, direction="data", epilogue="bias+relu")
    c = configs(p)[0]
    assert verify.verify(Dispatcher(), p, c.name, seed=2).ok
    p = replace(p, epilogue="add")
    assert verify.verify(Dispatcher(), p, configs(p)[0].name, seed=3).ok


@pytest.mark.parametrize("p", CASES, ids=str)
def test_exchanged_twice_it_is_the_same(p):
    """But for the filters, which lie without gaps then."""
    for direction in DIRECTIONS:
        q = replace(p, direction=direction)
        once = swapping.inside(q)
        assert (once.c, once.k, once.out_sizes) == (q.k, q.c, q.spatial)
        assert once.flops == q.flops
        again = swapping.inside(replace(once, direction=direction))
        back = {"direction": direction, "w_strides": q.w_strides}
        assert replace(again, **back) == q


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"direction": "forward"}, "forward, blocks"),
        ({"stride": (2, 1)}, "a stride of 2x1"),
        ({"groups": 3, "k": 3}, "groups"),
        ({"k": 9}, "9 filters of 24 channels"),
        ({"c": 3}, "3 filters of 3 channels"),
        ({"n": 0}, "no elements"),
    ],
)
def test_what_is_not_exchanged(fields, why):
    p = replace(LAST, **{"direction": "data", **fields})
    assert re.search(why, swapping.refusal(p)) and not configs(p)
    c = replace(configs(replace(LAST, direction="data"))[0], direction=p.direction)
    verdict = FAMILY.supports(c, p, SM_90)
    assert verdict.rule == "turned" and re.search(why, verdict.reason)


def test_names_say_so_and_the_launch_has_its_steps():
    for direction in DIRECTIONS:
        p = replace(LAST, direction=direction)
        c = configs(p)[0]
        assert c.name.endswith("_turn-s") and c.direction == direction
        assert FAMILY.parse_name(c.name) == c
        launch = FAMILY.launch(c, p, H200)
        parts = [step.part for step in launch.steps]
        assert parts[-1 if direction == "weights" else 0] == "turn_w"
        assert {*parts} == {*FAMILY.sources(c, SM_90)}
        arguments = [one for step in launch.steps for one in step.arguments]
        assert {"x", "w", "y"} <= {getattr(one, "operand", "") for one in arguments}


@pytest.mark.parametrize(
    ("p", "pipeline"),
    [
        (replace(LAST, c=128, spatial=(256, 256), direction="weights"), "packed"),
        (replace(LAST, c=128, spatial=(256, 256), direction="data"), "packed"),
    ],
    ids=str,
)
def test_the_last_layer_of_a_decoder_takes_them(p, pipeline):
    """Its estimate counts the step."""
    plan = Dispatcher(device=H200, selector="analytical").select(p)
    assert (plan.config.pipeline, plan.config.turned) == (pipeline, SWAPPED)
    inner = FAMILY.estimate(swapping.within(plan.config), swapping.inside(p), H200)
    found = FAMILY.estimate(plan.config, p, H200)
    step = turning.us(p, SWAPPED, H200)
    assert found.total_us == pytest.approx(inner.total_us + step) and 0 < step < 10
    ranked = FAMILY.rank(p, configs(p), H200)
    assert [*ranked] == [(c, FAMILY.estimate(c, p, H200)) for c, _ in ranked]


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["sm_90", "gfx942", "gfx1201"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_built(name, direction, store):
    this = arch(name)
    p = replace(LAST, direction=direction)
    kernels = build_once([(configs(p, this)[0], this)], store).kernels
    assert "turn_w" in {kernel.part for kernel in kernels}
