"""Gradients of weights by boxes whose tiles are of several taps, or have odd edges: which are
offered and refused, cases by chance in the simulation, and what they are built to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sim_language as language
import sim_names
from boxed_cases import FAMILY, SM_90, built_by_name, check_built, configs, weights_tile

import selection
from simulate import worst_error
from tilewright.arch import device
from tilewright.errors import UnknownName
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.config import REDUCTIONS_OF, SHARING
from tilewright.ops.conv.kernels import gluon_weights
from tilewright.ops.conv.pipelines.boxed import parts, shape
from tilewright.ops.device.gluon_api import jit

H200 = device("h200_sxm")
SMALL = replace(H200, compute_units=3)
FEW = ConvProblem(64, 64, 64, (56, 56), (3, 3), pad=(1, 1), direction="weights")
CASES = range(24)

# --- which are offered -------------------------------------------------------------------------


def test_few_channels_have_tiles_of_several_taps():
    """Nine taps of 64 channels are three tiles of 192 columns, which read y three times, not nine;
    and the estimate knows."""
    offered = {(c.tile_m, c.tile_n) for c in configs(FEW) if c.spread}
    assert {(64, 192), (64, 256)} <= offered
    one = next(c for c in configs(FEW) if c.spread and c.tile_n == 192)
    assert parts.tiles(one, FEW) == 3
    best, _ = FAMILY.rank(FEW, FAMILY.default_space(FEW, SM_90).expand(SM_90).configs, H200)[0]
    assert best.spread == 64


@pytest.mark.parametrize(
    ("c", "k", "wanted", "unwanted"),
    [
        (320, 320, {(192, 192), (128, 192)}, {(256, 192)}),
        (512, 512, {(128, 192)}, {(192, 192), (128, 256)}),
        (192, 192, {(192, 128)}, {(192, 192)}),
        (24, 64, set(), {(64, 192), (64, 256)}),
    ],
)
def test_tiles_of_several_taps_fit_better(c, k, wanted, unwanted):
    """Not where one tap's channels are whole tiles, nor where boxes would be half empty."""
    p = replace(FEW, c=c, k=k, spatial=(16, 16))
    offered = {(one.tile_m, one.tile_n) for one in configs(p) if one.spread}
    assert wanted <= offered and not unwanted & offered


def test_a_filter_of_one_tap_has_them_only_for_its_channels():
    p = replace(FEW, filter=(1, 1), pad=(0, 0))
    assert not [c for c in configs(p) if c.spread]
    assert {c.tile_n for c in configs(replace(p, c=320)) if c.spread} == {192, 256}


def config(**fields):
    said = {
        "direction": "weights", "pipeline": "gluon_ws", "scheduler": "persistent", "tile_m": 128,
        "tile_n": 192, "tile_k": 64, "num_warps": 8, "num_stages": 3, "box": "1x8x8",
        "spread": 64,
    }  # fmt: skip
    return FAMILY.make_config({**FAMILY.axes(), **said, **fields}, SM_90)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"spread": 32}, "boxes of 128 bytes of channels"),
        ({"direction": "forward"}, "in gradients of weights, not of bf16 in direction forward"),
        ({"tile_n": 160}, "tile_n = 160 is not several boxes of 64 columns"),
        ({"tile_n": 64}, "tile_n = 64 is not several boxes"),
        ({"scheduler": "stream_k"}, "parts of 192 columns meet under split and two_stage only"),
        ({"scheduler": "split", "reduction": "tree"}, "meet under split and two_stage only"),
        (
            {"pipeline": "implicit", "box": "", "scheduler": "tile"},
            "spread 64 is for pipelines that",
        ),
    ],
)
def test_what_cannot_be_built(fields, why):
    verdict = FAMILY.judge(config(**fields), SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason


def test_names_say_it():
    assert config().name.endswith("_b1x8x8_sp64")
    assert FAMILY.parse_name(config().name) == config()
    with pytest.raises(UnknownName):
        FAMILY.parse_name(config().name.replace("sp64", "sp0"))


# --- the kernel --------------------------------------------------------------------------------


@pytest.mark.turns(48)
@pytest.mark.parametrize("seed", CASES)
def test_cases_by_chance_are_right(seed):
    c, p = weights_tile(seed)
    for units in (3, 40):
        assert worst_error(c, p, replace(H200, compute_units=units), seed) <= 1, (c.name, p)


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("scheduler", "reduction"), [(s, r) for s in SHARING for r in REDUCTIONS_OF[s]]
)
def test_parts_of_three_groups_meet(scheduler, reduction):
    """Each group has slots and flags of its own; shares cross tiles, and do not."""
    c = config(
        tile_m=192, tile_n=128, num_warps=12, num_stages=2, scheduler=scheduler,
        reduction=reduction,
    )  # fmt: skip
    p = replace(FEW, n=2, k=200, spatial=(16, 16))
    for units in (7, 60):
        assert worst_error(c, p, replace(H200, compute_units=units), units) <= 1


