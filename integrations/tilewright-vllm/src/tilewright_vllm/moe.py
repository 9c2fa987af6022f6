"""vLLM's mixture of experts without quantisation, in bf16, by `tilewright.fused_moe`.

vLLM routes, moves rows between ranks, and adds shared experts. The experts here do the rest.
"""

from __future__ import annotations

from collections.abc import Callable
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

WORDS = ("silu", "gelu", "gelu_tanh")
"""Activations that `fused_moe` computes, with a gate and without one, by vLLM's names."""


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
        """None are needed: what lies between the steps is torch's to allocate."""
        return (0,), (0,), (M, K)

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
        tilewright.fused_moe(
            hidden_states,
            w1,
            w2,
            None if apply_router_weight_on_input else topk_weights,  # vLLM has multiplied by it
            topk_ids,
            activation=activation_of(self, activation, w1.shape[1]),
            b1=self.w1_bias,
            b2=self.w2_bias,
            expert_map=expert_map,
            out=output,
        )


def activation_of(
    experts: TilewrightExperts, activation: MoEActivation, columns: int
) -> str | Callable[[torch.Tensor], torch.Tensor]:
    """The word for an activation, else vLLM's own function of `columns` columns."""
    word = activation.value.removesuffix("_no_mul")
    usual = type(experts.activation_config)()
    if word in WORDS and experts.activation_config == usual:
        return word
    inner = experts.adjust_N_for_activation(columns, activation)

    def made(rows: torch.Tensor) -> torch.Tensor:
        out = rows.new_empty(len(rows), inner)
        experts.activation(activation, out, rows)
        return out

    return made


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
