"""What a mixture of experts is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class MoeRunnerConfig:
    activation: str = "silu"
    is_gated: bool = True
    apply_router_weight_on_input: bool = False
    no_combine: bool = False
    routed_scaling_factor: float | None = None
    gemm1_alpha: float | None = None
    gemm1_clamp_limit: float | None = None
    swiglu_limit: float | None = None
