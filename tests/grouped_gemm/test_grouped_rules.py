"""What a grouped problem is, and which kernels may be built and serve it."""

from __future__ import annotations

import pytest
from grouped_cases import cases, config, of_any_number, other_axes

from tilewright.arch import arch, archs, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem
from tilewright.ops.grouped_gemm.catalogue import most_tiles

SM90 = arch("sm_90")


def stacked(form: str = "contiguous", **fields: object) -> GroupedGemmProblem:
    return GroupedGemmProblem(form, **{"groups": 4, "m": 100, "n": 64, "k": 128, **fields})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"form": "sorted"}, "form 'sorted'"),
        ({"groups": 0}, "groups = 0"),
        ({"m": -1}, "m = -1"),
        ({"n": 0}, "n = 0"),
        ({"k": 0}, "k = 0"),
        ({"groups": True}, "groups = True"),
        ({"layout": "ccr"}, "row-major"),
        ({"layout": "rcc"}, "row-major"),
        ({"layout": "xyz"}, "layout 'xyz'"),
        ({"sizes": ((1, 2, 3),)}, "form list"),
        ({"stride_b": 100}, "stride_b = 100"),
        ({"stride_b": 64 * 128 + 1, "alignment": 16}, "stride_b = 8193 is only a multiple of 2"),
        ({"dtype_c": "int8"}, "give C as"),
        ({"form": "masked", "bounds": True}, "bounds are for forms contiguous"),
        ({"form": "weights", "k": -1}, "k = -1"),
        ({"form": "weights", "m": 0}, "m = 0"),
        ({"form": "columns", "m": 0}, "m = 0"),
        ({"form": "weights", "layout": "rrc"}, "form weights has rcr, rrr"),
        ({"form": "columns", "layout": "rsr"}, "form columns has rcr, rrr"),
        ({"form": "weights", "stride_b": 5}, "one group's no operand takes 0"),
        ({"form": "columns", "stride_b": 5}, "one group's A takes 12800"),
        ({"form": "weights", "zero_rest": True}, "leave zero_rest out"),
        ({"form": "columns", "epilogue": "relu"}, "has no epilogue"),
        ({"epilogue": "swiglu", "n": 63}, "in twos"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields, said):
    with pytest.raises(BadArgument, match=said):
        stacked(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "a tuple of one"),
        ({"sizes": ()}, "a tuple of one"),
        ({"sizes": ((1, 2),)}, r"sizes\[0\] = \(1, 2\)"),
        ({"sizes": ((4, 4, 4), (1, -2, 3))}, r"sizes\[1\]"),
        ({"sizes": ((2**20, 2**10, 1),)}, "under 2 GiB"),
        ({"sizes": ((4, 4, 4),), "m": 4}, "no other field"),
        ({"sizes": ((4, 4, 4),), "stride_b": 4}, "no other field"),
        ({"sizes": ((4, 5, 4),), "epilogue": "swiglu"}, "in twos"),
        ({"sizes": ((4, 4, 4),), "epilogue": "bias"}, "have no bias of their own"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(fields, said):
    with pytest.raises(BadArgument, match=said):
        GroupedGemmProblem("list", **fields)


def test_work_and_bytes():
    assert stacked().flops == 2 * 100 * 64 * 128
    assert stacked().min_bytes == 2 * (100 * 128 + 4 * 128 * 64 + 100 * 64) + 16
    assert stacked(m=2).min_bytes == 2 * (2 * 128 + 2 * 128 * 64 + 2 * 64) + 16  # two B at most
    assert stacked("masked").flops == 4 * stacked().flops
    weights = stacked("weights", k=200, layout="crr")
    assert weights.flops == 2 * 100 * 64 * 200
    assert weights.min_bytes == 2 * (100 * 200 + 200 * 64 + 4 * 100 * 64) + 16
    columns = stacked("columns", n=2)
    assert columns.flops == 2 * 100 * 2 * 128
    assert columns.min_bytes == 2 * (2 * 100 * 128 + 128 * 2 + 100 * 2) + 16  # two A at most
    listed = GroupedGemmProblem("list", sizes=((4, 8, 16), (0, 8, 16)))
    assert listed.flops == 2 * 4 * 8 * 16
    assert listed.min_bytes == 2 * (4 * 16 + 2 * 8 * 16 + 4 * 8)


def test_alignment_counts_the_step_from_expert_to_expert():
    assert stacked().alignment == 16
    assert stacked(stride_b=64 * 128 + 4).alignment == 8
    assert stacked(k=129).alignment == 2


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"form": "list", "pipeline": "tma"}, "form"),
        ({"form": "list", "index_bits": 64}, "form"),
        ({"layout": "ccr"}, "form"),
        ({"layout": "rcc", "form": "masked"}, "form"),
        ({"layout": "rcc", "pipeline": "tma"}, "form"),
        ({"layout": "rrc", "form": "weights"}, "form"),
        ({"layout": "rcr", "form": "weights", "pipeline": "tma"}, "form"),
        ({"layout": "crr", "form": "weights", "pad_k": False}, "form"),
        ({"pipeline": "gluon_ws", "tile_m": 32}, "warpgroups"),
        ({"pipeline": "gluon_ws", "tile_m": 128, "num_warps": 16}, "warpgroups"),
        ({"pipeline": "gluon_ws", "tile_n": 16}, "warpgroups"),
        # a GEMM of these fits by 1024 bytes, and the numbers of tiles take 4096
        ({"pipeline": "gluon_ws", "tile_m": 128, "tile_n": 128, "num_stages": 6, "num_warps": 8},
         "shared_memory"),
        ({"pipeline": "tma", "alignment": 8}, "alignment"),
        ({"pipeline": "tma", "pad_n": False}, "padding"),
        ({"tile_m": 48}, "tile"),
    ],
)  # fmt: skip
def test_a_config_that_breaks_a_rule_is_dropped_by_it(fields, rule):
    assert FAMILY.judge(config(), SM90)
    assert FAMILY.judge(config(**fields), SM90).rule == rule


