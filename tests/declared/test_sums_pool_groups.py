"""Groups of windows that lanes of pooling make together: every form of them gives what windows by
themselves give, on sizes that tiles and vectors do not divide, and reads as wide as it may."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.compile import build, inspect
from tilewright.declared.sums import _pixel_groups, _pool_groups
from tilewright.declared.sums.kernels import pool as kernels
from tilewright.dispatch import Dispatcher

POOL, BACKWARD = ops.family("pool"), ops.family("pool_backward")
H200 = arch("sm_90")
PLANES = {"images": 3, "depth": 1, "height": 9, "channels": 1}
PIXELS = {"images": 2, "depth": 1, "height": 8, "width": 7}
THREE = {"kernel_h": 3, "kernel_w": 3, "pad_h": 1, "pad_w": 1}
TWICE = {"stride_h": 2, "stride_w": 2}
MEAN = {"mode": "average", "include_pad": False}
THIRTEEN = {"kernel_h": 13, "kernel_w": 13, "pad_h": 6, "pad_w": 6}
VIDEO = {"depth": 5, "kernel_d": 3, "stride_d": 2, "pad_d": 1}
FORMS = (
    # Vectors of 8 and 2 pixels, with windows that reach beyond them on the left, on both sides and
    # on the right; lines of results that are no vectors.
    {**PLANES, "width": 24, **THREE, **TWICE},
    {**PLANES, "width": 24, **THREE, **TWICE, "index": True},
    {**PLANES, "width": 22, **THREE, **TWICE, "dtype": "fp16", "index": True, "mode": "min"},
    {**PLANES, "width": 16, **THREE, "dtype": "fp32", **MEAN},
    {**PLANES, "width": 16, "kernel_h": 2, "kernel_w": 4, "stride_w": 2, "over_w": 1, **MEAN},
    {**PLANES, "width": 24, "kernel_w": 3, "dilation_w": 3, "dilation_h": 2, "kernel_h": 2},
    {**PLANES, "width": 32, **THREE, **TWICE, "dtype": "int8", "index": True},
    {**PLANES, **VIDEO, "width": 12, **THREE, **TWICE},
    {**PLANES, "width": 24, "kernel_h": 5, "kernel_w": 5, "stride_w": 4, "pad_w": 2, **MEAN},
    # Pixels one by one: odd lines, strides that vectors do not have.
    {**PLANES, "width": 21, **THREE, **TWICE, "index": True},
    {**PLANES, "width": 24, "kernel_w": 4, "stride_w": 3, "kernel_h": 3, **MEAN},
    # Channels in eights, in twos, and odd.
    {**PIXELS, "channels": 24, **THREE, **TWICE, "index": True},
    {**PIXELS, "channels": 6, **VIDEO, **THREE, **TWICE, "dtype": "fp16"},
    {**PIXELS, "channels": 5, "kernel_h": 5, "kernel_w": 6, "pad_h": 2, "pad_w": 3, **MEAN},
    {**PIXELS, "channels": 3, **THREE, "dilation_h": 2, "mode": "min", "dtype": "fp32"},
    {**PIXELS, "channels": 12, "kernel_h": 2, "kernel_w": 2, "dtype": "int8"},
    # Vectors of 8 pixels that are read in pieces of 4.
    {**PLANES, "width": 12, "kernel_w": 4, "stride_w": 2, "pad_w": 2, "kernel_h": 2, **MEAN},
    # Windows whose lines are gone through in a loop.
    {**PIXELS, "height": 14, "width": 13, "channels": 5, **THIRTEEN, "index": True},
    {
        **THIRTEEN,
        **MEAN,
        "images": 1,
        "depth": 3,
        "height": 14,
        "width": 13,
        "channels": 4,
        "kernel_d": 2,
    },
    {**PLANES, "height": 14, "width": 16, **THIRTEEN, "mode": "min"},
)


ARRIVING = (
    *(one for one in FORMS if one.get("dtype") != "int8"),
    # One window for several pixels; pixels in no window; more windows than are unrolled.
    {**PIXELS, "channels": 8, "kernel_h": 2, "kernel_w": 2, **TWICE},
    {**PLANES, "width": 24, "kernel_h": 1, "kernel_w": 1, "stride_h": 3, "stride_w": 4},
    {**PLANES, "width": 25, "kernel_h": 3, "kernel_w": 3, "stride_h": 3, "stride_w": 3, "pad_h": 1},
    {**PIXELS, "channels": 3, "kernel_h": 8, "kernel_w": 7, "pad_h": 4, "pad_w": 3},
    # Fewer windows than a pixel may be in: of whole images, and almost.
    {**PIXELS, "channels": 8, "kernel_h": 8, "kernel_w": 7, **MEAN},
    {**PIXELS, "channels": 3, "kernel_h": 7, "kernel_w": 4, "stride_w": 2, **MEAN},
    {**PIXELS, "channels": 3, "kernel_h": 5, "kernel_w": 3, "dilation_w": 2, "stride_h": 2},
    {**PLANES, "width": 9, "kernel_h": 9, "kernel_w": 9, **MEAN},
)


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def configs(family, problem):
    """A config of every form, with the smallest tile that it has."""
    found = {}
    for one in family.default_space(problem, H200).expand(H200).configs:
        if one.num_warps == 4 and one.alignment == 16 and family.supports(one, problem, H200):
            form = (
                one.VECTOR,
                one.PIECE,
                one.LEFT,
                one.DOWN,
                one.ACROSS,
                getattr(one, "LOOPED", None),
            )
            found.setdefault(form, one)
    return found


@pytest.mark.turns(48)
@pytest.mark.grid(2)
@pytest.mark.parametrize("fields", FORMS, ids=str)
def test_every_form_is_right(fields, dispatcher):
    problem = POOL.problem_type(**{"dtype": "bf16", **fields})
    forms = configs(POOL, problem)
    assert any(one.DOWN * one.ACROSS > 1 for one in forms.values())
    for config in forms.values():
        result = verify.verify(dispatcher, problem, config.name, seed=1)
        assert result.ok, (config.name, result)


@pytest.mark.turns(48)
@pytest.mark.grid(2)
@pytest.mark.parametrize("fields", ARRIVING, ids=str)
def test_every_form_of_the_gradient_is_right(fields, dispatcher):
    known = {name: value for name, value in fields.items() if name != "index"}
    placed = fields.get("mode") != "average"
    problem = BACKWARD.problem_type(**{"dtype": "bf16", **known, "has_index": placed})
    forms = configs(BACKWARD, problem)
    assert forms
    for config in forms.values():
        result = verify.verify(dispatcher, problem, config.name, seed=1)
        assert result.ok, (config.name, result)


@pytest.mark.parametrize("lies", ["first", "last"])
def test_ties_nan_and_infinities_of_groups(lies):
    """Places are torch's where windows of a group share what decides them."""
    import tilewright as tw

    x = torch.randint(0, 3, (2, 8, 9, 16), generator=torch.Generator().manual_seed(1)).float()
    x[0, 1] = -float("inf")
    x[0, 2, 3:6, 4:11] = float("nan")
    x[1, ::2, ::3, ::5] = float("nan")
    if lies == "last":
        x = x.contiguous(memory_format=torch.channels_last)
    for words in ({"stride": 2, "padding": 1}, {"stride": 1, "padding": 1}, {"stride": 1}):
        made = tw.max_pool2d(x, 3, **words, return_indices=True)
        wanted = F.max_pool2d(x, 3, **words, return_indices=True)
        for one, other in zip(made, wanted, strict=True):
            assert torch.equal(one.double().nan_to_num(9.0), other.double().nan_to_num(9.0))
        assert torch.equal(tw.max_pool2d(x, 3, **words).isnan(), wanted[0].isnan())


