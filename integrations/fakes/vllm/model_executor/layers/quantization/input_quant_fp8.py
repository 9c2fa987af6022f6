"""Activations in fp8."""

from __future__ import annotations

import torch
from torch import nn
from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape


class QuantFP8(nn.Module):
    def __init__(
        self, static: bool, group_shape: GroupShape, num_token_padding: int | None = None
    ) -> None:
        super().__init__()
        self.group_shape = group_shape

    def forward(
        self,
        x: torch.Tensor,
        scale: torch.Tensor | None = None,
        scale_ub: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if scale is None:
            most = x.abs().float()
            by_row = self.group_shape.is_per_token()
            scale = (most.amax(1, keepdim=True) if by_row else most.max().reshape(1)) / 448
        return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale
