"""vLLM's linear layers without quantisation, in bf16, by `tilewright.gemm`.

vLLM makes the classes here in place of its own (`PluggableLayer.register_oot`).
"""

from __future__ import annotations

from typing import Any

import torch
import vllm.envs as envs
from vllm.logger import init_logger
from vllm.model_executor.custom_op import PluggableLayer
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

import tilewright

logger = init_logger(__name__)


class TilewrightLinearMethod(UnquantizedLinearMethod):
    """x·Wᵀ + bias in one launch."""

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        weight: Any = layer.weight
        y: torch.Tensor
        if bias is None:
            y = tilewright.gemm(rows, weight.t())
        else:
            y = tilewright.gemm(rows, weight.t(), bias=bias, epilogue="bias")
        return y.view(*x.shape[:-1], y.shape[-1])


class _Linear(LinearBase):
    """Gives a layer `TilewrightLinearMethod` in place of vLLM's, if it serves the layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if type(self.quant_method) is not UnquantizedLinearMethod:
            return
        reason = refusal(self.params_dtype)
        if reason is None:
            self.quant_method = TilewrightLinearMethod()
        else:
            logger.warning_once("Tilewright does not compute linear layers: %s", reason)


class TilewrightReplicatedLinear(_Linear, ReplicatedLinear):
    """vLLM's ``ReplicatedLinear``."""


class TilewrightColumnParallelLinear(_Linear, ColumnParallelLinear):
    """vLLM's ``ColumnParallelLinear``."""


class TilewrightMergedColumnParallelLinear(_Linear, MergedColumnParallelLinear):
    """vLLM's ``MergedColumnParallelLinear``."""


class TilewrightQKVParallelLinear(_Linear, QKVParallelLinear):
    """vLLM's ``QKVParallelLinear``."""


class TilewrightRowParallelLinear(_Linear, RowParallelLinear):
    """vLLM's ``RowParallelLinear``."""


LAYERS = (
    TilewrightReplicatedLinear,
    TilewrightColumnParallelLinear,
    TilewrightMergedColumnParallelLinear,
    TilewrightQKVParallelLinear,
    TilewrightRowParallelLinear,
)


def register_linear() -> None:
    """Let vLLM make `LAYERS` in place of its own layers, by the names of these."""
    for layer in LAYERS:
        PluggableLayer.register_oot(layer, name=layer.__name__.removeprefix("Tilewright"))


def refusal(dtype: torch.dtype) -> str | None:
    """Why a layer with weights of this dtype is left to vLLM; None if it is not."""
    if envs.VLLM_BATCH_INVARIANT:
        return "VLLM_BATCH_INVARIANT asks for vLLM's own kernels"
    if dtype != torch.bfloat16:
        return f"its weights are {dtype}, and only bf16 is supported"
    return None