def test_workgroups_that_follow_one_another_share_lines(dispatcher):
    """Tiles of one line, which is wider than a tile."""
    problem = POOL.problem_type(**{**PLANES, "width": 158, **THREE, **TWICE}, dtype="bf16")
    config = replace(dispatcher.select(problem).config, FAST=4)
    neighbours, rows, _ = _pool_groups.fast(problem, config)
    (step,) = POOL.launch(config, problem, device("h200_sxm")).steps
    assert neighbours > config.FAST
    assert step.grid == (-(-neighbours // 4) * -(-rows // config.ROWS), 1, 1)


def test_which_vectors_are_read():
    def read(**fields):
        problem = POOL.problem_type(**{**PLANES, **THREE, **TWICE, "dtype": "bf16", **fields})
        return {
            (f["VECTOR"], f["PIECE"], f["ACROSS"], f["STORED"]) for f in _pool_groups.forms(problem)
        }

    assert read(width=112) == {(8, 8, 4, 4)}
    assert read(width=112, dtype="fp32") == {(4, 4, 2, 2)}
    assert read(width=158) == {(8, 2, 4, 1)}
    assert read(width=104, pad_w=0) == {(8, 8, 4, 1)}  # 51 results a line
    assert read(width=6) == {(4, 2, 2, 1)}  # no vector has more than a line
    assert {vector for vector, *_ in read(width=113)} == {1}
    assert {vector for vector, *_ in read(width=112, stride_w=3)} == {1}
    assert {vector for vector, *_ in read(width=112, alignment=1)} == {1}
    assert {vector for vector, *_ in read(width=9, channels=54)} == {2}


def test_how_many_windows_are_made_together():
    def groups(**fields):
        problem = POOL.problem_type(**{**PIXELS, "channels": 5, "dtype": "bf16", **fields})
        return {(f["DOWN"], f["ACROSS"]) for f in _pool_groups.forms(problem)}

    apart = {"kernel_h": 2, "kernel_w": 2, **TWICE}
    assert groups(**apart) == {(1, 1)}
    assert groups(**THREE) == {(1, 1), (1, 2), (1, 4), (2, 1), (4, 1), (2, 2), (4, 4)}
    assert groups(**{**apart, "stride_h": 1}) == {(1, 1), (2, 1), (4, 1)}
    # Windows of the whole image, and windows with more elements than are unrolled.
    assert groups(kernel_h=8, kernel_w=7) == {(1, 1)}
    assert groups(height=40, width=40, kernel_h=13, kernel_w=13) == {(1, 1), (1, 2), (1, 4)}
    assert groups(height=40, width=99, kernel_h=2, kernel_w=70) == {(1, 1)}
    for name in ("UNROLLED", "MOST_READ"):
        assert getattr(kernels, name).value == getattr(_pool_groups, name)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"VECTOR": 16, "PIECE": 16}, "PIECE = 16 does not divide the pixels of a line"),
        ({"PIECE": 4, "VECTOR": 2}, "vectors of 2 are not read in pieces of 4"),
        ({"ACROSS": 2, "STORED": 2}, "ACROSS = 2 by 2 are not VECTOR = 8"),
        ({"LEFT": 0}, "LEFT = 0, the padding is 1"),
        ({"STORED": 8}, "STORED = 8 does not divide"),
        ({"ROWS": 128, "FAST": 16}, "results for each lane"),
        ({"FIRST": False}, "one channel is last"),
    ],
)
def test_groups_that_are_not_for_a_problem(changes, says, dispatcher):
    problem = POOL.problem_type(
        **{**PLANES, "images": 99, "width": 24, **THREE, **TWICE, "dtype": "bf16"}
    )
    config = replace(dispatcher.select(problem).config, **changes)
    assert says in POOL.supports(config, problem, H200).reason


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"VECTOR": 16, "PIECE": 16}, "PIECE = 16 does not divide the pixels of a line"),
        ({"ACROSS": 4}, "ACROSS = 4 is not VECTOR = 8"),
        ({"LEFT": 0}, "LEFT = 0, the padding is 1"),
        ({"DOWN": 3}, "3 by 8 pixels, which are no multiples"),
        ({"VECTOR": 1, "PIECE": 1}, "LEFT = 1 belongs to vectors"),
    ],
)
def test_groups_of_pixels_that_are_not_for_a_problem(changes, says, dispatcher):
    problem = BACKWARD.problem_type(
        **{**PLANES, "images": 99, "width": 24, **THREE, **TWICE, "dtype": "bf16"}, has_index=True
    )
    config = replace(dispatcher.select(problem).config, **changes)
    assert says in BACKWARD.supports(config, problem, H200).reason


