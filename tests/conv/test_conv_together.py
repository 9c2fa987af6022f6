"""Gradients of x whose residue classes are made by one launch: tiles of all classes side by side,
each stored to the places of its class."""

from __future__ import annotations

from dataclasses import replace

import pytest
from boxed_cases import BOXED, FAMILY, SM_90

from shared_builds import build_once
from simulate import worst_error
from tilewright.arch import device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem, boxes, turning
from tilewright.ops.conv.pipelines.boxed import shape
from tilewright.ops.nouns import Descriptor

H200 = device("h200_sxm")
TWO = replace(H200, compute_units=2)
CUBES = ConvProblem(3, 24, 40, (4, 6, 10), (2, 2, 2), stride=(2, 2, 2), direction="data")
LINE = ConvProblem(3, 40, 24, (51,), (4,), stride=(2,), pad=(1,), direction="data")
TAPS = ConvProblem(2, 40, 72, (11, 13), (4, 6), stride=(2, 3), pad=(1, 2), direction="data")
"""Several taps for each class, odd sizes, whose classes have unlike numbers of pixels."""
CASES = {
    "cubes": CUBES,
    "odd cubes": replace(CUBES, spatial=(5, 7, 9)),
    "line": LINE,
    "taps": TAPS,
    "fp16": replace(TAPS, dtype="fp16", dtype_out="fp16"),
    "fp32 out": replace(TAPS, dtype_out="fp32"),
    "dilation": replace(TAPS, stride=(2, 1), dilation=(3, 2)),
    "negative padding": replace(TAPS, pad=(-1, 2), pad_after=(0, 3)),
    "arrays beside": replace(TAPS, epilogue="bias+silu+add"),
    "arrays beside cubes": replace(CUBES, spatial=(5, 7, 9), epilogue="add+relu"),
    "gaps": replace(
        TAPS, x_strides=(13 * 15 * 48, 1, 15 * 48, 48), y_strides=(9 * 9 * 80, 1, 9 * 80, 80)
    ),
}


def configs(p: ConvProblem):
    """A kernel of each pipeline and number of warps that makes all classes of `p`."""
    found = {}
    for c in FAMILY.default_space(p, SM_90).expand(SM_90).configs:
        if c.classes > 1 and FAMILY.supports(c, p, SM_90):
            found.setdefault((c.pipeline, c.num_warps), c)
    return [*found.values()]


@pytest.mark.turns(4)
@pytest.mark.parametrize("p", CASES.values(), ids=CASES)
def test_it_is_right(p):
    """In the simulation, each pipeline's, several tiles a workgroup."""
    found = configs(p)
    assert "gluon_ws" in {c.pipeline for c in found} <= {*BOXED}
    for c in found:
        assert worst_error(c, p, TWO, seed=3) <= 1, c.name


def test_tiles_of_all_classes_follow_one_another():
    """One workgroup has all tiles, in rings of two slots."""
    for c in configs(TAPS):
        one = replace(TWO, compute_units=1)
        assert worst_error(replace(c, num_stages=2), TAPS, one, seed=4) <= 1, c.name


@pytest.mark.parametrize(
    ("p", "count"),
    [
        (CUBES, 8),
        (turning.inside(CUBES, ""), 4),
        (LINE, 2),
        (TAPS, 6),
        (replace(TAPS, filter=(3, 6)), 1),  # of 1 and 2 taps
        (replace(TAPS, dilation=(2, 1)), 1),  # every second class has none
        (replace(TAPS, filter=(4, 1), stride=(2, 1), pad=(1, 0)), 2),
        (replace(TAPS, filter=(1, 1), pad=(0, 0)), 1),
        (replace(LINE, filter=(17,), stride=(17,), pad=(0,), spatial=(170,)), 1),  # too many
        (replace(CUBES, direction="forward"), 1),
    ],
    ids=str,
)
def test_how_many_classes_a_launch_can_make(p, count):
    assert boxes.together(p) == count


def test_a_launch_has_one_step_with_a_map_for_each_class():
    p = turning.inside(CUBES, "")
    for c in configs(CUBES):
        (step,) = FAMILY.launch(c, CUBES, TWO).steps
        made = [one for one in step.arguments if isinstance(one, Descriptor) and one.operand == "x"]
        assert c.classes == len(made) == 4 and f"_cl{c.classes}" in c.name
        assert len({one.offset for one in made}) == 4 and FAMILY.parse_name(c.name) == c
        assert all(len(one.shape) == 2 + len(p.spatial) for one in made)
        apart = replace(c, classes=1)
        assert FAMILY.supports(apart, CUBES, SM_90)
        assert len(FAMILY.launch(apart, CUBES, TWO).steps) == 4
        us = [FAMILY.estimate(one, CUBES, H200).total_us for one in (apart, c)]
        assert us[0] - us[1] > 4


def test_what_cannot_be():
    (c, *_) = configs(CUBES)
    other = FAMILY.supports(replace(c, classes=2), CUBES, SM_90)
    assert other.rule == "pipeline" and "has 2 residue classes, of 4 that" in other.reason
    assert not FAMILY.supports(c, replace(CUBES, stride=(1, 2, 2)), SM_90)
    forward = FAMILY.judge(replace(c, direction="forward"), SM_90)
    assert forward.rule == "combination" and "are of gradients of the data" in forward.reason
    pointers = replace(shape.sibling(replace(c, classes=1)), classes=4)
    assert "classes 4 is for pipelines that copy boxes" in FAMILY.judge(pointers, SM_90).reason


def test_the_interpreter_has_a_sibling():
    for c in configs(TAPS):
        sibling = FAMILY.interpreted(c)
        assert (sibling.pipeline, sibling.classes) == ("implicit", 1)
        assert FAMILY.supports(sibling, TAPS, SM_90)


def test_patches_that_halve_an_image_are_one_launch_without_temporaries():
    for p in (
        ConvProblem(3, 72, 144, (10, 44, 36), (2, 2, 2), stride=(2, 2, 2), direction="data"),
        ConvProblem(9, 80, 160, (52, 60), (2, 2), stride=(2, 2), direction="data"),
        ConvProblem(9, 56, 224, (52, 60), (4, 4), stride=(4, 4), direction="data"),
    ):
        plan = Dispatcher(device=H200, selector="analytical").select(p)
        assert plan.config.pipeline in BOXED and plan.config.classes > 1
        assert len(plan.launch.steps) == 1 and not plan.launch.temporaries


@pytest.mark.turns(12)
def test_what_it_is_built_to(store):
    """Shared memory is no more than the rule says; a little spills of what a tile begins and ends
    with, which is twice as much for three groups."""
    wanted = [(c, "sm_90") for p in (CUBES, TAPS, LINE) for c in configs(p)]
    for result in build_once(wanted, store).results:
        assert result.kernel is not None, result.reason
        c = FAMILY.parse_name(result.name)
        assert result.kernel.shared <= shape.shared_memory(c), result.name
        most = 128 if c.num_warps == shape.THREE_GROUPS else 64
        assert result.kernel.resources.spill_bytes <= most, result.name
