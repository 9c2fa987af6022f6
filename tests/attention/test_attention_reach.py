"""Rows so far apart that 32-bit places within a tile do not reach them: only kernels whose tiles
are short enough serve them. Nothing is allocated here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright import Dispatcher, ops
from tilewright.arch import arch
from tilewright.errors import TilewrightError
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardProblem

SM_90 = arch("sm_90")
FAR = 17_000_000
"""Elements of a row of all sequences and heads, as in [rows, batch, heads, dim]."""


def strides(row, dim=64):
    return (dim * 8, row, dim, 1)


def rules_of(problem, pipeline):
    """What refuses each config of the default space of a problem whose rows are close."""
    family = ops.family(problem.family)
    near = replace(
        problem, **dict.fromkeys(("q_strides", "k_strides", "v_strides", "o_strides"), ())
    )
    configs = family.default_space(near, SM_90).expand(SM_90).configs
    found = [(c, family.supports(c, problem, SM_90)) for c in configs if c.pipeline == pipeline]
    assert found
    return found


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_tile_reaches_to_its_last_row(name):
    p = AttentionProblem(2, 8, 64, 4096, 64, dtype="fp32")
    config = rules_of(p, "basic")[0][0]
    family = ops.family("attention")
    most = (2**31 - 64) // (config.tile_kv - 1) // 4 * 4
    assert family.supports(config, replace(p, **{f"{name}_strides": strides(most)}), SM_90)
    over = replace(p, **{f"{name}_strides": strides(most + 4)})
    refusal = family.supports(config, over, SM_90)
    assert refusal.rule == "reach" and f"{name}.contiguous()" in refusal.reason


def test_pages_that_are_cut_are_reached_as_wholes():
    p = AttentionProblem(
        2, 8, 1, 4096, 64, dtype="fp32", pages=8, page_size=1000, page_entries=5,
        others="usedkv+pagetable", k_strides=(0, 2_400_000, 64, 1),
    )  # fmt: skip
    for config, verdict in rules_of(p, "basic"):
        assert config.tile_kv < 895 and verdict.rule == "reach"


def test_pages_of_whole_tiles_are_reached_tile_by_tile():
    """Unless keys begin anywhere within a page."""
    p = AttentionProblem(
        2, 8, 1, 4096, 64, dtype="fp32", pages=8, page_size=1024, page_entries=5,
        others="usedkv+pagetable", k_strides=(0, 2_400_000, 64, 1),
    )  # fmt: skip
    for config, verdict in rules_of(p, "basic"):
        assert 1024 % config.tile_kv == 0 and verdict
    for _, verdict in rules_of(replace(p, others="usedkv+leftpad+pagetable"), "basic"):
        assert verdict.rule == "reach"


@pytest.mark.parametrize(("row", "served"), [(FAR, True), (2**30, False), (2**33, False)])
def test_far_rows_have_a_kernel_that_reaches_them_or_none(row, served):
    far = strides(row)
    p = AttentionProblem(2, 8, 300, 300, 64, dtype="fp32", q_strides=far, k_strides=far)
    backward = AttentionBackwardProblem(2, 8, 300, 300, 64, dtype="fp32", k_strides=far)
    for problem in (p, backward):
        if served:
            chosen = Dispatcher(device="h200").select(problem).config
            assert ops.family(problem.family).supports(chosen, problem, SM_90)
        else:
            with pytest.raises(TilewrightError, match="32-bit places do not reach"):
                Dispatcher(device="h200").select(problem)


def test_kernels_of_the_copy_engine_reach_further():
    """They count rows of O in 64 bits, and copies have no places."""
    far = strides(FAR)
    p = AttentionProblem(2, 8, 4096, 4096, 64, q_strides=far, k_strides=far, o_strides=far)
    assert all(verdict for _, verdict in rules_of(p, "gluon_ws"))


def test_gradients_that_lie_apart_are_reached_too():
    p = AttentionBackwardProblem(2, 8, 300, 300, 64, dtype="fp32")
    for config, verdict in rules_of(p, "basic"):
        assert verdict
        for name in ("do", "dq", "dk", "dv"):
            far = replace(p, **{f"{name}_strides": strides(2**31 // 16)})
            found = ops.family("attention_backward").supports(config, far, SM_90)
            assert found.rule == "reach" and f" {name}" in found.reason
