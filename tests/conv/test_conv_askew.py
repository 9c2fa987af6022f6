"""Pipeline ``askew``: 1×1 layers, channels-first, whose rows of pixels are no whole 16 bytes."""

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
from tilewright.ops.conv import ConvProblem, askew
from tilewright.ops.conv.launch import context
from tilewright.ops.conv.pipelines.askew import ASKEW
from tilewright.ops.conv.stated import first_strides
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("conv")
DIRECTIONS = ("forward", "data", "weights")
ARCHS = ("sm_90", "gfx942", "gfx950", "gfx1201")


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def layer(direction, n, c, k, spatial, **said):
    """A channels-first problem, with a bias where there can be one."""
    said = {"epilogue": "" if direction == "weights" else "bias+relu", **said}
    p = ConvProblem(n, c, k, spatial, (1,) * len(spatial), direction=direction, **said)
    return replace(p, **first_strides(p))


def kernels(p, name="sm_90"):
    space = FAMILY.default_space(p, arch(name)).expand(arch(name))
    return [c for c in space.configs if c.pipeline == "askew"]


def kernel(p, **fields):
    """Of a small tile that most sizes are no multiples of."""
    read, made = ASKEW.alignments(p)
    said = {
        "direction": p.direction, "spatial_dims": len(p.spatial), "dtype": p.dtype,
        "dtype_out": p.dtype_out, "epilogue": p.epilogue, "precision": p.precision,
        "alignment": read, "alignment_out": made, "tile_m": 32, "tile_n": 16, "tile_k": 16,
        "group_m": 1, "num_warps": 4, "num_stages": 2, "pipeline": "askew", **fields,
    }  # fmt: skip
    config = FAMILY.make_config({**FAMILY.axes(), **said}, arch("sm_90"))
    assert (verdict := FAMILY.supports(config, p, arch("sm_90"))), verdict
    return config


CASES = (
    # Images, channels, filters, pixels: rows of 2, 4 and 8 bytes' multiples, and of one pixel.
    (3, 24, 21, (7, 7)),
    (2, 40, 35, (6, 15)),
    (2, 16, 48, (14, 14)),
    (2, 8, 5, (157,)),
    (1, 56, 17, (3, 5, 7)),
    (5, 24, 3, (1,)),
    (2, 8, 24, (6, 16)),
)


@pytest.mark.grid(1)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32"])
def test_results_are_the_references(dispatcher, direction, case, dtype):
    said = {"dtype": "fp32", "precision": "tf32"} if dtype == "tf32" else {"dtype": dtype}
    p = layer(direction, *case, **said)
    for number, scheduler in enumerate(("tile", "split") if direction == "weights" else ("tile",)):
        for bits in (32, 64):
            c = kernel(p, scheduler=scheduler, index_bits=bits)
            found = verify.verify(dispatcher, p, c.name, seed=number)
            assert found.ok, (p, c.name, found)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_channels_and_images_may_lie_apart(dispatcher, direction):
    """Views of longer arrays, and an epilogue with an array."""
    p = layer(direction, 3, 24, 8, (5, 9))
    p = replace(
        p, x_strides=(24 * 61, 61, 9, 1), y_strides=(2048, 47, 9, 1), w_strides=(32, 1, 1, 1),
        epilogue="" if direction == "weights" else "scale+add",
    )  # fmt: skip
    assert verify.verify(dispatcher, p, kernel(p).name).ok


@pytest.mark.turns(6)
def test_parts_are_added_whether_few_or_many(dispatcher):
    """By one of two kernels, of which a launch has the one that suits."""
    for n, parts, adds in ((9, 18, "totals"), (101, 132, "many_totals")):
        p = layer("weights", n, 24, 10, (3, 7))
        c = kernel(p, scheduler="split")
        assert context(c, p, device("h200_sxm")).splits == parts
        launch = FAMILY.launch(c, p, device("h200_sxm"))
        assert [step.part for step in launch.steps] == [MAIN, adds]
        assert verify.verify(dispatcher, p, c.name).ok
        first, again = (verify.operands_of(p, 3) for _ in "ab")
        for made in (first, again):
            verify.run(dispatcher, p, made, c.name)
        assert np.array_equal(first.outputs["w"], again.outputs["w"])


