"""Which kernels linear layers may have."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    FP8ScaledMMLinearKernel,
    FP8ScaledMMLinearLayerConfig,
)
from vllm.platforms.interface import PlatformEnum

__all__ = [
    "_POSSIBLE_FP8_KERNELS",
    "FP8ScaledMMLinearKernel",
    "FP8ScaledMMLinearLayerConfig",
    "register_linear_kernel",
]


class _OfVllm(FP8ScaledMMLinearKernel):
    """A kernel that vLLM has already."""


_POSSIBLE_FP8_KERNELS: dict[PlatformEnum, list[Any]] = {p: [_OfVllm] for p in PlatformEnum}


def register_linear_kernel(
    kernel_class: type, platform: PlatformEnum, kernel_type: str = "mp"
) -> None:
    assert kernel_type == "fp8"
    _POSSIBLE_FP8_KERNELS[platform].append(kernel_class)
