"""The method of a mixture of experts without quantisation."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.oracle.unquantized import select_unquantized_moe_backend


class UnquantizedFusedMoEMethod(CustomOp):
    def __init__(self, moe: FusedMoEConfig) -> None:
        super().__init__()
        self.moe = moe
        self.experts_cls: Any
        self.unquantized_backend, self.experts_cls = select_unquantized_moe_backend(moe_config=moe)
