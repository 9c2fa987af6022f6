"""Pipeline ``planes``: depthwise filters over small channels-first images, as matrices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import selection
from shared_builds import build_once
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem, planes
from tilewright.ops.conv.launch import context
from tilewright.ops.conv.stated import first_strides
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("conv")
DIRECTIONS = ("forward", "data", "weights")
ARCHS = ("sm_90", "gfx942", "gfx950", "gfx1201")


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def layer(direction, n, c, spatial, filter, stride=(), pad=(), **said):
    """A channels-first problem, with a bias where there can be one."""
    said = {"epilogue": "" if direction == "weights" else "bias", **said}
    p = ConvProblem(
        n, c, c, spatial, filter, c, stride=stride, pad=pad, direction=direction, **said
    )
    return replace(p, **first_strides(p))


def kernels(p, name="sm_90"):
    space = FAMILY.default_space(p, arch(name)).expand(arch(name))
    return [c for c in space.configs if c.pipeline == "planes"]


def serving(p):
    found = [c for c in kernels(p) if FAMILY.supports(c, p, arch("sm_90"))]
    assert found
    return found


CASES = (
    # Images, channels, pixels, taps, stride, padding: whole images and parts of one or some lines.
    (19, 3, (7, 7), (3, 3), (), (1, 1)),
    (3, 5, (14, 14), (5, 5), (), (2, 2)),
    (2, 3, (9, 11), (3, 4), (2, 3), (1, 2)),
    (2, 2, (15, 12), (5, 3), (2, 2), (2, 1)),
    (17, 2, (4, 3), (4, 3), (), ()),
    # Pixels that no tap meets, and taps that meet padding alone.
    (2, 3, (10, 9), (1, 2), (3, 4), ()),
    (2, 2, (5, 6), (3, 3), (), (4, 3)),
    (3, 2, (5, 7), (2, 2), (2, 2), (-1, 1)),
    # Lines alone.
    (3, 4, (21,), (5,), (2,), (3,)),
    (2, 3, (1, 6, 5), (1, 3, 3), (), (0, 1, 1)),
)


@pytest.mark.grid(1)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_results_are_the_references(dispatcher, direction, case):
    for dtype in ("bf16", "fp16"):
        p = layer(direction, *case, dtype=dtype)
        found = serving(p)
        for number, c in enumerate((found[0], found[len(found) // 2], found[-1])):
            assert (seen := verify.verify(dispatcher, p, c.name, seed=number)).ok, (p, c.name, seen)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_channels_and_images_may_lie_apart(dispatcher, direction):
    p = layer(direction, 3, 4, (6, 7), (3, 3), (), (1, 1))
    p = replace(
        p, x_strides=(300, 50, 7, 1), y_strides=(211, 42, 7, 1), w_strides=(17, 17, 4, 1),
        epilogue="" if direction == "weights" else "scale+add",
    )  # fmt: skip
    for bits in (32, 64):
        c = replace(serving(p)[0], index_bits=bits)
        assert verify.verify(dispatcher, p, c.name).ok


@pytest.mark.parametrize("direction", ["forward", "data"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_stays_with_those_who_see_it(dispatcher, direction, value):
    """Zeros of the matrix would spread it over all elements of a part."""
    p = layer(direction, 3, 2, (7, 7), (3, 3), (), (1, 1), epilogue="")
    operands = verify.operands_of(p, 1)
    source, made = ("x", "y") if direction == "forward" else ("y", "x")
    operands.inputs[source][1, 1, 0, 3] = value
    verify.run(dispatcher, p, operands, serving(p)[-1].name)
    bad = ~np.isfinite(operands.outputs[made].astype(np.float64))
    assert bad[1, 1, :2, 2:5].all() and bad.sum() == 6


def test_parts_of_images():
    """As many lines as fit; under a stride, the gradient of the data has whole steps of them."""
    p = layer("forward", 1, 1, (14, 14), (5, 5), (), (2, 2))
    assert planes.parts(p, 64, 128) == planes.Parts(
        4, 56, 112, -28, 56, (1, -1, 0), (1, -1, 2)
    )  # fmt: skip
    assert planes.parts(p, 64, 64) is None
    strided = layer("data", 1, 1, (14, 14), (3, 3), (2, 2), (1, 1))
    found = planes.parts(strided, 64, 64)
    assert (found.rows, found.window, found.chunks) == (56, 21, 4)
    assert planes.parts(strided, 14, 64) is None


def test_gradients_repeat_bit_for_bit(dispatcher):
    p = layer("weights", 40, 3, (7, 7), (3, 3), (), (1, 1))
    c = next(c for c in serving(p) if c.scheduler == "split" and c.tile_m == 16)
    assert context(c, p, device("h200_sxm")).splits > 1
    first, again = (verify.operands_of(p, 3) for _ in "ab")
    for made in (first, again):
        verify.run(dispatcher, p, made, c.name)
    assert np.array_equal(first.outputs["w"], again.outputs["w"])


@pytest.mark.parametrize("name", ["sm_80", *ARCHS])
def test_spaces(name):
    for direction in DIRECTIONS:
        p = layer(direction, 32, 64, (7, 7), (3, 3), (), (1, 1))
        found = kernels(p, name)
        assert found and all(FAMILY.supports(c, p, arch(name)) for c in found)
        last = replace(p, x_strides=(), y_strides=(), w_strides=())
        assert not kernels(last, name) and "side by side" in planes.refusal(last)
        assert not kernels(layer(direction, 2, 8, (200, 200), (3, 3), (), (1, 1)), name)
        assert not kernels(replace(p, dtype="fp32", dtype_out=""), name)
        assert not kernels(replace(p, dilation=(2, 2), pad=(2, 2)), name)
        assert not kernels(replace(p, groups=1), name)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("size", [7, 14])
def test_small_images_are_neither_turned_nor_made_on_the_vector_units(direction, size):
    p = layer(direction, 128, 336, (size, size), (3, 3), (), (1, 1), epilogue="")
    chosen = Dispatcher(device="h200_sxm", selector="analytical").select(p).config
    assert (chosen.pipeline, chosen.turned) == ("planes", "")


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", selection.architectures(ARCHS))
def test_nothing_spills(name, store):
    some = []
    for direction in DIRECTIONS:
        found = kernels(layer(direction, 128, 64, (7, 7), (3, 3), (), (1, 1)), name)
        some += [max(found, key=lambda c: c.tile_m * c.tile_n * c.tile_k)]
    for result in build_once([(c, name) for c in some], store).results:
        assert result.ok, result
        if result.part == MAIN:
            assert result.kernel.resources.spill_bytes == 0, result
