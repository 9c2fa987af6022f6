"""What GPU tests take for right of many routings is what a loop over experts finds."""

from __future__ import annotations

import torch
from layer_cases import operands, reference
from many_routings import KINDS, NEVER, chosen, drawn, of_every_expert, plans

from tilewright import Dispatcher


def test_a_choice_among_all_experts_is_the_layer():
    x, w1, w2, weights, _ = operands(6, 32, 16, 7, 2)
    every = of_every_expert(x, w1, w2)
    for ids in drawn(2 * KINDS, 6, 7, 2, "cpu"):
        wanted = reference(x, w1, w2, weights, ids)
        assert torch.allclose(chosen(every, weights, ids), wanted, atol=1e-12)
    for e in NEVER:
        every[e] = torch.nan
    assert torch.isfinite(chosen(every, weights, drawn(1, 6, 7, 2, "cpu")[0])).all()


def test_routings_are_of_every_kind():
    ids = drawn(40 * KINDS, 9, 24, 4, "cpu").view(-1, KINDS, 9, 4)
    there = (ids >= 0) & (ids < 24)
    assert not ((ids == 0) | (ids == 23)).any()
    assert (ids[:, 0] < 0).any() and (ids[:, 0] >= 24).any()
    assert ids[:, 1].unique().numel() == 3
    assert all(one.unique().numel() == 1 for one in ids[:, 2])
    assert ids[:, 2].unique().numel() == 22
    assert not there[:, 3].any()
    assert ids[:, 4].flatten().bincount(minlength=24).argmax() == 1
    assert (there[:, 5].any(-1).sum(-1) <= 1).all() and there[:, 5].any()
    assert (there[:, 6].any(1).sum(-1) <= 1).all() and there[:, 6].any()
    assert not there[:, 7, 1::2].any() and there[:, 7].any()


def test_layers_of_gpu_tests_have_plans():
    found = plans(dispatcher=Dispatcher(device="h200_sxm"))
    products = [
        s.problem for plan in found for s in plan.steps if s.problem.family == "grouped_gemm"
    ]
    assert {p.dtype_b for p in products} == {"bf16", "e4m3fn"}
    assert all((p.scale_b == "128x128") == (p.dtype_b == "e4m3fn") for p in products)
