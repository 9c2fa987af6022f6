"""Activations between the two products of an expert."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch


class MoEActivation(Enum):
    SILU = "silu"
    RELU2 = "relu2"

    @property
    def is_gated(self) -> bool:
        return not self.value.endswith("_no_mul")


@dataclass(frozen=True)
class ApplyMoEActivationConfig:
    @classmethod
    def from_configs(cls, moe_config: Any, quant_config: Any) -> ApplyMoEActivationConfig:
        return cls()


def apply_moe_activation_supported(activation: MoEActivation) -> bool:
    return activation == MoEActivation.SILU


def apply_moe_activation(
    activation: MoEActivation,
    output: torch.Tensor,
    input: torch.Tensor,
    *,
    activation_config: ApplyMoEActivationConfig | None = None,
    topk_ids: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    valid_token_counts: torch.Tensor | None = None,
) -> torch.Tensor:
    gate, up = input.chunk(2, -1)
    return output.copy_(torch.nn.functional.silu(gate) * up)
