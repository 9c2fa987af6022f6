"""Tiles of boxes whose edges are no power of two: which are offered and refused, every width in the
simulation, and what they are built to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sim_names
from boxed_cases import (
    BOXED,
    DENSE,
    FAMILY,
    ODD_TILES,
    SM_90,
    built_by_name,
    check_built,
    configs,
    odd_tile,
)
from sim_values import Fault

import selection
from simulate import worst_error
from tilewright.arch import device
from tilewright.ops.conv.kernels import gluon_ws
from tilewright.ops.conv.pipelines.boxed import rows, shape
from tilewright.ops.device.gluon_api import constexpr_function

H200 = device("h200_sxm")
SMALL = replace(H200, compute_units=3)
"""So that a workgroup has several tiles of a small problem."""

# --- which are offered -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "widths"),
    [(320, [160]), (640, [160]), (1280, [160]), (192, [192]), (576, [192, 144]), (96, [96]),
     (80, [80]), (64, []), (128, []), (512, [])],
)  # fmt: skip
def test_widths_fit_the_channels(channels, widths):
    """Not where powers of two fit as well or better."""
    assert rows.odd_widths(channels) == widths
    assert {*widths} <= {*rows.odd_widths(channels, tuned=True)}


@pytest.mark.parametrize("direction", ["forward", "data"])
@pytest.mark.parametrize(
    ("n", "channels", "size", "widths"),
    [(8, 320, 64, {160}), (8, 640, 32, {160}), (8, 1280, 16, {160}), (32, 192, 28, {192}),
     (32, 576, 28, {192, 144}), (8, 256, 32, {128, 256}), (8, 128, 64, {128})],
)  # fmt: skip
def test_the_estimate_ranks_by_what_is_wasted(n, channels, size, widths, direction):
    p = replace(DENSE, n=n, c=channels, k=channels, spatial=(size, size), direction=direction)
    found = FAMILY.default_space(p, SM_90).expand(SM_90).configs
    best, _ = FAMILY.rank(p, found, H200)[0]
    assert best.pipeline in BOXED and best.tile_n in widths


def test_default_spaces_have_only_tiles_that_can_be_built():
    """Also where an epilogue reads an array, which leaves fewer registers."""
    for epilogue in ("", "bias+add"):
        p = replace(DENSE, k=192, epilogue=epilogue)
        widest = max(c.tile_m // shape.readers(c) * c.tile_n for c in configs(p) if shape.odd(c))
        assert widest == (64 * 192 if epilogue else 128 * 192)
        gradient = replace(p, direction="weights", c=192, epilogue="")
        for one in (p, gradient):
            for space in (FAMILY.default_space(one, SM_90), *FAMILY.tuning_spaces(one, SM_90)):
                assert "pipeline" not in {d.verdict.rule for d in space.expand(SM_90).dropped}


def config(**fields):
    said = {
        "pipeline": "gluon_ws", "scheduler": "persistent", "tile_m": 128, "tile_n": 160,
        "tile_k": 64, "num_warps": 8, "num_stages": 3, "box": "1x4x16",
    }  # fmt: skip
    return FAMILY.make_config({**FAMILY.axes(), **said, **fields}, SM_90)


@pytest.mark.parametrize(
    ("fields", "rule", "why"),
    [
        ({"tile_n": 168}, "pipeline", "neither a power of two nor one of 48, 80, 96,"),
        ({"tile_n": 240}, "pipeline", "neither a power of two nor one of"),
        ({"tile_m": 256, "tile_n": 224, "box": "1x8x16"}, "pipeline", "224 accumulators a thread"),
        (
            {"tile_m": 256, "tile_n": 192, "box": "1x8x16", "epilogue": "add"},
            "pipeline", "192 accumulators a thread in parts, over 160",
        ),
        (
            {"tile_n": 80, "dtype": "e4m3fn", "dtype_out": "e4m3fn", "epilogue": "scale"},
            "pipeline", "pieces of sums with rows under 32 bytes",
        ),
        ({"tile_m": 192, "tile_n": 256, "num_warps": 12}, "pipeline", "64x256 sums for each of"),
        ({"tile_m": 384, "num_warps": 12, "box": "1x8x16"}, "pipeline", "128x160 sums for each of"),
        ({"tile_m": 192, "tile_n": 64}, "pipeline", "tile_m = 192 is not 64 or 128 rows"),
        ({"pipeline": "gluon_pingpong", "num_warps": 12}, "pipeline", "with 8 warps, not 12"),
        ({"pipeline": "implicit", "scheduler": "tile", "box": ""}, "tile", "160 is not a power"),
    ],
)  # fmt: skip
def test_what_cannot_be_built(fields, rule, why):
    verdict = FAMILY.judge(config(**fields), SM_90)
    assert verdict.rule == rule and why in verdict.reason


def test_names_say_the_edges():
    for c in (config(), config(tile_m=192, num_warps=12)):
        assert FAMILY.judge(c, SM_90)
        assert f"{c.tile_m}x160x64_w{c.num_warps}" in c.name and FAMILY.parse_name(c.name) == c


# --- the kernel --------------------------------------------------------------------------------


@pytest.mark.grid(4)
@pytest.mark.parametrize("columns", ODD_TILES)
@pytest.mark.parametrize("direction", ["forward", "data"])
def test_every_width_is_right(columns, direction):
    c, problem = odd_tile(columns, direction)
    assert worst_error(c, problem, SMALL) <= 1, (c.name, problem)


def test_the_cases_reach_everything_that_they_may():
    met = [odd_tile(n, direction) for n in ODD_TILES for direction in ("forward", "data")]
    for field, least in (("pipeline", 2), ("num_warps", 3), ("dtype", 3), ("epilogue", 3)):
        assert len({getattr(c, field) for c, _ in met}) >= least, field
    assert {shape.rows(c) for c, _ in met} == {64, 128}
    assert {len(p.spatial) for _, p in met} == {1, 2, 3}


@constexpr_function
def always_one(pieces, number):
    return 1


def test_a_tile_with_an_odd_number_of_pieces_begins_with_a_buffer_in_use(monkeypatch):
    """So its first piece waits for all stores of the tile before."""
    p = replace(DENSE, n=1, c=16, k=96, spatial=(16, 16), filter=(1, 1), pad=(0, 0))
    c = config(tile_n=96, tile_m=64, tile_k=16, num_warps=4)
    assert worst_error(c, p, replace(SMALL, compute_units=1)) <= 1
    monkeypatch.setattr(sim_names, "known_functions", {})
    monkeypatch.setattr(gluon_ws, "pending", always_one)
    with pytest.raises(Fault, match="changed while a store in flight was reading it"):
        worst_error(c, p, replace(SMALL, compute_units=1))


# --- builds ------------------------------------------------------------------------------------

BUILT = selection.some(
    [
        config(tile_m=256, tile_n=192, box="1x4x32"),
        config(tile_n=176, num_stages=4, direction="data", pipeline="gluon_pingpong", box="1x4x32"),
        config(tile_m=192, tile_n=208, num_warps=12, epilogue="col_scale+bias+silu+add"),
    ],
    1,
)


@pytest.fixture(scope="module")
def built(store):
    return built_by_name(BUILT, store)


@pytest.mark.turns(48)
@pytest.mark.parametrize("c", BUILT, ids=lambda c: c.name)
def test_nothing_spills_and_shared_memory_is_as_said(c, built):
    check_built(c, built[c.name])


@pytest.mark.parametrize(
    ("channels", "taps", "depths"),
    [(64, 3, {64}), (72, 3, {64}), (96, 3, {64, 32}), (96, 1, {64}), (128, 3, {64}),
     (160, 3, {64, 32}), (192, 3, {64}), (288, 3, {64})],
)  # fmt: skip
def test_steps_are_halved_where_the_last_of_a_tap_would_be_half_empty(channels, taps, depths):
    p = replace(DENSE, c=channels, k=96, filter=(taps, taps), pad=(taps // 2, taps // 2))
    for q in (p, replace(p, c=96, k=channels, direction="data")):
        assert {c.tile_k for c in configs(q) if c.tile_n > 32} == depths
    if len(depths) > 1:
        ranked = FAMILY.rank(p, configs(p), device("h200"))
        assert ranked[0][0].tile_k == 32
