"""Groups of many channels by boxes: which kernels are offered and refused, what they compute in the
simulation, and what they are built to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sim_names
from boxed_cases import BOXED, FAMILY, SM_90, built_by_name, check_built, configs

import selection
from simulate import worst_error
from tilewright import arrays, verify
from tilewright.arch import device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvConfig, ConvProblem, boxes
from tilewright.ops.conv.kernels import gluon_ws
from tilewright.ops.conv.pipelines.boxed import rows
from tilewright.ops.device.gluon_api import jit

H200 = device("h200_sxm")
SMALL = replace(H200, compute_units=3)
"""So that a workgroup has tiles of several groups."""
REGNET = ConvProblem(32, 512, 512, (28, 28), (3, 3), 4, pad=(1, 1))
GROUPS = ConvProblem(2, 384, 384, (9, 11), (3, 3), 3, pad=(1, 1))

CASES = {
    "forward": GROUPS,
    "groups of 64": replace(GROUPS, c=192, k=192, dtype="fp16", dtype_out="fp16"),
    "few to many": replace(GROUPS, c=192, epilogue="bias+silu+add"),
    "many to few": replace(GROUPS, k=192, filter=(1, 1), pad=(0, 0), dtype_out="fp32"),
    "odd tiles": replace(GROUPS, c=336, k=336),
    "steps of half": replace(GROUPS, c=288, k=480),
    "strides": replace(GROUPS, stride=(2, 2)),
    "e4m3fn": replace(GROUPS, dtype="e4m3fn", dtype_out=""),
    "1-D": ConvProblem(2, 128, 256, (70,), (5,), 2, pad=(2,), dilation=(2,)),
    "3-D": ConvProblem(1, 128, 128, (4, 5, 6), (3, 2, 3), 2, pad=(1, 0, 1)),
    "gaps": replace(
        GROUPS, x_strides=(40000, 1, 4400, 400), y_strides=(48000, 1, 5280, 480),
        w_strides=(1800, 1, 600, 200),
    ),
    "data": replace(GROUPS, direction="data", epilogue="bias+add"),
    "data, many to few": replace(GROUPS, k=192, direction="data"),
    "data, odd tiles": replace(GROUPS, c=480, k=288, direction="data"),
    "classes": replace(GROUPS, stride=(2, 2), direction="data"),
    "classes together": replace(
        GROUPS, spatial=(12, 12), filter=(2, 2), pad=(0, 0), stride=(2, 2), direction="data"
    ),
    "weights": replace(GROUPS, spatial=(8, 8), direction="weights"),
    "weights, few to many": replace(GROUPS, c=216, spatial=(8, 8), direction="weights"),
    "weights, strides": replace(GROUPS, spatial=(16, 16), stride=(2, 2), direction="weights"),
    "weights, 1-D": ConvProblem(4, 128, 128, (64,), (5,), 2, pad=(2,), direction="weights"),
}  # fmt: skip


def offered(p: ConvProblem) -> list[ConvConfig]:
    return configs(p, tuned=True)


def kinds(p: ConvProblem) -> list[ConvConfig]:
    """Of each pipeline, scheduler, spread and number of classes: the first tile and the last."""
    each: dict[object, list[ConvConfig]] = {}
    for c in offered(p):
        each.setdefault((c.pipeline, c.scheduler, c.spread, c.classes), []).append(c)
    return [c for some in each.values() for c in dict.fromkeys((some[0], some[-1]))]


# --- which are offered -------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "groups"), [(256, 2), (512, 2), (512, 8), (1024, 16)])
def test_groups_of_many_channels_have_them(channels, groups, stride, direction):
    p = replace(
        REGNET, c=channels, k=channels, groups=groups, stride=(stride,) * 2, spatial=(32, 32),
        direction=direction,
    )  # fmt: skip
    for tuned in (False, True):
        found = configs(p, tuned)
        assert found and all(c.grouped for c in found)
        assert {c.pipeline for c in found} >= {"gluon_ws"}
        assert not [c for c in configs(replace(p, groups=1), tuned) if c.grouped]


@pytest.mark.parametrize("direction", ["forward", "data"])
@pytest.mark.parametrize(("c", "k"), [(256, 256), (256, 512), (512, 256)])
def test_groups_of_fewer_channels_have_them_in_a_tuning(c, k, direction):
    p = replace(REGNET, c=c, k=k, groups=8, direction=direction)
    assert not configs(p) and configs(p, tuned=True)
    p = replace(p, groups=min(c, k) // rows.LEAST_OF_GROUP)
    assert configs(p)


def chosen(p: ConvProblem) -> ConvConfig:
    """What the estimate chooses from the default space."""
    every = FAMILY.default_space(p, SM_90).expand(SM_90).configs
    return FAMILY.rank(p, [c for c in every if FAMILY.supports(c, p, SM_90)], H200)[0][0]


CHOSEN = {
    "forward": REGNET,
    "data": replace(REGNET, direction="data"),
    "data, strides": replace(REGNET, c=2048, k=2048, groups=16, stride=(2, 2), direction="data"),
    "weights": replace(REGNET, spatial=(24, 24), direction="weights"),
    "odd columns": ConvProblem(16, 224, 224, (14, 14), (3, 3), 2, pad=(1, 1)),
}
"""Layers, most of them of the record `conv_groups_h200.json`, where they were ahead."""


@pytest.mark.parametrize("case", CHOSEN)
def test_the_estimate_chooses_them(case):
    assert chosen(CHOSEN[case]).grouped


def test_pointers_stay_where_short_rows_of_many_classes_were_slower():
    """13.2 µs on an H200, where boxes took 23.8."""
    p = ConvProblem(
        32, 336, 336, (14, 14), (3, 3), 3, stride=(2, 2), pad=(1, 1), direction="data"
    )  # fmt: skip
    assert configs(p) and not chosen(p).grouped


def test_tiles_stay_within_a_group():
    for direction, field, of in (
        ("forward", "tile_n", 160), ("data", "tile_n", 96), ("weights", "tile_m", 64),
    ):  # fmt: skip
        p = replace(REGNET, c=384, k=640, direction=direction, spatial=(32, 32))
        p = replace(p, k=256) if direction == "weights" else p
        assert {of % getattr(c, field) for c in offered(p)} == {0}


def test_names_say_that_they_are_for_groups():
    for direction in ("forward", "data", "weights"):
        c = offered(replace(REGNET, direction=direction, spatial=(32, 32)))[0]
        assert "_grouped" in c.name and FAMILY.parse_name(c.name) == c


def config(**fields):
    said = {
        "pipeline": "gluon_ws", "scheduler": "persistent", "tile_m": 128, "tile_n": 128,
        "tile_k": 64, "num_warps": 8, "num_stages": 4, "box": "1x4x16", "grouped": True,
    }  # fmt: skip
    return FAMILY.make_config({**FAMILY.axes(), **said, **fields}, SM_90)


@pytest.mark.parametrize(
    ("fields", "problem", "why"),
    [
        ({}, replace(REGNET, groups=1), "is for groups, and the convolution has none"),
        ({"grouped": False}, REGNET, "not grouped is for one group, not for 4 groups"),
        ({}, replace(REGNET, k=384), "96 channels of a group that are made are not tiles of 128"),
        ({}, replace(REGNET, c=384), "96 channels of a group that are read are not steps of 64"),
        (
            {"direction": "data"}, replace(REGNET, c=384, direction="data"),
            "96 channels of a group that are made are not tiles of 128",
        ),
        (
            {"direction": "weights"}, replace(REGNET, k=256, spatial=(32, 32), direction="weights"),
            "64 filters of a group are not tiles of 128",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_served(fields, problem, why):
    verdict = FAMILY.supports(config(**fields), problem, SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason


def test_other_pipelines_have_no_such_kernels():
    other = config(pipeline="implicit", scheduler="tile", box="")
    verdict = FAMILY.judge(other, SM_90)
    assert not verdict and "grouped is of pipelines that copy boxes" in verdict.reason


# --- the kernels -------------------------------------------------------------------------------


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", CASES)
def test_it_is_right(case):
    problem = CASES[case]
    assert kinds(problem)
    for seed, c in enumerate(kinds(problem)):
        assert worst_error(c, problem, SMALL, seed) <= 1, c.name


def test_the_cases_reach_everything_that_they_may():
    met = [c for problem in CASES.values() for c in kinds(problem)]
    assert {c.pipeline for c in met} == set(BOXED)
    assert {c.reduction for c in met} >= {"none", "two_stage", "linear", "tree"}
    assert {c.classes for c in met} == {1, 4} and {c.spread for c in met} == {0, 64}
    assert {c.tile_k for c in met} >= {16, 32, 64}


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", CHOSEN)
def test_what_is_chosen_is_right(case):
    """On two boxes in each direction, and two groups."""
    p = CHOSEN[case]
    c = chosen(p)
    n, *box = boxes.sizes(c.box)
    size = tuple(2 * side * by for side, by in zip(box, p.stride, strict=True))
    few = replace(p, n=2 * n, spatial=size)
    few = replace(few, c=2 * p.group_c, k=2 * p.group_k, groups=2)
    assert worst_error(c, few, SMALL, 3) <= 1, c.name


@pytest.mark.turns(4)
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # of the reference
@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_what_is_infinite_in_one_group_stays_there(direction):
    """Also where a gradient of weights has tiles that reach past a group's channels."""
    p = replace(GROUPS, spatial=(8, 8), direction=direction)
    if direction == "weights":
        p = replace(p, c=216, filter=(1, 3), pad=(0, 1))
    given = {name: arrays.to_numpy(x) for name, x in verify.operands_of(p, 1).inputs.items()}
    name, each = ("y", p.group_k) if direction == "data" else ("x", p.group_c)
    given[name] = given[name].copy()
    given[name][:, each : 2 * each] = np.inf
    for c in kinds(p):
        assert worst_error(c, p, SMALL, 2, given) <= 1, c.name


