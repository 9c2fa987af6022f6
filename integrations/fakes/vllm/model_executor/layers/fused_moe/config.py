"""What a mixture of experts is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation


@dataclass
class FusedMoEParallelConfig:
    use_batched_activation_format: bool = False
    use_fi_nvl_two_sided_kernels: bool = False
    use_fi_nvl_one_sided_kernels: bool = False
    use_moonep_kernels: bool = False


@dataclass
class FusedMoEQuantConfig:
    w1_bias: torch.Tensor | None = None
    w2_bias: torch.Tensor | None = None


@dataclass
class FusedMoEConfig:
    num_experts: int
    experts_per_token: int
    hidden_dim: int
    intermediate_size: int
    num_local_experts: int
    num_logical_experts: int
    activation: MoEActivation
    device: torch.device | str
    routing_method: Any
    moe_parallel_config: FusedMoEParallelConfig
    in_dtype: torch.dtype
    router_logits_dtype: torch.dtype | None = None
    is_lora_enabled: bool = False
    has_hash_routing: bool = False
    is_act_and_mul: bool = field(default=True, init=False)


class RoutingMethodType:
    pass
