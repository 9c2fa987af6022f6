"""Patches of channels-first images, read and written as they lie: results in the interpreter, what
the rules refuse, which layers are served, and what the compiled kernels move."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import selection
from shared_builds import build_once
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import FAMILY, ConvProblem
from tilewright.ops.conv.pipelines.in_place import PIPELINE
from tilewright.ops.conv.stated import first_strides

SM_90, H200 = arch("sm_90"), device("h200_sxm")


def side_by_side(n: int, c: int, k: int, spatial, taps, **more) -> ConvProblem:
    """With channels outside of pixels."""
    p = ConvProblem(n, c, k, spatial, taps, stride=taps, **more)
    return replace(p, **first_strides(p))


def configs(p: ConvProblem, name: str = "sm_90", tuned: bool = False):
    this = arch(name)
    spaces = FAMILY.tuning_spaces(p, this) if tuned else [FAMILY.default_space(p, this)]
    every = dict.fromkeys(c for space in spaces for c in space.expand(this).configs)
    return [c for c in every if c.pipeline == PIPELINE and FAMILY.supports(c, p, this)]


HALVED = side_by_side(2, 24, 40, (24, 32), (2, 2))
CASES = {
    "halved": HALVED,
    "cubes": side_by_side(2, 5, 24, (4, 6, 20), (2, 2, 2)),
    "unlike taps": side_by_side(1, 7, 20, (6, 12, 24), (3, 1, 4)),
    "embedding": side_by_side(3, 3, 72, (32, 48), (16, 16)),
    "line": side_by_side(3, 11, 16, (176,), (8,)),
    "odd sizes": side_by_side(2, 3, 17, (10, 22), (2, 2)),
    "fp16": replace(HALVED, dtype="fp16", dtype_out="fp16"),
    "fp32": replace(HALVED, dtype="fp32", dtype_out="fp32"),
    "tf32": replace(HALVED, dtype="fp32", dtype_out="fp32", precision="tf32"),
    "fp32 out": replace(HALVED, dtype_out="fp32"),
    "arrays beside": replace(HALVED, epilogue="add+relu"),
    "gaps": replace(
        HALVED, x_strides=(24 * 26 * 40, 26 * 40, 40, 1), y_strides=(50 * 200, 200, 16, 1),
        w_strides=(24 * 4 + 8, 4, 2, 1),
    ),
    "one channel": side_by_side(2, 1, 32, (16, 32), (4, 4)),
    "one image and pixel": side_by_side(1, 16, 24, (8, 4), (8, 4)),
}  # fmt: skip


@pytest.mark.turns(24)
@pytest.mark.parametrize("direction", ["forward", "data"])
@pytest.mark.parametrize(("number", "case"), [*enumerate(CASES)])
def test_it_is_right(number, case, direction):
    p = replace(CASES[case], direction=direction)
    found = configs(p, tuned=True)
    assert found
    c = found[number % len(found)]
    check = verify.verify(Dispatcher(device="h200_sxm"), p, c.name, seed=number)
    assert check.ok, f"{c.name}: {check}"


@pytest.mark.turns(4)
def test_forward_takes_the_pixels_beyond_the_last_window_for_nothing():
    p = replace(side_by_side(2, 6, 24, (9, 19), (2, 4)), epilogue="bias+silu")
    for c in configs(p):
        assert verify.verify(Dispatcher(), p, c.name, seed=2).ok, c.name
    data = replace(p, direction="data", epilogue="")
    assert not configs(data)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"direction": "weights"}, "is for direction|makes no gradients|it is a gradient"),
        ({"stride": (1, 2)}, "are no patches side by side"),
        ({"filter": (2, 4), "stride": (2, 4)}, "has 4 taps, not 2"),
        ({"filter": (2, 3), "stride": (2, 3), "spatial": (24, 33)}, "a power of two, not 3"),
        ({"spatial": (24, 33)}, "x has pixels beyond the last window"),
        ({"pad": (2, 0)}, "patches of a padded image"),
        ({"groups": 2}, "patches of groups are not one row"),
        ({"epilogue": "bias"}, "is for epilogue|reads a value for each channel"),
        ({"x_strides": ()}, "neighbouring pixels of x do not lie side by side"),
        ({"w_strides": ()}, "elements of a filter do not lie"),
        ({"y_strides": ()}, "the pixels of y do not lie behind one another"),
        ({"n": 0}, "there are no patches"),
    ],
    ids=str,
)
def test_what_is_refused(fields, why):
    data = replace(HALVED, direction="data")
    c = replace(configs(data)[0], alignment=1, alignment_out=1)
    if {*fields} & {"x_strides", "w_strides", "y_strides"}:
        other = replace(data, **fields)
    else:
        other = replace(data, x_strides=(), w_strides=(), y_strides=(), **fields)
        other = replace(other, **first_strides(other))
    verdict = FAMILY.supports(c, other, SM_90)
    assert not verdict and re.search(why, verdict.reason), verdict


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"spread": 0}, "has 2 to 16 taps, a power of two, not 0"),
        ({"spread": 3}, "has 2 to 16 taps, a power of two, not 3"),
        ({"spread": 32}, "has 2 to 16 taps, a power of two, not 32"),
        ({"direction": "weights"}, "makes no gradients of weights"),
        ({"merged": True}, "always takes whole lines"),
        ({"scheduler": "persistent"}, "is for pipelines that copy boxes"),
    ],
    ids=str,
)
def test_what_cannot_be_built(fields, why):
    c = configs(replace(HALVED, direction="data"))[0]
    assert why in FAMILY.judge(replace(c, **fields), SM_90).reason


def test_alignment_is_of_runs():
    """Of lines of x with all taps of a window's line, and of y's pixels and the filters."""
    for spatial, direction, found in (
        ((24, 32), "data", (16, 16)),
        ((24, 32), "forward", (16, 16)),
        ((24, 36), "data", (16, 8)),  # lines of 36 elements
        ((10, 20), "data", (4, 8)),  # 50 pixels of y
        ((10, 22), "forward", (4, 2)),  # lines of 22, 55 pixels
    ):
        p = side_by_side(2, 24, 40, spatial, (2, 2), direction=direction)
        assert {(c.alignment, c.alignment_out) for c in configs(p)} == {found}


def test_patches_are_in_place_where_nothing_else_need_be_moved():
    """Unless there is so much to multiply that a product between layout steps is faster."""
    for direction in ("forward", "data"):
        p = side_by_side(8, 72, 136, (88, 104), (2, 2), direction=direction)
        plan = Dispatcher(device=H200, selector="analytical").select(p)
        assert plan.config.pipeline == PIPELINE
        assert len(plan.launch.steps) == 1 and not plan.launch.temporaries
        deep = side_by_side(4, 1024, 2048, (48, 48), (2, 2), direction=direction)
        plan = Dispatcher(device=H200, selector="analytical").select(deep)
        assert plan.config.turned.startswith("p")


ARCHS = selection.architectures(("sm_80", "sm_90", "gfx942", "gfx950", "gfx1201"))


@pytest.mark.turns(20)
@pytest.mark.parametrize("direction", ["forward", "data"])
@pytest.mark.parametrize("name", ARCHS)
def test_hardly_anything_spills_and_images_are_moved_in_vectors(name, direction, store):
    p = side_by_side(8, 96, 192, (96, 64), (2, 2), direction=direction)
    report = build_once([(c, name) for c in configs(p, name)], store)
    for result in report.results:
        assert result.kernel is not None, result.reason
        assert result.kernel.resources.spill_bytes <= 16
        text = inspect(result.kernel, store, "ptx" if name[:2] == "sm" else "amdgcn")
        wide = (
            r"cp\.async\.c\S+ .*0x10|ld\.global\S*v4"
            if name[:2] == "sm"
            else r"load_(dwordx4|b128)"
        )
        assert re.search(wide, text), result.name
        if direction == "data":
            wide = r"st\.global\.v4" if name[:2] == "sm" else r"store_(dwordx4|b128)"
            assert re.search(wide, text), result.name
