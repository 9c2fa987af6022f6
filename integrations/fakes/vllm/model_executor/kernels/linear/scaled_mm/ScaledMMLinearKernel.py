"""Kernels of linear layers of fp8 weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
from vllm.model_executor.layers.quantization.utils.quant_utils import QuantKey


@dataclass
class FP8ScaledMMLinearLayerConfig:
    weight_quant_key: QuantKey
    activation_quant_key: QuantKey
    weight_shape: tuple[int, int]
    input_dtype: torch.dtype
    out_dtype: torch.dtype


class ScaledMMLinearKernel(ABC):
    @classmethod
    @abstractmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]: ...

    @classmethod
    @abstractmethod
    def can_implement(cls, c: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]: ...


class FP8ScaledMMLinearKernel(ScaledMMLinearKernel):
    def __init__(self, c: FP8ScaledMMLinearLayerConfig, layer_param_names: Sequence[str]) -> None:
        scale = c.activation_quant_key.scale
        self.quant_fp8 = QuantFP8(static=scale.static, group_shape=scale.group_shape)
        self.config = c
        self.layer_param_names = layer_param_names

    def apply_weights(
        self, layer: torch.nn.Module, x: Any, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        w, w_s, x_s, x_s_ub = (getattr(layer, name, None) for name in self.layer_param_names)
        assert w is not None and w_s is not None
        rows, scales = self.quant_fp8(x.view(-1, x.shape[-1]), x_s, x_s_ub)
        return self.apply_scaled_mm(
            A=rows,
            B=w,
            out_dtype=self.config.out_dtype,
            As=scales,
            Bs=w_s,
            bias=bias,
            output_shape=[*x.shape[:-1], w.shape[1]],
        )

    @abstractmethod
    def apply_scaled_mm(
        self,
        *,
        A: torch.Tensor,
        B: torch.Tensor,
        out_dtype: torch.dtype,
        As: torch.Tensor,
        Bs: torch.Tensor,
        bias: torch.Tensor | None,
        output_shape: list[Any],
    ) -> torch.Tensor: ...