def test_the_cases_reach_everything_that_they_may():
    met = [weights_tile(seed) for seed in CASES]
    assert {c.scheduler for c, _ in met} == {"persistent", "split", "stream_k"}
    assert {c.num_warps for c, _ in met} == {4, 8, 12}
    assert {c.tile_n for c, _ in met if c.spread} == {128, 192, 256}
    assert len({c.tile_n for c, _ in met if not c.spread}) >= 3
    assert {len(p.spatial) for _, p in met} == {1, 2, 3}
    ragged = [
        parts.tiles(c, p) for c, p in met
        if c.spread and p.taps * parts.tap_boxes(c, p) % (c.tile_n // c.spread)
    ]  # fmt: skip
    assert len(ragged) >= 3  # a tile with boxes behind the last


@jit
def of_the_first_tap(w, all_taps, column, offset):
    return column * 0, column * (w.TILE_N // w.SPREAD) // all_taps * w.SPREAD


def test_a_box_of_another_tap_is_found(monkeypatch):
    p = replace(FEW, n=2, spatial=(8, 8))
    assert worst_error(config(num_stages=2), p, SMALL) <= 1
    monkeypatch.setattr(sim_names, "known_functions", {})
    monkeypatch.setattr(gluon_weights, "_columns_at", of_the_first_tap)
    assert not worst_error(config(num_stages=2), p, SMALL) <= 1


def test_filters_past_the_last_are_not_read(monkeypatch):
    """Infinite values there would not matter, but rows outside an array take longer to come."""
    p = replace(FEW, n=2, k=72, spatial=(8, 8))
    begins = []
    real = language.OBJECTS[id(gluon_weights.tma_load)]

    def load(view, at, *others):
        if view.memory.name == "y":
            begins.append(int(at[-1]))
        real(view, at, *others)

    monkeypatch.setattr(sim_names, "known_functions", {})
    monkeypatch.setitem(language.OBJECTS, id(gluon_weights.tma_load), load)
    assert worst_error(config(tile_m=256), p, SMALL) <= 1
    assert {*begins} == {0}


# --- builds ------------------------------------------------------------------------------------

BUILT = selection.some(
    [
        config(tile_m=256),
        config(tile_m=192, num_warps=12, scheduler="split"),
        config(tile_m=64, tile_n=256, num_warps=4, scheduler="stream_k"),
        config(tile_n=160, spread=0, scheduler="split"),
    ],
    2,
)


@pytest.fixture(scope="module")
def built(store):
    return built_by_name(BUILT, store)


@pytest.mark.turns(48)
@pytest.mark.parametrize("c", BUILT, ids=lambda c: c.name)
def test_nothing_spills_and_shared_memory_is_as_said(c, built):
    check_built(c, built[c.name])
    assert shape.rows(c) in shape.ROWS
