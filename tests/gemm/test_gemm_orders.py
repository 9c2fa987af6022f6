"""In which order kernels walk the tiles of C."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.arch import arch, device
from tilewright.ops.gemm import FAMILY, GemmProblem

NAME = "gemm_rcr_bf16_bf16_bf16_fp32_128x64x64_w4_s8_gluon_ws_{}_direct_padmnk_al16{}"
WHOLE = FAMILY.parse_name(NAME.format("persistent_g8", ""))
SWAPPED = FAMILY.parse_name(NAME.format("persistent_g8", "_swapab"))
SPLIT = FAMILY.parse_name(NAME.format("split_k2_linear_g8", ""))
CLUSTER = FAMILY.parse_name(NAME.format("split_k2_cluster_g8", ""))
SWAPPED_CLUSTER = FAMILY.parse_name(NAME.format("split_k2_cluster_g8", "_swapab"))


@pytest.mark.parametrize(
    ("kernel", "m", "first"),
    [
        (WHOLE, 128, 8),
        (WHOLE, 1024, 8),
        (WHOLE, 1025, 16),  # nine rows of tiles, of which an order of 8 leaves one over
        (WHOLE, 1536, 16),
        (WHOLE, 1537, 8),
        (SPLIT, 1025, 8),
        (SWAPPED, 256, 2),
        (SWAPPED, 1025, 2),
        (CLUSTER, 256, 2),
        (SWAPPED_CLUSTER, 256, 8),
    ],
)
def test_of_equal_estimates_the_usual_order_goes_first(kernel, m, first):
    orders = [replace(kernel, group_m=order) for order in (4, 16, 2, 8)]
    ranked = FAMILY.rank(GemmProblem(m, 1024, 1024), orders, device("h200_sxm"))
    assert len({estimate.total_us for _, estimate in ranked}) == 1
    assert ranked[0][0].group_m == first


@pytest.mark.grid(4)
@pytest.mark.parametrize("m", [65, 300, 512, 513, 768, 769, 1025, 1536, 1537, 2049, 3072, 8192])
def test_the_default_space_has_kernels_in_their_usual_order(m):
    problem, this = GemmProblem(m, 4096, 4096), arch("sm_90")
    whole = [
        c
        for c in FAMILY.default_space(problem, this).expand(this).configs
        if c.pipeline in ("gluon_ws", "gluon_pingpong") and c.scheduler == "persistent"
    ]
    assert whole
    for config in whole:
        over = 8 < -(-m // config.tile_m) <= 12
        assert config.group_m == (2 if config.swap_ab else 16 if over else 8), config.name


def test_other_architectures_keep_one_order():
    for name in ("sm_80", "sm_100", "gfx942"):
        this = arch(name)
        found = FAMILY.default_space(GemmProblem(600, 4096, 4096), this).expand(this).configs
        assert {c.group_m for c in found} == {8}