@pytest.mark.parametrize(
    ("kernel", "problem", "rule"),
    [
        ({}, {"form": "masked"}, "signature"),
        ({}, {"dtype_a": "fp16"}, "signature"),
        ({}, {"epilogue": "relu"}, "signature"),
        ({}, {"groups": 1025}, "groups"),
        ({"pipeline": "tma"}, {"m": 0}, "rows"),
        ({"pipeline": "tma"}, {"m": 2**30 + 1}, "rows"),
        ({"pad_k": False}, {"k": 72}, "divisibility"),
        ({"pad_n": False}, {"n": 72}, "divisibility"),
        ({}, {"k": 129}, "vector_width"),
        ({}, {"stride_b": 64 * 128 + 4}, "vector_width"),
        ({}, {"m": 2**24}, "addressing"),
    ],
)
def test_a_problem_that_a_kernel_cannot_serve(kernel, problem, rule):
    assert FAMILY.supports(config(**kernel), stacked(), SM90)
    assert FAMILY.supports(config(**kernel), stacked(**problem), SM90).rule == rule


def test_weights_of_any_size_are_within_reach_of_32_bits():
    assert FAMILY.supports(config(), stacked(groups=256, n=4096, k=7168), SM90)


def test_a_fourth_stage_of_the_largest_tile_leaves_room_for_the_numbers_of_512_groups():
    """For 1024 there is none, with the larger pieces of C either."""
    fields = {"pipeline": "gluon_ws", "tile_m": 128, "tile_n": 256, "tile_k": 64, "num_warps": 8}
    split = config(**fields, num_stages=4, store="split")
    assert FAMILY.judge(split, SM90)
    assert FAMILY.judge(config(**fields, num_stages=4), SM90).rule == "shared_memory"
    sizes = {"m": 4096, "n": 768, "k": 2048}
    assert FAMILY.supports(split, stacked(groups=512, **sizes), SM90)
    verdict = FAMILY.supports(split, stacked(groups=513, **sizes), SM90)
    assert verdict.rule == "groups" and "513 groups, more than gluon_ws keeps" in verdict.reason
    configs = FAMILY.default_space(stacked(groups=128, **sizes), SM90).expand(SM90).configs
    assert split.num_stages in {c.num_stages for c in configs if c.store == "split"}
    assert all(c.tile_m * c.tile_n == 128 * 256 for c in configs if c.store == "split")


