"""Split-K whose workgroups are a cluster: names, rules, launches, and what is built."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tilewright.arch import arch, device
from tilewright.compile import Store, build, find, inspect
from tilewright.errors import BadArgument
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, clusters, names
from tilewright.ops.nouns import MAIN

SM_90, H200 = arch("sm_90"), device("h200_sxm")
NAME = "gemm_rcr_bf16_bf16_bf16_fp32_{}_gluon_ws_split_k{}_cluster_g8_direct_padmnk_al16"


def kernel(tile: str = "128x128x64_w8_s5", parts: int = 2, **changes: object) -> GemmConfig:
    return replace(names.parse(NAME.format(tile, parts)), **changes)


def test_only_equal_parts_are_a_cluster():
    with pytest.raises(BadArgument, match="reduction cluster with scheduler stream_k: a cluster"):
        names.check(kernel(scheduler="stream_k", split_k=1))


@pytest.mark.parametrize(
    ("config", "rule", "words"),
    [
        (kernel(parts=3), "cluster", "reduction cluster has 2, 4, 8"),
        (kernel("64x64x64_w4_s4", 8), "cluster", "8 columns each of a tile with 64"),
        (kernel("64x96x64_w4_s4", 2), "warpgroups", "are shared with reduction two_stage alone"),
        (kernel(parts=4, store="split"), "warpgroups", "share, 32 columns, is under 64"),
        (kernel(num_stages=6), "shared_memory", "over 232448"),
        (kernel(dependent_launch="wait"), "dependent_launch", "must be resident at once"),
        (kernel(pipeline="tma"), "combination", "has reductions"),
    ],
)
def test_what_is_refused(config, rule, words):
    verdict = FAMILY.judge(config, SM_90)
    assert (verdict.rule, words in verdict.reason) == (rule, True), verdict


def test_a_gpu_with_smaller_clusters():
    verdict = FAMILY.judge(kernel(parts=4), replace(SM_90, max_ctas=2))
    assert verdict.rule == "cluster" and "up to 2 workgroups" in verdict.reason


@pytest.mark.parametrize("parts", clusters.SIZES)
def test_a_launch_counts_clusters_and_has_no_workspace(parts):
    launch = FAMILY.launch(kernel(parts=parts), GemmProblem(200, 300, 4096), H200)
    assert launch.steps[0].grid == (2 * 3, 1, 1) and not launch.temporaries
    assert FAMILY.sources(kernel(parts=parts), SM_90)[MAIN].cluster == parts


def test_the_same_bits_come_out():
    assert FAMILY.repeats(kernel())


def test_clusters_of_four_leave_units_idle():
    """A second round of clusters is estimated where they do not fit at once."""
    four = kernel(parts=4)
    found = [FAMILY.estimate(four, GemmProblem(128 * m, 512, 8192), H200) for m in (7, 8)]
    assert [clusters.places(kernel(parts=n), H200) for n in clusters.SIZES] == [132, 120, 120]
    waves = [one.facts[0].partition(" in ")[2] for one in found]
    assert waves == ["1 wave", "2 waves"]


def test_tuning_has_them_for_few_tiles_and_a_long_k():
    problem = GemmProblem(256, 256, 16384)
    every = [c for s in FAMILY.tuning_spaces(problem, SM_90) for c in s.expand(SM_90).configs]
    found = {(c.tile_m, c.tile_n, c.split_k, c.swap_ab) for c in every if c.clustered}
    assert {(128, 128, 2, False), (128, 64, 8, True), (64, 64, 4, False)} <= found


@pytest.mark.turns(64)
@pytest.mark.parametrize(
    ("tile", "parts"), [("128x128x64_w8_s5", 2), ("128x128x64_w4_s5", 4), ("64x128x64_w4_s8", 8)]
)
def test_what_is_built(tile, parts, tmp_path):
    config, store = kernel(tile, parts), Store(tmp_path)
    build([(config, "sm_90")], store=store, workers=1).raise_if_failed()
    kernels = find(config, "sm_90", store)
    assert kernels is not None
    built = kernels[MAIN]
    assert built.num_ctas == parts and not built.resources.spill_bytes
    ptx = inspect(built, store, "ptx")
    assert f".reqnctapercluster {parts}\n" in ptx and "// to workgroup" not in ptx
    # Each thread of a group sends its sums but one share, 16 bytes at a time.
    groups = config.num_warps // 4
    of_thread = config.tile_m * config.tile_n // groups // 128
    assert ptx.count("st.async") == groups * of_thread * (parts - 1) // parts // 4
    # Barriers are initialised with no meeting in between.
    first, last = ptx.index("mbarrier.init"), ptx.rindex("mbarrier.init")
    assert not re.search(r"bar\.sync", ptx[first:last])