def test_reads_of_a_group_are_counted_once():
    problem = POOL.problem_type(
        images=1, depth=1, height=20, width=20, channels=3, dtype="bf16", kernel_h=7, kernel_w=7
    )
    assert _pool_groups.reads(problem, 1, 1) == 49
    assert _pool_groups.reads(problem, 4, 4) == 100
    assert _pixel_groups.reads(problem, 1, 1) == 49
    assert _pixel_groups.reads(problem, 2, 2) == 64


def test_vectors_come_apart_and_together_again():
    assert [kernels.turned.fn(n, 8) for n in range(8)] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert sorted(kernels.turned.fn(n, 16) for n in range(16)) == [*range(16)]


WIDE = {
    "pixels": ({**PLANES, "images": 999, "width": 112, "height": 112, **THREE, **TWICE}, "v4"),
    "pixels in twos": ({**PLANES, "images": 999, "width": 158, **THREE, **TWICE}, "b32"),
    "channels in twos": ({**PIXELS, "images": 999, "channels": 54, **THREE, **TWICE}, "b32"),
    "channels": ({**PIXELS, "images": 999, "channels": 64, **THREE, **TWICE}, "v4"),
}


@pytest.mark.turns(48)
@pytest.mark.parametrize("which", WIDE)
def test_reads_are_vectors_and_nothing_passes_through_shared_memory(which, dispatcher, store):
    fields, vector = WIDE[which]
    config = dispatcher.select(POOL.problem_type(**fields, dtype="bf16")).config
    (result,) = build([(config, "sm_90")], store=store, workers=1).results
    ptx = inspect(result.kernel, store, "ptx")
    reads = re.findall(r"ld\.global[.\w]*", ptx)
    assert any(vector in one.split(".") for one in reads), {*reads}
    # Single results of a group go to lanes beside each other, which write neighbours.
    assert (result.kernel.shared == 0) == (config.STORED == config.ACROSS or not config.FIRST)
    assert result.kernel.resources.spill_bytes == 0


