"""Layers without quantisation."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig


class UnquantizedLinearMethod:
    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        weight: Any = layer.weight
        return torch.nn.functional.linear(x, weight, bias)


class UnquantizedFusedMoEMethod:
    def __init__(
        self,
        use_triton_kernels: bool = False,
        use_flashinfer_trtllm_moe: bool = False,
        use_deep_gemm: bool = False,
    ) -> None:
        self.with_bias = False
        self.runner: Any = None
        self._aiter_runner: Any = None
        self.w13_swiglu_interleaved = False

    def create_moe_runner(self, layer: torch.nn.Module, moe_runner_config: MoeRunnerConfig) -> None:
        self.moe_runner_config = moe_runner_config

    def apply(self, layer: torch.nn.Module, dispatch_output: Any) -> Any:
        return "SGLang's own"
