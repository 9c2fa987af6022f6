"""The grid has every feature often enough, a part of it is right, and the tolerances refuse another
problem's result. All of it: `benchmarks/parity.py conv`."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from conv_parity_cases import EACH, FEATURES, compute, coverage, grid, sizes

from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem

FAMILY = ops.family("conv")
GRID = grid()
TOYS = [number for number, p in enumerate(GRID) if p.flops <= 1e5]
PART = sorted(random.Random("conv parity").sample(TOYS, 30))


def test_every_feature_is_in_many_problems():
    assert len(GRID) >= 400 and len(set(sizes())) == len(sizes())
    found = coverage(GRID)
    for word in FEATURES:
        assert found[word] >= EACH, word
    part = coverage(GRID[number] for number in PART)
    for word in ("forward", "data", "weights", "1-D", "2-D", "3-D", "groups", "depthwise", "gaps"):
        assert part[word], word


def test_the_grid_is_the_same_every_time():
    assert grid() == GRID


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher()


@pytest.mark.grid(2)
@pytest.mark.parametrize("number", PART)
def test_a_part_of_the_grid_is_right(dispatcher, number):
    name, check = compute(dispatcher, GRID[number], number, "cpu")
    assert check.ok, (name, str(GRID[number]), str(check))


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", ["sm_90", "gfx942"])
def test_each_problem_of_the_grid_has_a_kernel(name):
    this = arch(name)
    for p in grid("e4m3fn" if this.fp8 == "ocp" else "e4m3fnuz")[::29]:
        configs = FAMILY.default_space(p, this).expand(this).configs
        assert any(FAMILY.supports(c, p, this) for c in configs), str(p)


BASE = ConvProblem(2, 16, 16, (9, 9), (3, 3), 4, (2, 2), (1, 1), dilation=(1, 1), epilogue="bias")


@pytest.mark.parametrize(
    "other",
    [
        {"stride": (2, 1), "spatial": (9, 5)},
        {"pad": (0, 1), "pad_after": (2, 1)},
        {"groups": 2},
        {"dilation": (1, 2), "pad": (1, 2), "pad_after": (1, 2)},
        {"epilogue": "bias+relu"},
    ],
    ids=str,
)
def test_the_tolerances_refuse_another_problems_result(other):
    """Results of a problem with one feature different, on as many inputs as it reads of them."""
    given = replace(BASE, **other)
    assert given.shape_of("y") == BASE.shape_of("y")
    inputs = verify.operands_of(BASE, 1).inputs
    wanted = verify.reference(BASE, inputs)["y"]
    cut = {name: inputs[name] for name in inputs}
    x, w = given.shape_of("x"), given.shape_of("w")
    cut["x"] = inputs["x"][: x[0], : x[1], : x[2], : x[3]]
    cut["w"] = inputs["w"].repeat(w[1] // BASE.group_c, 1)
    out = verify.reference(given, cut)["y"]
    allowed = FAMILY.tolerances(BASE, None)["y"]
    assert verify.compare(wanted.copy(), wanted, allowed).ok
    assert not verify.compare(out, wanted, allowed).ok
