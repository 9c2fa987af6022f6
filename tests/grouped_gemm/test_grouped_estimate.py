"""What the estimate of a grouped GEMM assumes of loads, and what it puts first."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.grouped_gemm import GroupedGemmProblem, loads, low_tiles
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("grouped_gemm")
H200, SM_90 = device("h200_sxm"), arch("sm_90")


def drawn(load: str, groups: int, rows: int) -> np.ndarray:
    """Rows of each group, drawn some times."""
    mean, times = loads.means(load, groups, rows), 4000 if rows < 1000 else 200
    return np.random.default_rng(0).poisson(mean, (times, groups))


@pytest.mark.parametrize("load", loads.ASSUMED)
@pytest.mark.parametrize("groups", [8, 128, 256])
@pytest.mark.parametrize("rows", [4, 80, 1000, 18000, 131072])
def test_tiles_and_groups_with_rows_are_those_of_loads_by_chance(
    load: str, groups: int, rows: int
) -> None:
    sizes = drawn(load, groups, rows)
    there = (sizes > 0).sum(1).mean()
    assert loads.with_rows(load, groups, rows) == pytest.approx(max(1, there), rel=0.04)
    for height in (16, 32, 64, 128):
        tiles = (-(-sizes // height)).sum(1).mean()
        assert loads.tiles(load, groups, rows, height) == pytest.approx(max(1, tiles), rel=0.05)


@functools.cache
def ranked(problem: GroupedGemmProblem) -> list:
    """The default space's kernels for a problem, with their estimates."""
    configs = FAMILY.default_space(problem, SM_90).expand(SM_90).configs
    serving = [configs[i] for i in FAMILY.serving(problem, configs, SM_90)]
    return list(FAMILY.rank(problem, serving, H200))


def gathered(tokens: int, k: int, experts: int, n: int, depth: int) -> GroupedGemmProblem:
    return GroupedGemmProblem(
        "gathered", groups=experts, m=tokens * k, n=n, k=depth, rows_a=tokens, per_row=k,
        epilogue="swiglu", gates_apart=True,
    )  # fmt: skip


def test_the_kernel_that_was_fastest_on_an_h200_is_among_the_first() -> None:
    us = {(c.pipeline, c.tile_m, c.tile_n): e.total_us
          for c, e in reversed(ranked(gathered(16, 8, 128, 1536, 2048)))}  # fmt: skip
    assert us["gluon_ws", 64, 128] < 1.08 * min(us.values())  # docs/notes/moe-layers.md


def eight_bits() -> GroupedGemmProblem:
    """glm-4.5's first product on one of four GPUs, 11 tokens, which was timed
    (benchmarks/results/grouped_few_h200.json)."""
    return GroupedGemmProblem(
        "gathered", groups=160, m=88, n=768, k=5120, rows_a=11, per_row=8, dtype_a="e4m3fn",
        dtype_c="bf16", scale_a="1x128", scale_b="128x128",
    )  # fmt: skip


def test_low_tiles_of_8_bit_floats_wait_for_no_conversion_where_turned(monkeypatch) -> None:
    rated = reversed(ranked(eight_bits()))
    us = {(c.pipeline, c.tile_m, c.tile_n): (c, e.total_us) for c, e in rated}
    low, turned_us = us["basic", 16, 128]
    assert turned_us < us["gluon_scaled", 64, 256][1]
    monkeypatch.setattr(low_tiles, "turned", lambda config, arch: False)
    ((_, upright_us),) = FAMILY.rank(eight_bits(), [low], H200)
    assert upright_us.total_us > turned_us


def test_a_grid_of_low_tiles_is_resident_at_once_by_its_registers() -> None:
    """More workgroups would begin when the first end, and walk their share alone."""
    limited = 0
    for config, _ in ranked(eight_bits()):
        grid = FAMILY.launch(config, eight_bits(), H200).steps[0].grid[0]
        options = dict(FAMILY.sources(config, SM_90)[MAIN].options)
        threads = config.num_warps * SM_90.warp_size * -(-grid // H200.compute_units)
        if config.tile_m <= 32 and grid > H200.compute_units:
            assert options["maxnreg"] * threads <= 65536
            limited += 1
        elif config.pipeline == "basic":
            assert "maxnreg" not in options or grid <= H200.compute_units
    assert limited > 10


@pytest.mark.grid(1)
@pytest.mark.parametrize("tokens", [1, 7, 64, 1000, 16000])
def test_more_rows_never_take_less_time(tokens: int) -> None:
    few, many = gathered(tokens, 4, 64, 2880, 2880), gathered(2 * tokens, 4, 64, 2880, 2880)
    less, more = ({c.name: e.total_us for c, e in ranked(p)} for p in (few, many))
    assert all(more[name] >= us * 0.99 for name, us in less.items())


@pytest.mark.grid(1)
@pytest.mark.parametrize("form", ["contiguous", "gathered", "masked"])
def test_kernels_with_warp_roles_take_tiles_from_a_counter_that_stays_zero(form: str) -> None:
    rows = {"rows_a": 64} if form == "gathered" else {}
    problem = GroupedGemmProblem(form, groups=8, m=512, n=256, k=256, **rows)
    (config, *_) = [c for c, _ in ranked(problem) if c.pipeline == "gluon_ws"]
    launch = FAMILY.launch(config, problem, H200)
    assert [(t.name, t.initial) for t in launch.temporaries] == [("counter", "kept_zero")]
    assert [step.part for step in launch.steps] == [MAIN]
