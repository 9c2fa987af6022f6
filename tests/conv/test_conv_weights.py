"""Gradients of weights whose tiles several workgroups share: what is refused, and the results, in
the interpreter and in the simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boxed_cases import WEIGHTS, configs

from simulate import worst_error
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.catalogue import FEW_PARTS
from tilewright.ops.conv.config import REDUCTIONS_OF, SHARING
from tilewright.ops.conv.launch import context
from tilewright.ops.conv.pipelines import PIPELINES
from tilewright.select.constraints import Constraints

FAMILY = ops.family("conv")
SM_90 = arch("sm_90")
FORMS = [(s, r) for s in SHARING for r in REDUCTIONS_OF[s]]
PROBLEMS = {
    "2-D": ConvProblem(3, 24, 40, (9, 11), (3, 3), pad=(1, 1), direction="weights", dtype="fp16"),
    "groups": ConvProblem(
        2, 24, 16, (8, 9), (2, 3), 4, stride=(1, 2), direction="weights", dtype="fp32"
    ),
    "1-D": ConvProblem(2, 40, 72, (50,), (2,), dilation=(3,), direction="weights"),
}


def of_units(count: int):
    """A device of so many compute units."""
    return replace(device("h200"), compute_units=count)


def config(p: ConvProblem, scheduler: str, reduction: str, **fields):
    read, made = PIPELINES["implicit"].alignments(p)
    said = {
        "direction": "weights", "spatial_dims": len(p.spatial), "dtype": p.dtype,
        "dtype_out": p.dtype_out, "alignment": read, "alignment_out": made, "tile_m": 32,
        "tile_n": 16, "tile_k": 16, "scheduler": scheduler, "reduction": reduction, **fields,
    }  # fmt: skip
    return FAMILY.make_config({**FAMILY.axes(), **said}, SM_90)


# --- rules -------------------------------------------------------------------------------------


def test_a_reduction_is_for_shared_tiles():
    p = PROBLEMS["2-D"]
    assert config(p, "split", "").reduction == "two_stage"
    assert config(p, "stream_k", "").reduction == "linear"
    assert config(p, "tile", "").reduction == "none"
    for scheduler, reduction in (
        ("tile", "tree"), ("split", "none"), ("stream_k", "none"), ("split", "linear"),
        ("stream_k", "two_stage"),
    ):  # fmt: skip
        with pytest.raises(BadArgument, match=f"reduction {reduction} with scheduler {scheduler}"):
            config(p, scheduler, reduction)
    assert "_stream_k_tree_g8" in config(p, "stream_k", "tree").name


def test_only_atomic_sums_do_not_repeat():
    """So the caller's constraint leaves them out, and nothing else."""
    p, h200 = PROBLEMS["2-D"], device("h200")
    for scheduler, reduction in FORMS:
        mine = config(p, scheduler, reduction)
        allowed = Constraints(deterministic=True).allows(mine, p, h200)
        assert bool(allowed) == bool(FAMILY.repeats(mine)) == (reduction != "atomic")
        if not allowed:
            assert allowed.rule == "deterministic" and "atomics" in allowed.reason
        assert Constraints().allows(mine, p, h200)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"direction": "forward"}, "pixels are split for gradients of weights"),
        (
            {"pipeline": "depthwise", "group_m": 1, "reduction": "tree"},
            "parts of gradients in pipeline depthwise are added by a second kernel",
        ),
        ({"pipeline": "depthwise", "group_m": 1, "scheduler": "stream_k"}, "a second kernel"),
    ],
)
def test_what_cannot_be_built(fields, why):
    verdict = FAMILY.judge(
        config(PROBLEMS["2-D"], **{"scheduler": "split", "reduction": "", **fields}), SM_90
    )
    assert verdict.rule == "combination" and why in verdict.reason


def test_what_cannot_be_served():
    p = PROBLEMS["2-D"]
    for fields, why in (
        ({"n": 1, "spatial": (3, 3), "filter": (3, 3)}, "the pixels are 1 steps of 16"),
        ({"n": 0}, "the pixels are 0 steps"),
        ({"c": 2**13, "k": 2**13}, "steps of all tiles|more flags"),
    ):
        for scheduler in SHARING:
            mine = config(p, scheduler, "tree", index_bits=64)
            verdict = FAMILY.supports(mine, replace(p, **fields), SM_90)
            if scheduler == "stream_k" and "c" in fields:
                assert verdict
                continue
            assert verdict.rule == "sharing"
            assert any(part in verdict.reason for part in why.split("|")), verdict.reason


