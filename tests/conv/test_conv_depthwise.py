"""Windows of depthwise convolutions: those that hold their filter, and those that hold a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import selection
from shared_builds import build_once
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem, windows
from tilewright.ops.conv.launch import context
from tilewright.ops.conv.pipelines import PIPELINES
from tilewright.ops.conv.pipelines.depthwise import FEW_SUMS
from tilewright.ops.conv.stated import first_strides
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("conv")
DIRECTIONS = ("forward", "data", "weights")


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def depthwise(direction, spatial, filter, stride=(), pad=(), pad_after=(), **said):
    """A problem of 12 channels, with a bias where there can be one."""
    epilogue = "" if direction == "weights" else "bias"
    said = {"dtype": "fp16", "epilogue": epilogue, **said}
    return ConvProblem(
        2, 12, 12, spatial, filter, 12, stride=stride, pad=pad, pad_after=pad_after,
        direction=direction, **said,
    )  # fmt: skip


def of_several(count, direction, spatial, filter, **said):
    """The same with so many filters for each channel."""
    p = depthwise(direction, spatial, filter, **said)
    return replace(p, k=count * p.c, w_strides=(), y_strides=())


def kernel(p, **fields):
    """A window for `p`, by default one that holds its filter."""
    read, made = PIPELINES["window"].alignments(p)
    said = {
        "direction": p.direction, "spatial_dims": len(p.spatial), "dtype": p.dtype,
        "dtype_out": p.dtype_out, "epilogue": p.epilogue, "alignment": read,
        "alignment_out": made, "tile_m": 8, "tile_n": 16, "tile_k": 4, "group_m": 1,
        "num_stages": 1, "pipeline": "window", "held": windows.words(p)[0],
        "spread": windows.several(p), **fields,
    }  # fmt: skip
    config = FAMILY.make_config({**FAMILY.axes(), **said}, arch("sm_90"))
    assert FAMILY.supports(config, p, arch("sm_90"))
    return config


CASES = (
    # Rows of strips that end within the image, behind it and in the padding; odd filters.
    ((5, 11), (3, 3), (), (1, 1), ()),
    ((5, 6), (2, 3), (1, 1), (1, 2), (0, -1)),
    ((3, 5), (5, 5), (1, 1), (4, 4), (0, 0)),
    ((6, 3), (1, 4), (1, 1), (0, -1), (2, 4)),
    # Strides, and filters smaller than them.
    ((9, 10), (3, 3), (2, 2), (1, 1), (0, 1)),
    ((7, 9), (2, 1), (4, 2), (3, 1), (1, 2)),
    ((11, 9), (3, 5), (1, 4), (-1, 3), (1, 3)),
    # 1-D, where strips walk along the width; and a depth, which has any stride and dilation.
    ((29,), (4,), (), (3,), (0,)),
    ((21,), (5,), (2,), (2,), (3,)),
    ((3, 4, 5), (2, 3, 2), (2, 1, 1), (1, 1, 0), ()),
)


@pytest.mark.grid(2)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("spatial", "filter", "stride", "pad", "after"), CASES)
def test_a_window_that_holds_its_filter(dispatcher, direction, spatial, filter, stride, pad, after):
    problem = depthwise(direction, spatial, filter, stride, pad, after)
    if len(spatial) == 3:
        problem = replace(problem, dilation=(2, 1, 1), pad_after=problem.pad)
    schedulers = ("tile", "split") if direction == "weights" else ("tile",)
    for scheduler in schedulers:
        found = verify.verify(dispatcher, problem, kernel(problem, scheduler=scheduler).name)
        assert found.ok, (problem, found)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_windows_ask_early_where_registers_are_left(dispatcher, direction):
    """And without are right too, where rows are loaded when they are needed."""
    filter = (3, 8) if direction == "data" else (5, 5)
    problem = depthwise(direction, (9, 10), filter, (2, 2), (1, 1), (0, 1))
    late = kernel(problem, tile_m=16, tile_n=32)
    assert windows.early(kernel(problem)) and not windows.early(late)
    filter = (3, 5) if direction == "data" else (5, 5)
    twice = of_several(2, direction, (9, 10), filter, stride=(2, 2), pad=(1, 1))
    for p, config in ((problem, late), (twice, kernel(twice, tile_m=16, tile_n=32))):
        assert not windows.early(config)
        found = verify.verify(dispatcher, p, config.name)
        assert found.ok, found


ROWS = (
    ((4, 19), (3, 5), (), (1, 2), ()),
    ((3, 10), (2, 31), (2, 1), (1, 15), (0, 15)),
    ((3, 4, 9), (2, 2, 3), (1, 2, 1), (1, 0, 2), (0, 1, 0)),
)


@pytest.mark.grid(1)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("spatial", "filter", "stride", "pad", "after"), ROWS)
def test_a_window_that_holds_a_row(dispatcher, direction, spatial, filter, stride, pad, after):
    problem = depthwise(direction, spatial, filter, stride, pad, after)
    problem = replace(problem, dilation=(1,) * (len(spatial) - 2) + (2, 1), pad_after=problem.pad)
    row = windows.words(problem)[-1]
    assert row == f"{filter[-1]}s1"
    for scheduler in ("tile", "split") if direction == "weights" else ("tile",):
        config = kernel(problem, held=row, tile_k=1, scheduler=scheduler)
        found = verify.verify(dispatcher, problem, config.name)
        assert found.ok, (problem, found)


def test_a_row_with_a_stride(dispatcher):
    """Of x only: the gradient of the data has no such window."""
    for direction in ("forward", "weights"):
        problem = depthwise(direction, (4, 17), (2, 5), (1, 2), (1, 2))
        found = verify.verify(dispatcher, problem, kernel(problem, held="5s2", tile_k=1).name)
        assert found.ok, (problem, found)
    assert windows.words(depthwise("data", (4, 17), (2, 5), (1, 2), (1, 2))) == ("2x5s1x2",)


@pytest.mark.grid(1)
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8", "e4m3fn"])
def test_dtypes_and_channels_first(dispatcher, dtype):
    for direction in DIRECTIONS if dtype in ("bf16", "fp32") else ("forward",):
        plain = depthwise(direction, (4, 5), (3, 2), (), (1, 1), dtype=dtype, epilogue="")
        for problem in (plain, replace(plain, **first_strides(plain))):
            found = verify.verify(dispatcher, problem, kernel(problem).name)
            assert found.ok, (problem, found)


SEVERAL = (
    (2, (5, 11), (3, 3), {"pad": (1, 1)}),
    (3, (9, 10), (3, 2), {"stride": (2, 2), "pad": (1, 0)}),
    (4, (19,), (5,), {"pad": (2,)}),
    (2, (3, 4, 5), (2, 3, 2), {"stride": (2, 1, 1), "pad": (1, 1, 0)}),
)


@pytest.mark.grid(1)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("count", "spatial", "filter", "said"), SEVERAL)
def test_several_filters_of_a_channel(dispatcher, direction, count, spatial, filter, said):
    problem = of_several(count, direction, spatial, filter, **said)
    for held in windows.words(problem):
        down = 1 if windows.is_row(held, len(spatial)) else 4
        config = kernel(problem, held=held, tile_k=down)
        found = verify.verify(dispatcher, problem, config.name)
        assert found.ok, (problem, found)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_numbers_are_the_multiples_that_kernels_were_promised(direction, count):
    """Of five channels of eight filters y's rows are whole 16 bytes, and x's are not."""
    p = ConvProblem(2, 5, 5 * count, (9, 9), (3, 3), 5, pad=(1, 1), direction=direction)
    config = kernel(p)
    source = FAMILY.sources(config, arch("sm_90"))[MAIN]
    step = FAMILY.launch(config, p, device("h200_sxm")).steps[0]
    names = [name for name, kind in source.signature if kind not in ("constexpr", "()")]
    given = dict(zip(names, step.arguments, strict=True))
    for name, multiple in source.divisibility:
        value = getattr(given[name], "value", 0)
        assert value % multiple == 0, (name, value, multiple)


def test_channels_first_and_parts_of_several_filters(dispatcher):
    plain = of_several(2, "weights", (7, 9), (3, 3), pad=(1, 1), dtype="bf16")
    for problem in (plain, replace(plain, **first_strides(plain))):
        config = kernel(problem, scheduler="split", tile_k=1)
        assert context(config, problem, device("h200_sxm")).splits > 1
        found = verify.verify(dispatcher, problem, config.name)
        assert found.ok, (problem, found)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layers_of_several_filters_choose_windows(direction):
    """No other pipeline holds more than one filter of a channel in registers."""
    p = ConvProblem(8, 64, 128, (40, 40), (5, 5), 64, pad=(2, 2), direction=direction)
    chosen = Dispatcher(device="h200_sxm", selector="analytical").select(p).config
    assert (chosen.pipeline, chosen.spread) == ("window", 2)
    assert chosen.tile_m * chosen.tile_n == 32 * chosen.num_warps, "a column for each lane"
    assert FAMILY.parse_name(chosen.name) == chosen


def test_windows_are_for_their_number_of_filters():
    sm_90 = arch("sm_90")
    one, two = depthwise("forward", (5, 11), (3, 3)), of_several(2, "forward", (5, 11), (3, 3))
    for made, other, said in ((one, two, "0 filters"), (two, one, "2 filters")):
        config = replace(kernel(made), alignment=2, alignment_out=2)
        verdict = FAMILY.supports(config, other, sm_90)
        assert not verdict and f"has {said}" in verdict.reason
    verdict = FAMILY.judge(replace(kernel(one), spread=1), sm_90)
    assert not verdict and "0 of one filter" in verdict.reason
    # 128 taps and more: in the gradient of the data a column holds the taps of all its filters.
    many = of_several(6, "data", (9, 9), (5, 5))
    fields = {**FAMILY.axes(), "direction": "data", "pipeline": "window", "spread": 6}
    fields |= {"held": windows.words(many)[0], "group_m": 1, "tile_n": 16, "tile_k": 4}
    verdict = FAMILY.judge(FAMILY.make_config(fields, sm_90), sm_90)
    assert not verdict and "more than 128 taps" in verdict.reason


def test_gradients_of_weights_repeat_bit_for_bit(dispatcher):
    problem = depthwise("weights", (13, 14), (2, 2), pad=(1, 1))
    config = kernel(problem, scheduler="split")
    assert context(config, problem, device("h200_sxm")).splits > 1
    first, again = (verify.operands_of(problem, 3) for _ in "ab")
    for made in (first, again):
        verify.run(dispatcher, problem, made, config.name)
    (one,), (other,) = first.outputs.values(), again.outputs.values()
    assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_steps_of_filters_of_one_tap_have_more_pixels(dispatcher):
    """Nothing else is under way while a step's loads are waited for."""
    p = depthwise("weights", (90,), (1,))
    chosen = Dispatcher(device="h200_sxm", selector="analytical").select(replace(p, n=4096)).config
    assert (chosen.pipeline, chosen.tile_m) == ("depthwise", 1)
    assert chosen.tile_n * chosen.tile_k == FEW_SUMS
    assert verify.verify(dispatcher, p, chosen.name).ok


