"""The parts of a mixture of experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import (
    ApplyMoEActivationConfig,
    MoEActivation,
    apply_moe_activation,
)
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    FusedMoEQuantConfig,
)


class FusedMoEActivationFormat(Enum):
    Standard = ("standard",)
    BatchedExperts = ("batched_experts",)


@dataclass
class ExpertTokensMetadata:
    expert_num_tokens: torch.Tensor | None
    expert_num_tokens_cpu: torch.Tensor | None


class TopKWeightAndReduce(ABC):
    @abstractmethod
    def apply(
        self,
        output: torch.Tensor | None,
        fused_expert_output: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        apply_router_weight_on_input: bool,
    ) -> torch.Tensor: ...


class FusedMoEExperts(ABC):
    def __init__(
        self,
        moe_config: FusedMoEConfig,
        quant_config: FusedMoEQuantConfig,
        max_num_tokens: int | None = None,
        num_dispatchers: int | None = None,
    ) -> None:
        self.moe_config, self.quant_config = moe_config, quant_config
        self.activation_config = ApplyMoEActivationConfig.from_configs(moe_config, quant_config)

    @staticmethod
    @abstractmethod
    def activation_format() -> FusedMoEActivationFormat: ...

    @staticmethod
    def is_supported_config(
        cls: type[FusedMoEExperts],
        moe_config: FusedMoEConfig,
        weight_key: Any,
        activation_key: Any,
        activation_format: FusedMoEActivationFormat,
    ) -> tuple[bool, str | None]:
        if not cls._supports_activation(moe_config.activation):
            return False, f"kernel does not support {moe_config.activation} activation"
        if not cls._supports_quant_scheme(weight_key, activation_key):
            return False, "kernel does not support quantization scheme"
        if not cls._supports_parallel_config(moe_config.moe_parallel_config):
            return False, "kernel does not support parallel config"
        if moe_config.is_lora_enabled:
            return False, "kernel does not support LoRA"
        return True, None

    @staticmethod
    @abstractmethod
    def _supports_current_device() -> bool: ...

    @staticmethod
    @abstractmethod
    def _supports_no_act_and_mul() -> bool: ...

    @staticmethod
    @abstractmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool: ...

    @staticmethod
    @abstractmethod
    def _supports_activation(activation: MoEActivation) -> bool: ...

    @staticmethod
    @abstractmethod
    def _supports_parallel_config(moe_parallel_config: FusedMoEParallelConfig) -> bool: ...

    @property
    def w1_bias(self) -> torch.Tensor | None:
        return self.quant_config.w1_bias

    @property
    def w2_bias(self) -> torch.Tensor | None:
        return self.quant_config.w2_bias


class FusedMoEExpertsModular(FusedMoEExperts):
    @abstractmethod
    def workspace_shapes(
        self,
        M: int,
        N: int,
        K: int,
        topk: int,
        global_num_experts: int,
        local_num_experts: int,
        expert_tokens_meta: ExpertTokensMetadata | None,
        activation: MoEActivation,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]: ...

    @staticmethod
    def adjust_N_for_activation(N: int, activation: MoEActivation) -> int:
        return N // 2 if activation.is_gated else N

    def activation(
        self,
        activation: MoEActivation,
        output: torch.Tensor,
        input: torch.Tensor,
        *,
        topk_ids: torch.Tensor | None = None,
        expert_map: torch.Tensor | None = None,
        valid_token_counts: torch.Tensor | None = None,
    ) -> None:
        apply_moe_activation(activation, output, input, activation_config=self.activation_config)

    @abstractmethod
    def finalize_weight_and_reduce_impl(self) -> TopKWeightAndReduce: ...

    @abstractmethod
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
        expert_tokens_meta: ExpertTokensMetadata | None,
        apply_router_weight_on_input: bool,
    ) -> Any: ...