def test_there_is_room_for_every_part():
    """Flags for every part, also where a device has more units than tiles."""
    for p in PROBLEMS.values():
        for scheduler, reduction in FORMS:
            for units in (1, 7, 132, 304):
                c, gpu = config(p, scheduler, reduction), of_units(units)
                x = context(c, p, gpu)
                parts, tiles = x.splits, x.case.tiles
                launch = FAMILY.launch(c, p, gpu)
                room = {one.name: one for one in launch.temporaries}
                (grid, *_), *_ = [step.grid for step in launch.steps]
                if scheduler == "stream_k":
                    assert grid == min(units, tiles * x.case.steps)
                    assert 0 <= parts <= tiles
                else:
                    assert grid == parts * tiles
                if c.two_stage:
                    assert len(launch.steps) == 2 and set(room) == {"partials"}
                    continue
                assert len(launch.steps) == 1 and set(room) == {"flags", "partials"}
                assert room["partials"].initial == (
                    "kept_zero" if reduction == "atomic" else "anything"
                )
                if scheduler == "split":
                    assert parts * tiles <= room["flags"].shape[0]


STEM = ConvProblem(4, 3, 16, (24, 24), (3, 3), pad=(1, 1), direction="weights")
DEPTHWISE = ConvProblem(4, 24, 24, (24, 24), (3, 3), groups=24, pad=(1, 1), direction="weights")


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("p", "pipeline"),
    [(STEM, "implicit"), (STEM, "packed"), (DEPTHWISE, "depthwise")],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_many_parts_are_read_at_once_in_every_pipeline(p, pipeline):
    """By a kernel of its own, which a launch has in place of the one for few."""
    every = _all(FAMILY.default_space(p, SM_90))
    c = next(
        c for c in every
        if c.pipeline == pipeline and c.two_stage and FAMILY.supports(c, p, SM_90)
    )  # fmt: skip
    for units, adds in ((2, "totals"), (132, "many_totals")):
        gpu = of_units(units)
        assert (context(c, p, gpu).splits > FEW_PARTS) == (adds == "many_totals")
        assert FAMILY.launch(c, p, gpu).steps[-1].part == adds
        results = [worst_error(c, p, gpu, seed=seed) for seed in (1, 2)]
        assert max(results) <= 1, (c.name, results)


def test_spaces_have_them_and_only_a_user_declares_atomics():
    p = replace(WEIGHTS["2-D"], n=64, spatial=(32, 32))
    default = {(c.pipeline, c.scheduler, c.reduction) for c in _all(FAMILY.default_space(p, SM_90))}
    assert {("implicit", "stream_k", "linear"), ("gluon_ws", "stream_k", "linear")} <= default
    tuned = {
        (c.pipeline, c.scheduler, c.reduction)
        for space in FAMILY.tuning_spaces(p, SM_90)
        for c in _all(space)
    }
    assert {("implicit", "split", "tree"), ("gluon_ws", "stream_k", "tree")} <= tuned
    assert not [one for one in tuned if "atomic" in one]


def _all(space):
    return space.expand(SM_90).configs


# --- results -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five():
    """A dispatcher for a device with fewer compute units than tiles; shares cross tiles."""
    return Dispatcher(device=of_units(5))


@pytest.fixture(scope="module")
def many():
    return Dispatcher(device=of_units(24))


@pytest.mark.turns(48)
@pytest.mark.parametrize(("scheduler", "reduction"), FORMS)
def test_results_are_the_references(five, many, scheduler, reduction):
    cases = [("2-D", five, False), ("groups", many, False), ("1-D", many, True)]
    case, dispatcher, merged = cases[(FORMS.index((scheduler, reduction)) + 1) % 3]
    p = PROBLEMS[case]
    name = config(p, scheduler, reduction, merged=merged).name
    found = verify.verify(dispatcher, p, name, seed=len(name))
    assert found.ok, (case, found)


@pytest.mark.turns(24)
@pytest.mark.parametrize("reduction", ["linear", "tree"])
def test_a_fixed_order_repeats_bit_for_bit(many, reduction):
    p = PROBLEMS["1-D"]
    name = config(p, "stream_k", reduction).name
    found = []
    for _ in "ab":
        made = verify.operands_of(p, 3)
        verify.run(many, p, made, name)
        found.append(np.asarray(made.outputs["w"]).tobytes())
    assert found[0] == found[1]


@pytest.mark.grid(2)
@pytest.mark.parametrize(("scheduler", "reduction"), FORMS)
def test_hoppers_kernel_is_right(scheduler, reduction):
    p = WEIGHTS["2-D"]
    gpu = of_units(60 if scheduler == "split" else 5)
    c = next(c for c in configs(p) if c.num_warps == 8)
    c = replace(c, scheduler=scheduler, reduction=reduction, num_stages=2)
    assert FAMILY.judge(c, SM_90) and FAMILY.supports(c, p, SM_90)
    assert context(c, p, gpu).splits > 1
    assert worst_error(c, p, gpu, 1) <= 1, c.name
