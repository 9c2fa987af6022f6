"""Pipeline ``direct``: channels-first layers on the vector units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import selection
from shared_builds import build_once
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.launch import context
from tilewright.ops.conv.stated import first_strides

FAMILY = ops.family("conv")
DIRECTIONS = ("forward", "data", "weights")


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def layer(direction, n, c, k, groups, spatial, filter, stride=(), pad=(), **said):
    """A channels-first problem, with a bias where there can be one."""
    epilogue = "" if direction == "weights" else "bias"
    said = {"dtype": "fp16", "epilogue": epilogue, **said}
    problem = ConvProblem(
        n, c, k, spatial, filter, groups, stride=stride, pad=pad, direction=direction, **said
    )
    return replace(problem, **first_strides(problem))


BOXES = {1: ("2x3", "1x3"), 2: ("2x2x2", "1x2x2"), 3: ("2x2x1x2", "1x2x1x2")}
"""Steps that most filters and channels are no multiples of; of gradients of weights."""


def kernel(p, **fields):
    said = {
        "direction": p.direction, "spatial_dims": len(p.spatial), "dtype": p.dtype,
        "dtype_out": p.dtype_out, "epilogue": p.epilogue, "alignment": 1, "alignment_out": 1,
        "tile_m": 32, "tile_n": 4, "tile_k": 1, "group_m": 1, "num_warps": 1, "num_stages": 1,
        "pipeline": "direct", "box": BOXES[len(p.spatial)][p.direction == "weights"], **fields,
    }  # fmt: skip
    config = FAMILY.make_config({**FAMILY.axes(), **said}, arch("sm_90"))
    assert FAMILY.supports(config, p, arch("sm_90"))
    return config


CASES = (
    # Images, channels, filters, groups; sizes of an image and of a filter; stride and padding.
    # Depthwise: images that no tile divides, steps of taps that cross rows and pass the last.
    (3, 5, 5, 5, (5, 7), (3, 3), (), (1, 1)),
    (5, 2, 2, 2, (7, 7), (5, 5), (), (2, 2)),
    (2, 6, 6, 6, (9, 10), (3, 4), (2, 3), (1, 2)),
    # Residue classes without a tap, and filters over the whole image.
    (2, 3, 3, 3, (6, 7), (1, 2), (2, 3), ()),
    (1, 3, 3, 3, (4, 3), (4, 3), (), ()),
    # Several channels and filters of a group; one channel, one filter.
    (2, 6, 4, 2, (5, 4), (2, 3), (), (1, 0)),
    (2, 1, 7, 1, (41,), (10,), (5,), ()),
    (2, 8, 1, 1, (37,), (7,), (), (3,)),
    (3, 16, 2, 1, (5, 8), (1, 1), (), ()),
    # A depth.
    (2, 4, 4, 4, (3, 4, 5), (2, 3, 2), (2, 1, 1), (1, 1, 0)),
)


@pytest.mark.grid(2)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_references(dispatcher, direction, case):
    problem = layer(direction, *case)
    for scheduler in ("tile", "split") if direction == "weights" else ("tile",):
        whole = "x".join(map(str, (1, *problem.filter)))
        for tile in ({}, {"tile_m": 64, "tile_n": 1, "box": whole}):
            found = verify.verify(
                dispatcher, problem, kernel(problem, scheduler=scheduler, **tile).name
            )
            assert found.ok, (problem, found)


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8", "e4m3fn"])
def test_dtypes_layouts_and_dilations(dispatcher, dtype):
    for direction in DIRECTIONS if dtype in ("bf16", "fp32") else ("forward",):
        problem = layer(
            direction, 2, 4, 4, 2, (7, 8), (3, 2), (1, 2), (2, 2), dilation=(2, 3), dtype=dtype,
            epilogue="",
        )  # fmt: skip
        lines = {"x_strides": (1000, 200, 20, 1), "w_strides": ()}
        for one in (problem, replace(problem, **lines)):
            for bits in (32, 64):
                config = kernel(one, index_bits=bits, box="1x3x1")
                found = verify.verify(dispatcher, one, config.name)
                assert found.ok, (one, found)


def test_gradients_of_weights_repeat_bit_for_bit(dispatcher):
    problem = layer("weights", 3, 2, 2, 2, (7, 9), (3, 3), (), (1, 1))
    config = kernel(problem, scheduler="split")
    assert context(config, problem, device("h200_sxm")).splits > 1
    first, again = (verify.operands_of(problem, 3) for _ in "ab")
    for made in (first, again):
        verify.run(dispatcher, problem, made, config.name)
    assert np.array_equal(first.outputs["w"], again.outputs["w"])


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "gfx90a", "gfx942", "gfx1201"])
def test_spaces(name):
    """Of layers whose pixels are neighbours and that have few products for each result."""

    def rows(problem):
        space = FAMILY.default_space(problem, arch(name)).expand(arch(name))
        return [c for c in space.configs if c.pipeline == "direct"]

    for direction in DIRECTIONS:
        depthwise = layer(direction, 8, 32, 32, 32, (14, 14), (3, 3), (), (1, 1))
        few = layer(direction, 8, 16, 2, 1, (14, 14), (1, 1))
        for problem in (depthwise, few):
            found = rows(problem)
            assert found and all(FAMILY.supports(c, problem, arch(name)) for c in found)
            assert not rows(replace(problem, **{f"{name}_strides": () for name in "xwy"}))
        assert not rows(layer(direction, 8, 64, 64, 1, (14, 14), (3, 3), (), (1, 1)))


def test_few_depthwise_images_with_channels_first_are_not_turned(dispatcher):
    for direction in DIRECTIONS:
        problem = layer(direction, 1, 432, 432, 432, (21, 21), (3, 3), (), (1, 1), dtype="bf16")
        assert dispatcher.select(problem).config.pipeline == "direct"


@pytest.mark.turns(12)
@pytest.mark.parametrize("name", selection.architectures(("sm_90", "gfx942", "gfx1201")))
def test_nothing_spills(name, store):
    depthwise = layer("forward", 8, 32, 32, 32, (14, 14), (3, 3), (), (1, 1))
    some = [
        max(
            (c for c in FAMILY.default_space(p, arch(name)).expand(arch(name)).configs
             if c.pipeline == "direct"), key=lambda c: c.tile_m * c.tile_n / c.num_warps,
        )
        for p in (depthwise, replace(depthwise, direction="weights", epilogue=""))
    ]  # fmt: skip
    for result in build_once([(c, name) for c in some], store).results:
        assert result.ok and result.kernel.resources.spill_bytes == 0, result


@pytest.mark.parametrize(
    ("fields", "rule", "says"),
    [
        ({"alignment": 4}, "pipeline", "alignments are 1"),
        ({"group_m": 8}, "pipeline", "group_m and tile_k are 1"),
        ({"merged": True}, "pipeline", "no other step"),
        ({"num_warps": 8}, "tile", "no work for 256 threads"),
        ({"tile_m": 1024, "num_warps": 1}, "tile", "written out, over 256"),
        ({"tile_k": 4}, "pipeline", "steps are boxes"),
        ({"scheduler": "persistent"}, "pipeline", "copy boxes"),
        ({"box": ""}, "pipeline", "such as"),
        ({"box": "3x3"}, "pipeline", "such as"),
        ({"direction": "weights", "epilogue": "", "box": "2x3x3"}, "pipeline", "one channel each"),
    ],
)
def test_what_no_architecture_builds(fields, rule, says):
    said = {"direction": "forward", "dtype": "fp16", "epilogue": "bias", "alignment": 1,
            "alignment_out": 1, "tile_m": 32, "tile_n": 4, "tile_k": 1, "group_m": 1,
            "num_warps": 4, "num_stages": 1, "pipeline": "direct", "box": "1x3x3"}  # fmt: skip
    make = {**FAMILY.axes(), **said}
    assert FAMILY.judge(FAMILY.make_config(make, arch("sm_90")), arch("sm_90"))
    found = FAMILY.judge(FAMILY.make_config({**make, **fields}, arch("sm_90")), arch("sm_90"))
    assert (found.rule, bool(found)) == (rule, False) and says in found.reason
