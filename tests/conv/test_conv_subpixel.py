"""Gradients of images of few channels, in blocks of pixels: right in the interpreter, what the
rules refuse, and what is built."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from packed_cases import FAMILY, OF_DATA, STEM, configs

import selection
from shared_builds import build_once
from tilewright import verify
from tilewright.arch import arch
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem, subpixel
from tilewright.ops.conv.pipelines.subpixel import FILTERS, PIPELINE
from tilewright.ops.nouns import MAIN

SM_90 = arch("sm_90")


def of_subpixel(p: ConvProblem, name: str = "sm_90"):
    return configs(p, name, PIPELINE)


@pytest.mark.turns(48)
@pytest.mark.parametrize(("number", "case"), [*enumerate(OF_DATA)])
def test_it_is_right(number, case):
    p = OF_DATA[case]
    c = of_subpixel(p)[number % 2]
    result = verify.verify(Dispatcher(device="h200_sxm"), p, c.name, seed=number)
    assert result.ok, f"{c.name}: {result}"


@pytest.mark.parametrize("case", OF_DATA)
def test_a_block_meets_the_pixels_that_its_own_meet_through_a_tap(case):
    """The range holds every pixel of y that one of the block's pixels meets, and is no longer."""
    p = OF_DATA[case]
    of = subpixel.blocks(p)
    for dim, size, first, met in zip(p.three, of.sizes, of.first, of.met, strict=True):
        assert size % dim.stride == 0
        through = {
            (pixel + dim.pad - tap * dim.dilation) // dim.stride
            for pixel in range(size)
            for tap in range(dim.filter)
            if (pixel + dim.pad - tap * dim.dilation) % dim.stride == 0
        }
        assert through <= {*range(first, first + met)}
        if dim.dilation == 1 and dim.filter >= dim.stride:
            assert {min(through), max(through)} == {first, first + met - 1}
    assert of.columns >= p.c * math.prod(of.sizes)


def test_sizes_of_blocks():
    stem = replace(STEM, direction="data")
    assert subpixel.blocks(stem) == subpixel.Blocks((1, 2, 4), (0, -1, -1), (1, 4, 5), 32)
    plain = ConvProblem(1, 3, 64, (32, 32), (3, 3), pad=(1, 1), direction="data")
    assert subpixel.blocks(plain) == subpixel.Blocks((1, 1, 10), (0, -1, -1), (1, 3, 12), 32)
    patches = ConvProblem(1, 3, 96, (32, 32), (4, 4), stride=(4, 4), direction="data")
    assert subpixel.blocks(patches).columns == 64


@pytest.mark.parametrize(
    ("spatial", "rows", "side_by_side"),
    [((224, 224), 128, 8), ((224, 64), 64, 16), ((320,), 128, 128)],
    ids=str,
)
def test_a_tile_has_as_many_lines_as_leave_few_rows_empty(spatial, rows, side_by_side):
    """56 blocks of 4 pixels are seven times eight, and 16 such blocks fill one line."""
    rank = len(spatial)
    p = ConvProblem(
        1, 3, 64, spatial, (7,) * rank, stride=(2,) * rank, pad=(3,) * rank, direction="data"
    )
    assert subpixel.across(p, rows) == side_by_side


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"direction": "forward"}, "no gradient of the data"),
        ({"c": 9}, "9 channels in 1 groups, not up to 8 in one"),
        ({"c": 64, "groups": 64}, "64 channels in 64 groups, not up to 8 in one"),
        ({"n": 0}, "an array has no elements"),
        ({"c": 8, "stride": (5, 5), "filter": (5, 5)}, "has 256 columns, over 128"),
        ({"c": 1}, "a block of pixels takes a tile of .* columns, not"),
    ],
    ids=str,
)
def test_what_is_refused(fields, why):
    p = replace(STEM, direction="data")
    config = of_subpixel(replace(p, stride=(4, 4)))[0]
    other = replace(p, **fields)
    config = replace(config, direction=other.direction)
    refusal = FAMILY.supports(config, other, SM_90)
    assert not refusal
    assert re.search(why, str(refusal))


def test_every_space_of_a_gradient_of_few_channels_has_it():
    few, many = (replace(STEM, direction="data", c=c) for c in (3, 16))
    for p, has in ((few, True), (many, False), (STEM, False)):
        configs = FAMILY.default_space(p, SM_90).expand(SM_90).configs
        assert (PIPELINE in {c.pipeline for c in configs}) is has


BUILT = ConvProblem(32, 3, 64, (224, 224), (7, 7), stride=(2, 2), pad=(3, 3), direction="data")
ARCHS = selection.architectures(
    ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950", "gfx1201")
)


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", ARCHS)
def test_nothing_spills_and_y_is_read_in_vectors(name, store):
    report = build_once([(c, name) for c in of_subpixel(BUILT, name)], store)
    assert {r.kernel.part for r in report.results} == {FILTERS, MAIN}
    for result in report.results:
        assert result.ok and result.kernel.resources.spill_bytes == 0, result
        if name == "sm_90" and result.kernel.part == MAIN:
            text = inspect(result.kernel, store, "ptx")
            assert re.search(r"ld\.global\.v4\.b32|cp\.async\.c[ag]\..*, 0x10, ", text), result.name
