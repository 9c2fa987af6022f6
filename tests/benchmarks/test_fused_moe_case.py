"""The layers that `fused-moe` compares compute the same, and cells are drawn by a seed."""

from __future__ import annotations

import pytest
import torch

from cases import fused_moe as case


@pytest.mark.parametrize("clamped", [False, True])
@pytest.mark.parametrize("load", case.LOADS)
def test_both_sides_compute_what_is_right(clamped, load):
    model = case.Model(64, 32, 6, 2, clamped)
    torch.manual_seed(0)
    w1, w2 = torch.randn(6, 64, 64) / 8, torch.randn(6, 64, 32) / 6
    x = torch.randn(9, 64)
    weights, ids = case.routings(model, 9, load, "cpu")[0]
    given = [one.bfloat16() for one in (x, w1, w2)]
    wanted = case.exact(clamped, *given, weights, ids)
    for layer in (case.ours, case.by_torch):
        got = layer(clamped, *given, weights, ids)
        assert (got.double() - wanted).abs().max() < case.FAR * wanted.square().mean().sqrt()


def test_skewed_loads_are_skewed():
    model = case.Model(8, 8, 64, 4)
    most = {}
    for load in case.LOADS:
        _, ids = case.routings(model, 512, load, "cpu")[0]
        assert all(len({*row}) == 4 for row in ids.tolist())
        most[load] = ids.flatten().bincount().max()
    assert most["skewed"] > 4 * most["balanced"]


def test_cells_are_drawn_by_a_seed():
    assert len(case.CELLS) == 7 * 2 * 5 * 2
    assert case.drawn_cells(5) == case.drawn_cells(5)
    assert len({*case.drawn_cells(case.DRAWN)}) == case.DRAWN