def test_what_is_infinite_stays_in_its_pixel(dispatcher):
    """Behind a row's last pixel lies the next row's first, which is no part of the sums."""
    p = layer("forward", 2, 16, 8, (49,), epilogue="")
    operands = verify.operands_of(p, 1)
    operands.inputs["x"][1, 5, 0] = math.inf
    verify.run(dispatcher, p, operands, kernel(p).name)
    bad = ~np.isfinite(operands.outputs["y"].astype(np.float64))
    assert bad[1, :, 0].all() and bad.sum() == 8


@pytest.mark.parametrize(("c", "k", "direction"), [
    (8, 24, "forward"), (24, 16, "forward"), (48, 8, "data"), (16, 24, "data"), (8, 24, "weights"),
])  # fmt: skip
def test_few_channels_of_whole_rows_are_one_step_of_a_tile(dispatcher, c, k, direction):
    """Most of a step of GEMM's kernels would be empty, and its loads are waited for."""
    p = layer(direction, 64, c, k, (80, 80), epilogue="")
    chosen = Dispatcher(device="h200_sxm", selector="analytical").select(p).config
    assert (chosen.pipeline, chosen.turned, chosen.alignment) == ("askew", "", 16)
    summed = {"forward": c, "data": k, "weights": 6400}[direction]
    assert (chosen.num_stages, chosen.tile_k >= summed) == ((1, True), (4, False))[
        direction == "weights"
    ]
    small = layer(direction, 2, c, k, (9, 32), epilogue="")
    assert verify.verify(dispatcher, small, chosen.name).ok


@pytest.mark.parametrize("direction", ["forward", "data"])
def test_many_channels_of_whole_rows_are_gemms(direction):
    assert not kernels(layer(direction, 64, 40, 40, (80, 80), epilogue=""))
    assert kernels(layer(direction, 64, 40, 40, (9, 9), epilogue=""))


def test_steps_of_few_channels_and_filters_are_as_deep_as_memory_is_away():
    few, more = (kernels(layer("weights", 64, 8, k, (80, 80))) for k in (24, 40))
    deep = {(c.tile_m, c.tile_n, c.num_stages) for c in few if c.tile_k == 256}
    assert {(16, 16, 4), (32, 16, 4), (32, 32, 4)} <= deep
    assert max(c.tile_k for c in more) == 64


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["sm_80", *ARCHS])
def test_spaces(name):
    for direction in DIRECTIONS:
        for spatial in ((7, 7), (14, 14), (1001,)):
            p = layer(direction, 8, 64, 48, spatial)
            found = kernels(p, name)
            assert found and all(FAMILY.supports(c, p, arch(name)) for c in found)
        whole = layer(direction, 8, 64, 48, (16, 16))
        assert bool(kernels(whole, name)) == (direction == "weights")
        last = replace(p, x_strides=(), y_strides=(), w_strides=())
        assert not kernels(last, name) and "side by side" in askew.refusal(last)
        assert not kernels(layer(direction, 8, 64, 48, (7, 7), groups=2), name)
        fp32 = layer(direction, 8, 64, 48, (7, 7), dtype="fp32")  # CDNA has instructions for it
        assert bool(kernels(fp32, name)) == (arch(name).cdna is not None)
    odd = layer("forward", 8, 63, 48, (7, 7))
    assert not kernels(odd, name) and "aligned to 2 bytes" in askew.refusal(odd)
    assert kernels(replace(odd, direction="weights", epilogue=""), name)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", [(64, 384, 96, (14, 14)), (8, 256, 128, (4001,))])
def test_nothing_is_turned_where_rows_are_no_whole_16_bytes(dispatcher, direction, case):
    p = layer(direction, *case)
    chosen = Dispatcher(device="h200_sxm", selector="analytical").select(p).config
    assert (chosen.pipeline, chosen.turned) == ("askew", "")
    assert FAMILY.estimate(chosen, p, device("h200_sxm")).total_us > 0


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", selection.architectures(ARCHS))
def test_nothing_spills(name, store):
    some = []
    for direction in DIRECTIONS:
        for spatial in ((14, 14), (1001,)):
            found = kernels(layer(direction, 8, 256, 512, spatial), name)
            some += [max(found, key=lambda c: c.tile_m * c.tile_n * c.tile_k / c.num_warps)]
    for result in build_once([(c, name) for c in some], store).results:
        assert result.ok, result
        if result.part == MAIN:
            assert result.kernel.resources.spill_bytes == 0, result