def test_names_say_what_is_held():
    for held, rank in (("4s1", 1), ("7x7s2x2", 2), ("31s1", 2), ("3x3x3s1x2", 3)):
        problem = depthwise("forward", (40,) * rank, (3,) * rank)
        said = {"spatial_dims": rank, "held": held}
        fields = {**FAMILY.axes(), "pipeline": "window", "dtype": problem.dtype, **said}
        config = FAMILY.make_config(fields, arch("sm_90"))
        assert FAMILY.parse_name(config.name) == config and f"_f{held}" in config.name


# --- what is compiled ----------------------------------------------------------------------------

LAYER = ConvProblem(32, 256, 256, (28, 28), (3, 3), 256, pad=(1, 1))
WIDE = replace(LAYER, filter=(7, 7), pad=(3, 3), direction="weights")
TWICE = [
    ConvProblem(8, 96, 192, (64, 64), (7, 7), 96, stride=(2, 2), pad=(3, 3), direction=direction)
    for direction in DIRECTIONS
]
"""Of two filters for each channel."""
BUILT = {
    "sm_90": (
        replace(LAYER, stride=(2, 2), direction="data"),
        WIDE,
        replace(LAYER, filter=(31, 31), pad=(15, 15)),
        *TWICE,
    ),
    "gfx90a": (TWICE[-1],),
    "gfx942": (WIDE, *TWICE),
    "gfx950": (TWICE[-1],),
    "gfx1201": (WIDE, *TWICE),
}


