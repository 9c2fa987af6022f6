"""Tiles whose columns are no power of two, in the simulation: every width, in kernels and problems
picked by chance, with a fixed seed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import sim_names
from sim_values import Fault

from simulate import worst_error
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.device import gluon_store
from tilewright.ops.device.gluon_api import constexpr_function
from tilewright.ops.gemm import GemmConfig, GemmProblem, swap
from tilewright.ops.gemm.pipelines.warpgroups import ODD_COLUMNS

GEMM = ops.family("gemm")
SM_90 = arch("sm_90")
SMALL = replace(device("h200"), compute_units=3)
"""So that a workgroup has several tiles of a small problem."""
SIGNATURES = (
    {"dtype_a": "bf16"},
    {"dtype_a": "fp16"},
    {"dtype_a": "e4m3fn"},
    {"dtype_a": "int8"},
    {"dtype_a": "bf16", "epilogue": "bias+gelu"},
    {"dtype_a": "bf16", "epilogue": "swiglu"},
    {"dtype_a": "fp16", "epilogue": "add"},
)
NARROW = (8, 16, 32)


def kernel(**fields) -> GemmConfig:
    """A kernel with the fields that are not said at their defaults."""
    values = {**GEMM.axes(), "scheduler": "persistent", **fields}
    return GEMM.make_config(values, SM_90)


def some(columns: int, turn: int) -> tuple[GemmConfig, GemmProblem]:
    """A legal kernel whose accumulators have this many columns in all, and a problem of several
    ragged tiles."""
    by_chance = random.Random(f"{columns} {turn}")
    while True:
        signature = by_chance.choice(SIGNATURES)
        deep = 128 if signature["dtype_a"] in ("e4m3fn", "int8") else 64
        warps = by_chance.choice((4, 8, 12))
        config = kernel(
            **signature,
            layout=by_chance.choice(("rcr", "rrr", "ccr", "rcc")),
            pipeline=by_chance.choice(("gluon_ws", "gluon_ws", "gluon_pingpong")),
            tile_m=16 * warps,
            tile_n=columns,
            tile_k=by_chance.choice((deep, deep // 2)),
            num_warps=warps,
            num_stages=by_chance.randint(2, 5),
            store=by_chance.choice(("direct", "split")),
            batching=by_chance.choice(("none", "none", "none", "strided")),
        )
        if by_chance.random() < 0.5:  # the same kernel, if the sides may be exchanged
            exchanged = swap.config(
                kernel(**{**_fields(config), "swap_ab": True}),
            )
            config = kernel(**{**_fields(exchanged), "swap_ab": True})
        if not GEMM.judge(config, SM_90):
            continue
        sizes = [by_chance.randrange(1, 3 * tile) for tile in (config.tile_m, config.tile_n)]
        even = 2 if config.epilogue == "swiglu" else 1
        problem = GemmProblem(
            m=sizes[0],
            n=sizes[1] * even,
            k=16 * by_chance.randint(1, 20),
            layout=config.layout,
            batching=config.batching,
            batch=2 if config.batching == "strided" else 1,
            **signature,
        )
        if GEMM.supports(config, problem, SM_90):
            return config, problem


def _fields(config: GemmConfig) -> dict[str, object]:
    return {field: getattr(config, field) for field in GEMM.axes()}


@pytest.mark.grid(7)
@pytest.mark.parametrize("columns", sorted((*NARROW, *ODD_COLUMNS)))
def test_every_width_computes_the_product(columns):
    config, problem = some(columns, 0)
    assert worst_error(config, problem, SMALL) <= 1, (config.name, problem)


def test_the_cases_reach_everything_that_they_may():
    met = [some(columns, 0) for columns in (*NARROW, *ODD_COLUMNS)]
    for field, least in (("pipeline", 2), ("dtype_a", 4), ("store", 2), ("swap_ab", 2)):
        assert len({getattr(config, field) for config, _ in met}) >= least, field
    assert {"swiglu", "add"} <= {config.epilogue for config, _ in met}
    assert any(config.batching == "strided" for config, _ in met)


THREE_PIECES = kernel(
    pipeline="gluon_ws", tile_m=64, tile_n=72, num_warps=4, num_stages=3, tile_k=32
)


@constexpr_function
def always_one(tile_n, split, number):
    return 1


def test_a_tile_with_an_odd_number_of_pieces_begins_with_a_buffer_in_use(monkeypatch):
    """So its first piece waits for all stores of the tile before."""
    problem = GemmProblem(m=200, n=600, k=32)
    assert worst_error(THREE_PIECES, problem, SMALL) <= 1
    monkeypatch.setattr(sim_names, "known_functions", {})
    monkeypatch.setattr(gluon_store, "pending", always_one)
    with pytest.raises(Fault, match="changed while a store in flight was reading it"):
        worst_error(THREE_PIECES, problem, SMALL)
