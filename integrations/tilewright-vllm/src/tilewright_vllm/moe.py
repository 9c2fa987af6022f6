"""vLLM's mixture of experts without quantisation, in bf16, by `tilewright.grouped_gemm`.

vLLM routes, moves rows between ranks, and adds shared experts. The experts here do the rest:
rows sorted by expert, two products for all experts, and the weighted sum.
"""

from __future__ import annotations

from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.activation import (
    MoEActivation,
    apply_moe_activation_supported,
)
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.platforms import current_platform

import tilewright

logger = init_logger(__name__)
STANDARD = mk.FusedMoEActivationFormat.Standard


class TilewrightExperts(mk.FusedMoEExpertsModular):
    """The experts of a layer: rows [tokens, hidden], before and after."""

    @staticmethod
    def activation_format() -> mk.FusedMoEActivationFormat:
        return STANDARD

    @staticmethod
    def is_supported_config(
        cls: type[mk.FusedMoEExperts],
        moe_config: FusedMoEConfig,
        weight_key: Any,
        activation_key: Any,
        activation_format: mk.FusedMoEActivationFormat,
    ) -> tuple[bool, str | None]:
        """vLLM's own questions, and the dtype of the rows."""
        if moe_config.in_dtype != torch.bfloat16:
            return False, f"kernel does not support {moe_config.in_dtype}, but bf16 alone"
        return mk.FusedMoEExperts.is_supported_config(
            cls, moe_config, weight_key, activation_key, activation_format
        )

    @staticmethod
    def _supports_current_device() -> bool:
        return current_platform.is_cuda_alike()

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return apply_moe_activation_supported(activation)

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: FusedMoEParallelConfig) -> bool:
        return not (
            moe_parallel_config.use_batched_activation_format
            or moe_parallel_config.use_fi_nvl_two_sided_kernels
            or moe_parallel_config.use_fi_nvl_one_sided_kernels
            or moe_parallel_config.use_moonep_kernels
        )

    def finalize_weight_and_reduce_impl(self) -> mk.TopKWeightAndReduce:
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(
        self,
        M: int,
        N: int,
        K: int,
        topk: int,
        global_num_experts: int,
        local_num_experts: int,
        expert_tokens_meta: mk.ExpertTokensMetadata | None,
        activation: MoEActivation,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The first is for the activations, the second for the results of both products."""
        return (M, topk, self.adjust_N_for_activation(N, activation)), (M, topk, max(N, K)), (M, K)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: mk.ExpertTokensMetadata | None,
        apply_router_weight_on_input: bool,
    ) -> None:
        """Write the experts' weighted sum for each token to `output` [tokens, hidden].

        w1: [experts, n, hidden]; w2: [experts, hidden, n, or half of it where gated].
        topk_weights, topk_ids: [tokens, k]. expert_map: the local number of each expert, or -1.
        """
        tokens, k = topk_ids.shape
        rows, (experts, n, hidden) = tokens * k, w1.shape
        inner = self.adjust_N_for_activation(n, activation)
        ids = topk_ids.reshape(-1).long()
        if expert_map is not None:
            ids = torch.where(ids < 0, -1, expert_map[ids.clamp(min=0)].long())
        here = (ids >= 0) & (ids < experts)
        order, ends = sorted_rows(torch.where(here, ids, experts), experts)
        # Workspace 2 holds the first product, then the second; the activations lie between them.
        first = workspace2.view(-1)[: rows * n].view(rows, n)
        middle = workspace13.view(-1)[: rows * inner].view(rows, inner)
        last = workspace2.view(-1)[: rows * hidden].view(rows, hidden)
        product(hidden_states[order // k], w1, ends, self.w1_bias, first)
        self.activation(activation, middle, first)
        product(middle, w2, ends, self.w2_bias, last)
        placed = torch.empty_like(last)
        placed[order] = last
        if not apply_router_weight_on_input:  # else vLLM has multiplied what came in
            placed = placed * topk_weights.reshape(-1, 1)
        # A row of no expert here is not computed, and holds anything.
        placed = torch.where(here[:, None], placed, 0)
        output.copy_(placed.view(tokens, k, hidden).sum(1, dtype=torch.float32))


def sorted_rows(experts_of: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in the order of their experts, and int32 [experts], where each expert's rows end.

    experts_of: the expert of each row; `experts` for a row of none, which comes last. Nothing waits
        for the device.
    """
    found, order = torch.sort(experts_of, stable=True)
    each = torch.arange(experts, dtype=found.dtype, device=found.device)
    return order, torch.searchsorted(found, each, right=True, out_int32=True)


def product(
    rows: torch.Tensor,
    weights: torch.Tensor,
    ends: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Write each expert's rows times its weights [experts, n, k], transposed, plus its bias."""
    given = (rows, weights.transpose(1, 2), ends)
    if bias is None:
        tilewright.grouped_gemm(*given, out=out)
    else:
        tilewright.grouped_gemm(*given, bias, epilogue="bias", out=out)


class TilewrightFusedMoEMethod(UnquantizedFusedMoEMethod):
    """vLLM's method with `TilewrightExperts`, if they serve the layer."""

    def __init__(self, moe: FusedMoEConfig) -> None:
        super().__init__(moe)
        supported, reason = TilewrightExperts.is_supported_config(
            TilewrightExperts, moe, None, None, STANDARD
        )
        if supported:
            # Weights as they are loaded, and vLLM's own steps around the experts.
            self.unquantized_backend = UnquantizedMoeBackend.TRITON
            self.experts_cls = TilewrightExperts
        else:
            logger.warning_once("Tilewright does not compute mixtures of experts: %s", reason)


def register_moe() -> None:
    """Let vLLM make `TilewrightFusedMoEMethod` in place of its ``UnquantizedFusedMoEMethod``."""
    UnquantizedFusedMoEMethod.register_oot(TilewrightFusedMoEMethod)
