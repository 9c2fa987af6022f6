"""Tiles with an edge in steps of 8: the spaces that have them, their stages, their estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.arch import arch, device
from tilewright.ops.device import widths
from tilewright.ops.gemm import (
    FAMILY,
    GemmConfig,
    GemmProblem,
    estimate_step,
    spaces,
    swap,
    tiles,
)
from tilewright.ops.gemm.pipelines.warpgroups import MOST_PARTS, ODD_COLUMNS
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.limits import MAX_STAGES

SM_90, H200 = arch("sm_90"), device("h200")
MIDDLE = GemmProblem(512, 4096, 4096)


def computed(configs: list[GemmConfig]) -> list[GemmConfig]:
    """Those whose accumulators have a number of columns in all that is no power of two, as their
    kernels see them."""
    seen = map(swap.config, configs)
    return [c for c in seen if c.tile_n in ODD_COLUMNS]


def tuned(problem: GemmProblem, name: str = "sm_90") -> list[GemmConfig]:
    this = arch(name)
    spaces = FAMILY.tuning_spaces(problem, this)
    return [config for space in spaces for config in space.expand(this).configs]


def test_a_tile_is_cut_into_powers_of_two_widest_first():
    for columns in range(1, 257):
        parts = widths.parts(columns)
        assert sum(parts) == columns and sorted({*parts}, reverse=True) == [*parts]
        assert all(part & (part - 1) == 0 for part in parts)
        odd = len(parts) > 1 and columns % 8 == 0 and len(parts) <= MOST_PARTS
        assert (columns in ODD_COLUMNS) == odd


OLDER = (96, 160, 192)


def test_tunings_of_middle_m_have_them_on_sm_90_alone():
    for m, some in ((64, 0), (65, 80), (2048, 80), (2049, 0)):
        new = [c for c in computed(tuned(replace(MIDDLE, m=m))) if c.tile_n not in OLDER]
        assert len(new) >= some and bool(new) == bool(some), m
    for name in ("sm_80", "sm_100", "gfx942"):
        assert not computed(tuned(MIDDLE, name))


def test_the_default_space_has_none_that_were_not_timed():
    found = FAMILY.default_space(MIDDLE, SM_90).expand(SM_90).configs
    won = {208, 224}  # in the shipped tables
    assert {c.tile_n for c in computed(list(found))} == {*OLDER, *won}


@pytest.mark.parametrize(
    "fields",
    [
        {"batching": "strided", "batch": 2},
        {"epilogue": "swiglu"},
        {"dtype_a": "e4m3fn"},
        {"layout": "rrr"},
    ],
)
def test_no_kernel_is_listed_that_the_rules_refuse_for_the_problem_alone(fields):
    problem = GemmProblem(512, 4096, 4096, **fields)
    listed = list(tiles.odd_algorithms(problem, SM_90, tiles.listed("odd")))
    exchanged = any(algorithm["swap_ab"] for algorithm in listed)
    assert exchanged == ("batching" not in fields and "epilogue" not in fields)
    for space in FAMILY.tuning_spaces(problem, SM_90):
        assert "swap" not in {dropped.verdict.rule for dropped in space.expand(SM_90).dropped}


def test_their_rings_are_as_deep_as_shared_memory_allows():
    for config in computed(tuned(MIDDLE)):
        if config.tile_n in OLDER:  # some are listed by hand
            continue
        assert shared_memory(config, SM_90) <= SM_90.shared_memory
        deeper = replace(config, num_stages=config.num_stages + 1)
        full = shared_memory(deeper, SM_90) > SM_90.shared_memory
        assert full or config.num_stages == MAX_STAGES
    assert max(c.num_stages for c in tuned(MIDDLE)) == MAX_STAGES


def kernel(**fields: object) -> GemmConfig:
    values = {
        **FAMILY.axes(), "pipeline": "gluon_ws", "scheduler": "persistent", "num_stages": 4,
        "tile_m": 64, "num_warps": 4, **fields,
    }  # fmt: skip
    return FAMILY.make_config(values, SM_90)


def test_a_part_costs_at_least_the_time_of_32_columns():
    products = {
        columns: estimate_step.step_of(kernel(tile_n=columns), H200).products
        for columns in (8, 32, 64, 72, 80, 88, 96, 128)
    }
    each = products[128] / 128
    said = {8: 32, 32: 32, 64: 64, 72: 96, 80: 96, 88: 128, 96: 96}
    for columns, as_long_as in said.items():
        assert products[columns] == pytest.approx(as_long_as * each), columns


def test_a_part_reads_a_from_shared_memory_again():
    one, two, three = (estimate_step.step_of(kernel(tile_n=n), H200).shared for n in (64, 72, 88))
    of_a = 64 * 64 * 2 / 128 / H200.clock_mhz
    of_columns = 2 * 8 * 64 * 2 / 128 / H200.clock_mhz  # of 8: stored, and read once
    assert two - one == pytest.approx(of_a + of_columns)
    assert three - two == pytest.approx(of_a + 2 * of_columns)


def test_parts_of_few_columns_beside_others_take_more_power_than_their_columns():
    """Such tiles took up to 1.12 of the time that goes by their columns, on large products."""
    at_peak = {
        columns: estimate_step.step_of(kernel(tile_n=columns), H200).at_peak
        for columns in (32, 64, 72, 80, 96, 128, 160, 192, 208)
    }
    each = at_peak[128] / 128
    alone = {32: 32, 64: 64, 192: 192}
    beside = {72: 64 + 30, 80: 64 + 30, 96: 64 + 38, 160: 128 + 38, 208: 128 + 64 + 30}
    for columns, as_much_as in (alone | beside).items():
        assert at_peak[columns] == pytest.approx(as_much_as * each), columns


def test_the_estimate_chooses_the_tile_that_just_fits():
    """72 rows in one tile instead of two of 64, or of one of 128 that is half empty."""
    problem = GemmProblem(72, 8192, 8192)
    configs = [c for c in tuned(problem) if FAMILY.supports(c, problem, SM_90)]
    best = FAMILY.rank(problem, configs, H200)[0][0]
    assert (best.tile_m, best.swap_ab) in ((72, True), (80, True))


@pytest.mark.parametrize(
    ("m", "n", "k", "columns"),
    [(512, 2304, 2048, 160), (256, 2304, 2048, 96), (112, 5120, 1024, 96)],
)
def test_the_default_space_has_what_won_such_sizes(m, n, k, columns):
    """As the shipped table for bf16 has it, which is from an H200: the estimate alone chooses the
    same tile."""
    problem = GemmProblem(m, n, k)
    space = FAMILY.default_space(problem, SM_90).expand(SM_90)
    first, _ = FAMILY.rank(problem, space.configs, H200)[0]
    assert (first.pipeline, first.tile_m, first.tile_n) == ("gluon_ws", 64, columns)
    assert (first.scheduler, first.swap_ab) == ("persistent", False)


def _default(problem: GemmProblem) -> list[GemmConfig]:
    return [*FAMILY.default_space(problem, SM_90).expand(SM_90).configs]


def _listed(*names: str) -> set[tuple[object, ...]]:
    """Tiles of lists, without their schedules and depths."""
    found = (tile for name in names for tile in tiles.listed(name))
    return {(p, m, n, w, s, st, sw) for p, m, n, _, w, s, st, sw, _ in found}


FP8 = {"dtype_a": "e4m3fn", "epilogue": "row_scale+col_scale"}


MIDDLE_LIST, FP8_LIST = ("default_middle",), ("default_middle_fp8",)


@pytest.mark.grid(4)
@pytest.mark.parametrize(
    ("fields", "lists"),
    [
        ({}, MIDDLE_LIST),
        ({"m": 65}, MIDDLE_LIST),
        ({"m": 64}, ()),
        ({"m": 2049}, ()),
        ({"dtype_a": "fp16"}, MIDDLE_LIST),
        ({"dtype_a": "int8"}, ()),
        ({"layout": "rrr"}, MIDDLE_LIST),
        ({"layout": "crr"}, MIDDLE_LIST),
        ({"layout": "rcc"}, ()),
        ({"epilogue": "bias"}, MIDDLE_LIST),
        ({"batching": "strided", "batch": 2}, ()),
        (FP8, FP8_LIST),
        ({"dtype_a": "e4m3fn"}, FP8_LIST),
        (FP8 | {"m": 64}, ()),
        (FP8 | {"m": 2049}, ()),
        ({"dtype_a": "e5m2", "dtype_c": "bf16"}, ()),
        ({"dtype_a": "e4m3fn", "dtype_c": "fp32"}, ()),
    ],
)
def test_tiles_of_middle_m_are_where_the_record_has_them(fields, lists):
    problem = GemmProblem(**{"m": 512, "n": 4096, "k": 4096, **fields})
    found = {
        (c.pipeline, c.tile_m, c.tile_n, c.num_warps, c.num_stages, c.store, c.swap_ab)
        for c in _default(problem)
    }
    assert tiles.middle(problem) == tuple(tile for name in lists for tile in tiles.listed(name))
    assert found & _listed(*MIDDLE_LIST, *FP8_LIST) == _listed(*lists)


def test_a_tile_is_in_a_list_once():
    for name in tiles._lists():
        assert len({*tiles.listed(name)}) == len(tiles.listed(name)) > 0


@pytest.mark.parametrize(
    ("arch_name", "m", "low"),
    [("sm_90", 16, True), ("sm_90", 17, False), ("sm_90", 300, False), ("gfx942", 300, True)],
)
def test_block_scales_have_no_low_tiles_for_more_rows_where_wgmma_is(arch_name, m, low):
    problem = GemmProblem(m, 4096, 4096, dtype_a="e4m3fn", scale_a="1x128", scale_b="128x128")
    this = arch(arch_name)
    rows = {
        c.tile_m
        for c in FAMILY.default_space(problem, this).expand(this).configs
        if c.pipeline in ("basic", "tma")
    }
    assert {64, 128} <= rows
    assert (spaces.LOW_TILE in rows) == low


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (256, 9216, 4096, ("gluon_ws", 128, 160, False)),
        (512, 4096, 8192, ("gluon_ws", 128, 128, False)),
        (128, 1024, 512, ("gluon_ws", 32, 64, True)),
        (960, 11264, 7168, ("gluon_ws", 160, 128, True)),
    ],
)
def test_the_estimate_chooses_them_where_the_shipped_table_has_them(m, n, k, tile):
    problem = GemmProblem(m, n, k)
    first, _ = FAMILY.rank(problem, _default(problem), H200)[0]
    assert (first.pipeline, first.tile_m, first.tile_n, first.swap_ab) == tile


@pytest.mark.parametrize(
    ("m", "n", "has"),
    [(33, 64, True), (64, 1792, True), (32, 512, False), (64, 1793, False), (65, 2048, True)],
)
def test_few_columns_of_33_to_64_rows_have_clusters(m, n, has):
    found = {(c.tile_m, c.tile_n, c.split_k) for c in _default(GemmProblem(m, n, 4096))
             if c.clustered}  # fmt: skip
    assert bool(found) == has
    if m == 64 and has:
        assert found == {(64, 64, 4), (64, 128, 8)}


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [(48, 1280, 4096, (64, 64, 4)), (64, 576, 7168, (64, 128, 8)), (64, 1536, 3072, (64, 64, 4))],
)
def test_the_estimate_chooses_clusters_where_the_shipped_table_has_them(m, n, k, tile):
    problem = GemmProblem(m, n, k)
    first, _ = FAMILY.rank(problem, _default(problem), H200)[0]
    assert first.clustered and (first.tile_m, first.tile_n, first.split_k) == tile


@pytest.mark.parametrize(
    ("fields", "has"),
    [
        ({"layout": "rrr"}, True),
        ({"layout": "crr"}, True),
        ({"layout": "rrr", "m": 64}, False),
        ({"layout": "rrr", "m": 4096}, True),
        ({"layout": "rrr", "dtype_a": "fp32"}, False),
        ({}, False),
    ],
)
def test_products_with_rows_of_b_along_n_have_equal_shares_of_few_tiles(fields, has):
    problem = GemmProblem(**{"m": 512, "n": 2048, "k": 8192, **fields})
    found = [c for c in _default(problem) if c.scheduler == "stream_k"]
    assert len(found) == has
