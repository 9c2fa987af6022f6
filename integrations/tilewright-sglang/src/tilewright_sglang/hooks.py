"""Functions of SGLang that Tilewright computes in their place, as far as it serves the call.

SGLang has no registry of kernels for these, so they are hooks around its own functions: each is
given the original first, and calls it for what Tilewright does not serve. SGLang puts them there
when all plug-ins have registered theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

import tilewright

Original = Callable[..., Any]


def linear(
    original: Original, self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    """x·Wᵀ + bias in one launch, in bf16."""
    weight = layer.weight
    if not (x.dtype == weight.dtype == torch.bfloat16 and weight.ndim == 2):
        _left("a linear layer", f"it is in {weight.dtype}, under activations in {x.dtype}")
        return original(self, layer, x, bias)
    rows = x.reshape(-1, x.shape[-1])
    if bias is None:
        y = tilewright.gemm(rows, weight.t())
    else:
        y = tilewright.gemm(rows, weight.t(), bias=bias, epilogue="bias")
    return y.view(*x.shape[:-1], y.shape[-1])


def scaled_mm(
    original: Original,
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> Any:
    """(A·B) by a scale of each row of A, or of all A, and of each column of B, plus a bias."""
    (m, _), n = mat_a.shape, mat_b.shape[1]
    rows, columns = scales_a.reshape(-1), scales_b.reshape(-1)
    if len(columns) != n or len(rows) not in (1, m):
        _left("a product in fp8", f"its scales are {list(scales_a.shape)}, {list(scales_b.shape)}")
        return original(mat_a, mat_b, scales_a, scales_b, out_dtype, bias)
    steps, operands = ["row_scale", "col_scale"], [rows, columns]
    if len(rows) != m:
        steps[0], operands[0] = "scale", rows.reshape(())
    if bias is not None:
        steps, operands = [*steps, "bias"], [*operands, bias.to(out_dtype)]
    out = torch.empty(m, n, dtype=out_dtype, device=mat_a.device)
    return tilewright.gemm(mat_a, mat_b, *operands, epilogue="+".join(steps), out=out)


def experts(original: Original, self: Any, layer: Any, dispatch_output: Any) -> Any:
    """The weighted sum of each token's experts, in bf16. Routing is SGLang's."""
    reason = refusal(self, layer, dispatch_output)
    if reason is not None:
        _left("a mixture of experts", reason)
        return original(self, layer, dispatch_output)
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput

    weights, ids, *_ = dispatch_output.topk_output
    out = tilewright.fused_moe(
        dispatch_output.hidden_states,
        layer.w13_weight,
        layer.w2_weight,
        weights,
        ids,
        interleaved=self.w13_swiglu_interleaved,
        routed_scaling_factor=self.moe_runner_config.routed_scaling_factor or 1.0,
    )
    return StandardCombineInput(hidden_states=out)


def refusal(method: Any, layer: Any, dispatch_output: Any) -> str | None:
    """Why a mixture of experts is left to SGLang; None if it is not."""
    config = method.moe_runner_config
    runner = method.runner if method._aiter_runner is None else method._aiter_runner
    found = {
        f"it is in {layer.w13_weight.dtype}": layer.w13_weight.dtype != torch.bfloat16,
        f"rows are {dispatch_output.hidden_states.dtype}": dispatch_output.hidden_states.dtype
        != torch.bfloat16,
        f"it has the runner {runner.runner_backend.value}": not runner.runner_backend.is_triton(),
        f"rows come as {dispatch_output.format.value}": dispatch_output.format.value != "standard",
        "it has biases": method.with_bias,
        f"its activation is {config.activation}": config.activation != "silu"
        or not config.is_gated,
        "its activation is clamped": (
            config.gemm1_alpha is not None
            or config.gemm1_clamp_limit is not None
            or config.swiglu_limit is not None
        ),
        "rows are multiplied by the router's weights before": config.apply_router_weight_on_input,
        "rows of experts are not summed": config.no_combine,
    }
    return next((what for what, there in found.items() if there), None)


HOOKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "linear": ("sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply", linear),
    "fp8": ("sglang.kernels.ops.gemm.fp8_scaled_mm", scaled_mm),
    "moe": ("sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod.apply", experts),
}
"""By part: what is computed in whose place."""


def register_hook(part: str) -> None:
    """Let SGLang put a part's function around its own."""
    target, hook = HOOKS[part]
    HookRegistry.register(target, hook, HookType.AROUND)


_said: set[tuple[str, str]] = set()


def _left(what: str, why: str) -> None:
    """Say once that a call is left to SGLang."""
    if (what, why) not in _said:
        _said.add((what, why))
        import logging

        logging.getLogger(__name__).warning("Tilewright does not compute %s: %s", what, why)