@pytest.mark.turns(96)
@pytest.mark.parametrize(
    "target", ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "gfx1201"]
)
@pytest.mark.parametrize("fields", [FORMS[1], FORMS[13]], ids=["pixels", "channels"])
def test_groups_are_built(fields, target, dispatcher, store):
    known = {name: value for name, value in fields.items() if name != "index"}
    for problem in (
        POOL.problem_type(**{"dtype": "bf16", **fields}),
        BACKWARD.problem_type(dtype="bf16", **known, has_index="mode" not in fields),
    ):
        config = dispatcher.select(problem).config
        assert config.DOWN * config.ACROSS > 1
        build([(config, target)], store=store, workers=1).raise_if_failed()


@pytest.mark.turns(48)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942", "gfx1201"])
def test_lines_in_a_loop_are_built(target, dispatcher, store):
    config = dispatcher.select(POOL.problem_type(**FORMS[-1], dtype="bf16")).config
    assert config.VECTOR == config.ACROSS == 8
    build([(config, target)], store=store, workers=1).raise_if_failed()


@pytest.mark.turns(96)
@pytest.mark.parametrize("target", ["gfx942", "gfx1201"])
@pytest.mark.parametrize("fields", [FORMS[1], FORMS[-1]], ids=["groups", "lines in a loop"])
def test_vectors_of_pixels_are_right_in_emulation(fields, target, store):
    emulated = Dispatcher(device=f"emulated:{target}", store=store)
    known = {name: value for name, value in fields.items() if name != "index"}
    for problem in (
        POOL.problem_type(**{"dtype": "bf16", **fields}),
        BACKWARD.problem_type(**{"dtype": "bf16", **known}, has_index=True),
    ):
        result = verify.verify(emulated, problem)
        assert result.ok and not result.findings, result
