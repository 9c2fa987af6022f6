"""Linear layers."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.custom_op import PluggableLayer


class UnquantizedLinearMethod:
    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        weight: Any = layer.weight
        return torch.nn.functional.linear(x, weight, bias)


class LinearBase(PluggableLayer):
    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = False,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: Any = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
        disable_tp: bool = False,
        tp_rank: int | None = None,
        tp_size: int | None = None,
    ) -> None:
        super().__init__()
        self.params_dtype = params_dtype or torch.get_default_dtype()
        self.prefix = prefix
        self.quant_method: Any = UnquantizedLinearMethod()
        weight = torch.empty(output_size, input_size, dtype=self.params_dtype)
        self.register_parameter("weight", torch.nn.Parameter(weight, requires_grad=False))
        if bias:
            values = torch.empty(output_size, dtype=self.params_dtype)
            self.register_parameter("bias", torch.nn.Parameter(values, requires_grad=False))


class ReplicatedLinear(LinearBase):
    def forward(self, x: torch.Tensor) -> Any:
        return self.quant_method.apply(self, x, getattr(self, "bias", None)), None


class ColumnParallelLinear(LinearBase):
    pass


class MergedColumnParallelLinear(ColumnParallelLinear):
    pass


class QKVParallelLinear(ColumnParallelLinear):
    pass


class RowParallelLinear(LinearBase):
    pass
