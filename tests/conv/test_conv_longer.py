"""Layout steps that copy arrays whose rows are no whole 16 bytes into longer rows, and results out
of them: 1×1 convolutions of odd channels, or with channels first of odd images."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from shared_builds import build_once
from simulate import worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import FAMILY, ConvProblem, longer, turning
from tilewright.ops.conv.config import LONGER
from tilewright.ops.conv.pipelines import by_gemm_space
from tilewright.ops.conv.product import product
from tilewright.ops.conv.stated import first_strides

SM_90, H200 = arch("sm_90"), device("h200_sxm")
DIRECTIONS = ("forward", "data", "weights")


def first(p: ConvProblem) -> ConvProblem:
    return replace(p, **first_strides(p))


ODD_CHANNELS = ConvProblem(2, 27, 18, (5, 7), (1, 1))
ODD_IMAGES = first(ConvProblem(3, 24, 16, (13,), (1,)))
DEEP = ConvProblem(1, 24, 30, (3, 4, 5), (1, 1, 1))
LONG = first(ConvProblem(1, 3, 5, (longer.BLOCK + 7,), (1,)))


def configs(p, this=SM_90):
    """Those of a tuning: no default space has them."""
    spaces = [space.expand(this).configs for space in FAMILY.tuning_spaces(p, this)]
    assert not any(c.turned.startswith(LONGER) for c in spaces[0])
    return [c for c in spaces[1] if c.turned.startswith(LONGER)]


@pytest.mark.parametrize(
    ("p", "names"),
    [
        (ODD_CHANNELS, "xwy"),
        (ODD_IMAGES, "xy"),
        (DEEP, "y"),
        (replace(DEEP, k=32), ""),
        (replace(ODD_CHANNELS, alignment=4), ""),  # longer rows of x alone would not help
        (replace(ODD_CHANNELS, filter=(3, 3), pad=(1, 1)), ""),  # no product
        (replace(ODD_CHANNELS, y_strides=(700, 1, 140, 20)), ""),  # with gaps
    ],
    ids=str,
)
def test_which_arrays_have_longer_rows(p, names):
    for direction in DIRECTIONS:
        q = replace(p, direction=direction)
        found = [how for how in by_gemm_space.turnings(q, tuned=True) if how.startswith(LONGER)]
        assert found == [LONGER + names] * bool(names)
        if found:
            left = turning.inside(q, found[0])
            assert product(left).alignment == 16
            assert [left.shape_of(n) for n in "xwy"] == [q.shape_of(n) for n in "xwy"]


def test_rows_are_channels_or_images():
    assert longer.rows(ODD_CHANNELS, "x") == longer.Rows(70, 27, 32)
    assert longer.rows(ODD_IMAGES, "y") == longer.Rows(48, 13, 16)
    assert turning.inside(ODD_IMAGES, "rxy").x_strides == (24 * 16, 16, 1)
    assert turning.inside(ODD_CHANNELS, "rxwy").x_strides == (35 * 32, 1, 7 * 32, 32)
    p = replace(ODD_CHANNELS, direction="data")
    gaps = replace(p, y_strides=(700, 1, 140, 20))
    refused = FAMILY.supports(configs(p)[0], gaps, SM_90)
    assert refused.rule == "turned" and "y has gaps" in refused.reason
    add = replace(p, epilogue="add")
    alike = replace(configs(p)[0], epilogue="add")
    assert "which is turned" in FAMILY.supports(alike, add, SM_90).reason


def test_a_launch_copies_what_is_read_before_and_what_is_made_behind():
    p = replace(ODD_CHANNELS, direction="data")
    c = next(c for c in configs(p) if FAMILY.supports(c, p, SM_90) and "pdl" not in c.name)
    launch = FAMILY.launch(c, p, H200)
    parts = [step.part for step in launch.steps]
    assert parts[:2] == ["turn_w", "turn_y"] and parts[-1] == "turn_x"
    shapes = {t.name: t.shape for t in launch.temporaries}
    assert shapes["turned_x"] == (70, 32) and shapes["turned_w"] == (18, 32)
    assert turning.us(p, "rxwy", H200) > turning.us(p, "rx", H200) > 0


CASES = (
    ODD_CHANNELS,
    replace(ODD_CHANNELS, epilogue="bias+relu", dtype="fp16", dtype_out=""),
    ODD_IMAGES,
    DEEP,
    LONG,
)


def directed(*cases):
    """The cases in the directions in which rows become longer."""
    found = []
    for p, direction in itertools.product(cases, DIRECTIONS):
        q = replace(
            p, direction=direction, dtype_out="", epilogue=p.epilogue * (direction != "weights")
        )
        if any(how.startswith(LONGER) for how in by_gemm_space.turnings(q, tuned=True)):
            found.append(q)
    return found


@pytest.mark.turns(4)
@pytest.mark.grid(1)
@pytest.mark.parametrize("p", directed(*CASES), ids=str)
def test_it_is_right(p):
    small = [c for c in configs(p) if "_tma_" in c.gemm and c.tile_m <= 64 >= c.tile_n]
    c = next(c for c in small if FAMILY.supports(c, p, SM_90))
    found = verify.verify(Dispatcher(device=H200), p, c.name, seed=1)
    assert found.ok, (c.name, found)


@pytest.mark.turns(6)
@pytest.mark.parametrize("p", directed(ODD_CHANNELS, ODD_IMAGES), ids=str)
def test_hoppers_kernels_are_right_between_the_steps(p):
    """In the simulation, with the steps' kernels: what fills rows up is garbage."""
    three = replace(H200, compute_units=3)
    found = [c for c in configs(p) if "gluon_ws" in c.gemm and not c.tile_n & (c.tile_n - 1)]
    c = next(c for c in found if FAMILY.supports(c, p, SM_90))
    assert worst_error(c, p, three, seed=1) <= 1


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", ["sm_90", "gfx942", "gfx1201"])
def test_it_is_built(name, store):
    this = arch(name)
    p = replace(ODD_CHANNELS, direction="data")
    c = next(c for c in configs(p, this) if c.gemm_config.pipeline == "basic")
    kernels = build_once([(c, this)], store).kernels
    assert {k.part for k in kernels} == {"main", "turn_x", "turn_w", "turn_y"}
    assert not any(k.resources.spill_bytes for k in kernels if k.part != "main")
