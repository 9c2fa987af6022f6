"""What a tuning chooses from."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tilewright.arch import arch, archs
from tilewright.ops.gemm import FAMILY, GemmProblem


def names(problem: GemmProblem, arch_name: str) -> set[str]:
    this = arch(arch_name)
    spaces = FAMILY.tuning_spaces(problem, this)
    return {c.name for space in spaces for c in space.expand(this).configs}


@pytest.mark.grid(9)
@pytest.mark.parametrize("arch_name", archs())
@pytest.mark.parametrize("m", [1, 64, 4096])
def test_it_has_the_default_space_and_more_that_repeats(arch_name, m):
    problem, this = GemmProblem(m, 4096, 4096), arch(arch_name)
    default, *more = FAMILY.tuning_spaces(problem, this)
    assert default == FAMILY.default_space(problem, this) and more
    configs = [c for space in more for c in space.expand(this).configs]
    # Where plain dots are kept small, few pipelines are left.
    shared, least = ({"split_k", "stream_k"}, 20) if this.dot == "matrix" else ({"split_k"}, 16)
    assert {c.scheduler for c in configs} >= shared
    assert all(c.reduction != "atomic" and FAMILY.repeats(c) for c in configs)
    assert sum(bool(FAMILY.supports(c, problem, this)) for c in configs) > least


def test_it_has_what_won_on_an_h200():
    assert names(GemmProblem(2944, 4736, 8192), "sm_90") >= {
        "gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_w4_s6_gluon_ws_stream_k_tree_g8_direct_padmnk_al16"
    }
    assert names(GemmProblem(4096, 4096, 4096), "sm_90") >= {
        "gemm_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s3_gluon_ws_persistent_g16_direct_padmnk_al16"
    }
    assert names(GemmProblem(1, 4096, 4096), "sm_90") >= {
        "gemm_rcr_bf16_bf16_bf16_fp32_1x4x2048_w8_s1_small_m_tile_g1_direct_padmnk_al16_pdl-wait"
    }


@pytest.mark.grid(2)
@pytest.mark.parametrize("m", [1, 16, 17, 288, 2048, 2049])
def test_it_swaps_a_and_b_where_rows_are_few_but_not_one_tile(m):
    def swaps(arch_name: str) -> bool:
        return any(name.endswith("_swapab") for name in names(GemmProblem(m, 512, 512), arch_name))

    assert swaps("sm_90") == (16 < m <= 2048) and not swaps("gfx942")


@pytest.mark.grid(1)
@pytest.mark.parametrize("m", [1, 16, 64, 512, 513])
def test_it_has_kernels_that_load_a_constant_b_early(m):
    def early(arch_name: str, **fields: bool) -> set[str]:
        return {
            x for x in names(GemmProblem(m, 512, 512, **fields), arch_name) if "_pdl-ahead" in x
        }

    found = early("sm_90", constant_b=True)
    assert bool(found) == (m <= 512)
    assert any("_swapab_" in name for name in found) == bool(found)
    assert not early("sm_90") and not early("sm_80", constant_b=True)
    problem, this = GemmProblem(m, 512, 512, constant_b=True), arch("sm_90")
    default = FAMILY.default_space(problem, this).expand(this).configs
    assert not any("_pdl-ahead" in c.name for c in default), "only a tuning has them"


@pytest.mark.grid(1)
@pytest.mark.parametrize("m", [1, 2, 16, 64, 65])
def test_kernels_for_few_rows_wait_except_short_ones_for_one_row(m):
    for arch_name in ("sm_80", "sm_90", "gfx942"):
        found = names(GemmProblem(m, 512, 512), arch_name)
        few = {name for name in found if "_small_m" in name}
        assert bool(few) == (m <= 64)
        waits = {name for name in found if "_pdl-wait" in name}
        short = {name for name in few if re.search(r"_1x\d+x\d+_w[124]_s1_", name)}
        assert waits == (few - short if arch_name == "sm_90" else set())
        assert bool(short) == (m == 1)


def test_tiles_keep_their_bytes_whatever_the_dtype():
    plain = GemmProblem(512, 512, 8192, "fp16")
    assert any("_64x64x64_w4_s13_gluon_ws_" in name for name in names(plain, "sm_90"))
    fp8 = GemmProblem(512, 512, 8192, "e4m3fn", "e4m3fn", "bf16")
    assert any("_64x64x128_w4_s13_gluon_ws_" in name for name in names(fp8, "sm_90"))


SCALED = GemmProblem(65, 512, 1024, "e4m3fn", "e4m3fn", "bf16", scale_a="1x128", scale_b="128x128")


def test_of_problems_with_scales_or_packed_operands_it_is_the_default_space():
    packed = GemmProblem(64, 512, 1024, "bf16", "int4", "bf16", scale_b="128x1")
    for problem in (SCALED, packed):
        this = arch("sm_90")
        assert FAMILY.tuning_spaces(problem, this) == [FAMILY.default_space(problem, this)]


def test_for_few_rows_with_scales_it_has_deep_rings_of_small_tiles_whole_and_shared():
    few = replace(SCALED, m=16, k=16384, lda=0, ldb=0, strides_sa=(), strides_sb=())
    this = arch("sm_90")
    default, more = (space.expand(this) for space in FAMILY.tuning_spaces(few, this))
    # Parts in fp32 take more room on their way out than C does.
    rings = [one.fields for one in more.dropped if one.fields["pipeline"] == "gluon_scaled"]
    assert {fields["reduction"] for fields in rings} <= {"two_stage"}
    assert all(FAMILY.supports(c, few, this) for c in more.configs)
    assert {c.pipeline for c in more.configs} == {"gluon_scaled", "small_m", "small_m_tma"}
    assert {c.split_k for c in more.configs} == {1, 2, 3, 4, 8, 16}
    assert max(c.num_stages for c in more.configs) > max(c.num_stages for c in default.configs)