def requests():
    found = []
    for name, problems in BUILT.items():
        for problem in problems:
            configs = FAMILY.default_space(problem, arch(name)).expand(arch(name)).configs
            found.append((next(c for c in configs if c.pipeline == "window"), name))
    return selection.some(found, 1)


@pytest.fixture(scope="module")
def built(store):
    report = build_once(requests(), store)
    return {(r.arch.name, r.name): r for r in report.results if r.part == MAIN}


@pytest.mark.turns(48)
@pytest.mark.parametrize(("config", "name"), requests(), ids=str)
def test_nothing_spills(config, name, built):
    result = built[name, config.name]
    assert result.kernel is not None, result.reason
    assert result.kernel.resources.spill_bytes == 0


@pytest.mark.parametrize(
    ("filter", "stride", "dilation", "held"),
    [
        ((3, 3), (1, 2), (1, 1), ("3x3s1x2", "3s2")),
        ((3, 3), (3, 1), (1, 1), ("3s1",)),  # a stride that divides no strip
        ((3, 3), (1, 1), (2, 1), ("3s1",)),
        ((3, 3), (1, 1), (2, 2), ()),
        ((8, 16), (1, 1), (1, 1), ("8x16s1x1", "16s1")),  # 128 taps
        ((3, 43), (1, 1), (1, 1), ()),  # 129, and a row of over 32
        ((5, 26), (1, 1), (1, 1), ("26s1",)),  # 130
    ],
)
def test_what_windows_can_hold_of_a_filter(filter, stride, dilation, held):
    p = depthwise("forward", (64, 64), filter, stride, dilation=dilation)
    assert windows.words(p) == held


def test_a_strip_of_one_dimension_reads_a_pixel_for_each_step():
    """Lines lie along the height, so a strip is one pixel wide."""
    c = kernel(depthwise("forward", (40,), (5,), (2,)))
    assert windows.held(c).taps == (1, 5, 1)
    assert (windows.pixels(c), windows.rows(c), windows.products(c)) == (1, 2, 5)
