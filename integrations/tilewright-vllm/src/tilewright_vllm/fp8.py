"""vLLM's linear layers of fp8 weights and fp8 activations, by `tilewright.gemm`."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.kernels.linear import (
    _POSSIBLE_FP8_KERNELS,
    FP8ScaledMMLinearKernel,
    FP8ScaledMMLinearLayerConfig,
    register_linear_kernel,
)
from vllm.platforms import current_platform
from vllm.platforms.interface import PlatformEnum

import tilewright


class TilewrightFP8LinearKernel(FP8ScaledMMLinearKernel):
    """(A·B) by scales of A's rows or of all A, and of B's columns or of all B, plus a bias."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        if not current_platform.is_cuda_alike():
            return False, "needs a GPU of NVIDIA or AMD"
        if compute_capability is not None and compute_capability < 89:
            return False, f"needs fp8, which capability {compute_capability} does not have"
        return True, None

    @classmethod
    def can_implement(cls, c: FP8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        rows = c.activation_quant_key.scale.group_shape
        columns = c.weight_quant_key.scale.group_shape
        if not (rows.is_per_tensor() or rows.is_per_token()):
            return False, f"has activations' scales by tensor and token, not by {tuple(rows)}"
        if not (columns.is_per_tensor() or columns.is_per_channel()):
            return False, f"has weights' scales by tensor and channel, not by {tuple(columns)}"
        if c.out_dtype not in (torch.bfloat16, torch.float16):
            return False, f"gives bf16 and fp16, not {c.out_dtype}"
        return True, None

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
    ) -> torch.Tensor:
        """A [rows, k], B [k, n]. As: fp32 of one element, or of [rows]; Bs: of one, or of [n]."""
        m, n = A.shape[0], B.shape[1]
        steps, operands = scale_steps(As.reshape(-1), Bs.reshape(-1), m, n)
        if bias is not None:
            steps, operands = [*steps, "bias"], [*operands, bias]
        out = torch.empty(m, n, dtype=out_dtype, device=A.device)
        tilewright.gemm(A, B, *operands, epilogue="+".join(steps), out=out)
        return out.view(*output_shape)


def scale_steps(
    rows: torch.Tensor, columns: torch.Tensor, m: int, n: int
) -> tuple[list[str], list[torch.Tensor]]:
    """The steps of an epilogue that multiply by scales of A and of B, and their operands.

    rows, columns: fp32 [1], or [m] and [n].
    """
    by_row, by_column = len(rows) == m != 1, len(columns) == n != 1
    if not (by_row or by_column):
        return ["scale"], [(rows * columns).reshape(())]
    return (
        ["row_scale" if by_row else "scale", "col_scale" if by_column else "scale"],
        [rows if by_row else rows.reshape(()), columns if by_column else columns.reshape(())],
    )


def register_fp8() -> None:
    """Let vLLM try `TilewrightFP8LinearKernel` before its own kernels."""
    for platform in (PlatformEnum.CUDA, PlatformEnum.ROCM):
        register_linear_kernel(TilewrightFP8LinearKernel, platform, "fp8")
        kernels = _POSSIBLE_FP8_KERNELS[platform]
        kernels.insert(0, kernels.pop())  # vLLM puts a new one last, and takes the first