@pytest.fixture
def faulty(monkeypatch):
    """Functions take their names anew, so that a fault can replace one."""
    monkeypatch.setattr(sim_names, "known_functions", {})
    return monkeypatch


@jit
def first_group(w, col):
    return col * 0, col


@pytest.mark.parametrize("direction", ["forward", "data"])
def test_a_group_that_reads_the_first_ones_channels_is_found(faulty, direction):
    p = replace(GROUPS, direction=direction)
    faulty.setattr(gluon_ws, "_of_group", first_group)
    assert worst_error(offered(p)[0], p, SMALL) > 1


def test_on_a_cpu_another_kernel_computes_the_same():
    p = ConvProblem(1, 128, 128, (8, 8), (3, 3), 2, pad=(1, 1), dtype="fp16")
    for one in (p, replace(p, direction="weights")):
        found = verify.verify(Dispatcher(device="h200_sxm"), one, offered(one)[0].name, seed=1)
        assert found.ok, found


# --- builds ------------------------------------------------------------------------------------


def _built() -> list[ConvConfig]:
    data = replace(REGNET, direction="data", epilogue="bias")
    weights = replace(REGNET, direction="weights", spatial=(32, 32))
    return [
        *(chosen(p) for p in CHOSEN.values()),
        next(c for c in offered(REGNET) if c.pipeline == "gluon_ws" and c.tile_m == 256),
        next(c for c in offered(REGNET) if c.pipeline == "gluon_pingpong"),
        next(c for c in offered(data) if c.num_warps == 8),
        next(c for c in offered(replace(data, filter=(2, 2), stride=(2, 2))) if c.classes > 1),
        next(c for c in offered(weights) if c.spread),
        next(c for c in offered(weights) if c.scheduler == "stream_k"),
    ]


BUILT = selection.some([*dict.fromkeys(_built())], 3)


@pytest.fixture(scope="module")
def built(store):
    return built_by_name(BUILT, store)


@pytest.mark.turns(48)
@pytest.mark.parametrize("c", BUILT, ids=lambda c: c.name)
def test_nothing_spills_and_shared_memory_is_as_said(c, built):
    check_built(c, built[c.name])
