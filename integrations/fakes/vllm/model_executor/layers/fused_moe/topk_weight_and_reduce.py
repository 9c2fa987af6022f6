"""What is left to do for the sum of experts."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe.modular_kernel import TopKWeightAndReduce


class TopKWeightAndReduceNoOP(TopKWeightAndReduce):
    def apply(
        self,
        output: torch.Tensor | None,
        fused_expert_output: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        apply_router_weight_on_input: bool,
    ) -> torch.Tensor:
        return fused_expert_output