def test_a_lists_rules_ask_about_every_size():
    whole = config(form="list", pad_n=False, pad_k=False)
    assert FAMILY.supports(
        whole, GroupedGemmProblem("list", sizes=((5, 64, 128), (0, 192, 64))), SM90
    )
    ragged = GroupedGemmProblem("list", sizes=((5, 64, 128), (7, 72, 64)))
    assert FAMILY.supports(whole, ragged, SM90).rule == "divisibility"
    assert FAMILY.supports(config(form="list"), ragged, SM90)
    odd = GroupedGemmProblem("list", sizes=((5, 64, 128), (7, 71, 64)))
    assert FAMILY.supports(config(form="list"), odd, SM90).rule == "vector_width"


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", archs())
def test_every_architecture_has_a_kernel_for_any_alignment(name):
    this = arch(name)
    for problem in (
        stacked(n=33, k=65),
        stacked("masked", n=33, k=65),
        stacked(m=0),
        stacked("weights", m=33, n=65, layout="rcr"),
        stacked("weights", k=0, layout="crr"),
        stacked("columns", m=33, n=65, layout="rrr"),
        stacked("columns", n=0),
        GroupedGemmProblem("list", sizes=((3, 5, 7), (0, 1, 2)), alignment=1),
    ):
        configs = FAMILY.default_space(problem, this).expand(this).configs
        assert len(configs) < 300
        assert any(FAMILY.supports(c, problem, this) for c in configs), problem


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 700])
@pytest.mark.parametrize("groups", [1, 3, 40])
def test_the_grid_is_large_enough_for_any_sizes(rows, groups):
    """No way of dealing the rows out makes more tiles than the launch counts on, and some makes as
    many."""
    kernel = config()
    problem = stacked(m=rows, groups=groups, n=64)

    def tiles(sizes: list[int]) -> int:
        return sum(-(-size // kernel.tile_m) for size in sizes)

    used = min(rows, groups)
    ones = [1] * (used - 1)
    worst = [*ones, rows - len(ones)] if used else []
    assert tiles(worst) <= most_tiles(kernel, problem)
    spread = [1 + kernel.tile_m * ((rows - used) // kernel.tile_m), *ones] if used else []
    assert tiles(spread) == most_tiles(kernel, problem)


def test_the_grid_of_weights_has_all_tiles_of_every_group():
    assert most_tiles(config(form="weights", layout="crr"), stacked("weights", layout="crr")) == 8


UNTUNED = [
    (
        GroupedGemmProblem("gathered", groups=8, m=4096, n=512, k=512, rows_a=2048, per_row=2),
        {"basic", "gluon_ws"},
    ),
    (GroupedGemmProblem("weights", 8, 512, 512, 4096, layout="crr"), {"basic", "tma", "gluon_ws"}),
    (GroupedGemmProblem("contiguous", 8, 4096, 512, 512), {"basic", "tma", "gluon_ws"}),
    (GroupedGemmProblem("contiguous", 8, 4096, 512, 512, epilogue="bias"), {"basic", "tma"}),
]
"""Problems, and the pipelines that are chosen from without a tuning."""


@pytest.mark.grid(1)
@pytest.mark.parametrize(("problem", "untuned"), UNTUNED, ids=[str(p) for p, _ in UNTUNED])
def test_a_pipeline_that_was_no_faster_is_tried_by_tuning_alone(problem, untuned):
    this = arch("sm_90")

    def pipelines(space):
        return {c.pipeline for c in space.expand(this).configs if FAMILY.supports(c, problem, this)}

    assert pipelines(FAMILY.default_space(problem, this)) == untuned
    (space,) = FAMILY.tuning_spaces(problem, this)
    assert pipelines(space) == {*untuned, "gluon_ws"}


def test_deep_rings_of_low_tiles_are_tried_by_tuning_alone():
    problem = GroupedGemmProblem("contiguous", 8, 4, 4096, 14336)
    this = arch("sm_90")

    def stages(space):
        return {c.num_stages for c in space.expand(this).configs if c.tile_m == 16}

    usual = stages(FAMILY.default_space(problem, this))
    (space,) = FAMILY.tuning_spaces(problem, this)
    assert 6 not in usual
    assert stages(space) == {*usual, 6}


def test_many_gathered_rows_are_computed_by_warp_roles():
    """On an H200 these took 0.68 to 0.95 of the time of `basic`, and 0.33 with scales of blocks."""
    many = {"groups": 32, "m": 8192, "n": 4096, "k": 7168, "rows_a": 1024, "per_row": 8}
    scaled = {"dtype_a": "e4m3fn", "dtype_c": "bf16", "scale_a": "1x128", "scale_b": "128x128"}
    for said, pipeline in (({}, "gluon_ws"), (scaled, "gluon_scaled")):
        problem = GroupedGemmProblem("gathered", **many, **said)
        found = Dispatcher(device="h200_sxm").select(problem).config
        assert found.pipeline == pipeline


def test_estimates_are_finite_for_every_case():
    for kernel, problem in (*cases("sm_90"), *other_axes("sm_90")):
        assert 0 < FAMILY.estimate(kernel, problem, device("h200_sxm")).total_us < 1e6


def test_kernels_are_judged_and_estimated_together_as_alone():
    this, on = arch("sm_90"), device("h200_sxm")
    pairs = cases("sm_90")[::7]
    configs = [c for c, _ in pairs]
    for problem in (p for _, p in pairs[::2]):
        served = [i for i, c in enumerate(configs) if FAMILY.supports(c, problem, this)]
        assert FAMILY.serving(problem, configs, this) == served
        for c, estimate in FAMILY.rank(problem, [configs[i] for i in served], on):
            assert FAMILY.estimate(c, problem, on) == estimate


def test_tiles_and_rows_are_counted_in_32_bits():
    """Offsets that lie may give all rows to every second group."""
    kernel = config(index_bits=64)
    assert FAMILY.supports(kernel, stacked(m=2**18, groups=1024, n=2**14), SM90)
    verdict = FAMILY.supports(kernel, stacked(m=2**24, groups=1024, n=2**14), SM90)
    assert not verdict and "tiles" in verdict.reason


@pytest.mark.parametrize("form", ["contiguous", "masked"])
def test_every_pipeline_has_a_case_of_any_number_of_groups(form):
    for this in ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950", "gfx1100"):
        found = [kernel.pipeline for kernel, _ in of_any_number(this, form, 130)]
        assert found == [*FAMILY.wildcard("pipeline", arch(this))]
