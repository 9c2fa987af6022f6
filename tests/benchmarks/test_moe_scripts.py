"""The scripts that time whole layers of experts, without a GPU."""

from __future__ import annotations

import torch

import moe_few
import moe_step
from tilewright.arch import device


def test_a_step_of_ours_is_as_far_from_torch_s_as_roundings_are(monkeypatch):
    for name, value in (("TOKENS", 40), ("HIDDEN", 64), ("INNER", 32), ("EXPERTS", 8), ("K", 2)):
        monkeypatch.setattr(moe_step, name, value)
    x, w1, w2, weights, _ = (x.detach() for x in moe_step.operands("even", "cpu"))
    for one in (x, w1, w2):
        one.normal_(std=0.2)
    ids = torch.stack([torch.randperm(8)[:2] for _ in range(40)]).int()
    given = [*(one.requires_grad_() for one in (x, w1, w2, weights.uniform_())), ids]
    far = moe_step.compare(given, torch.randn(40, 64).bfloat16())
    assert len(far) == 5 and 0 < max(far) < moe_step.FAR
    first, other = (moe_step.LAYERS[name](*given) for name in ("torch", "torch, by index_add"))
    assert torch.allclose(first.float(), other.float(), atol=0.02)


def test_a_step_s_problems_are_known_without_computing_it():
    found = [p.family for p in moe_step.problems()]
    assert found.count("grouped_gemm") == 6
    assert "sum_of_experts_backward" in found


def test_kernels_of_ours_are_the_estimate_s_first_and_one_of_each_pipeline(monkeypatch):
    class Planner:
        def device_for_planning(self):
            return device("h200_sxm")

    monkeypatch.setattr(moe_few, "default_dispatcher", Planner)
    (first, second) = [p for p in moe_few.problems(moe_few.CELLS[0]) if p.family == "grouped_gemm"]
    for problem, pipelines in (
        (first, {"basic", "gluon_scaled"}),
        (second, {"basic", "gluon_scaled", "tma"}),
    ):
        found = moe_few.kernels(problem)
        assert len(found) >= moe_few.KERNELS
        assert {config.pipeline for config in found} == pipelines
