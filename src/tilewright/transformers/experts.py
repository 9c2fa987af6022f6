"""The experts function that is registered: mixtures of experts by grouped GEMM."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.errors import BadArgument
from tilewright.operation import operation

grouped_gemm = operation("grouped_gemm")


def experts(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """Experts as transformers calls them.

    self: the module of experts, whose weights, biases and gate are taken.
    hidden_states: [tokens, width]. top_k_index, top_k_weights: [tokens, k], the experts of each
        token, and what their results are multiplied by. An index beyond the experts is no
        expert's, as under expert parallelism: it adds 0.

    Returns [tokens, width]. Raises `BadArgument` where gradients are recorded.
    """
    weights = [self.gate_up_proj if self.has_gate else self.up_proj, self.down_proj]
    given = (hidden_states, *weights)
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        raise BadArgument(
            "experts_implementation='tilewright' has no gradients; call the model under "
            "torch.no_grad(), or train with experts_implementation='grouped_mm'"
        )
    tokens, k = top_k_index.shape
    chosen, order = torch.sort(top_k_index.reshape(-1))
    numbers = torch.arange(self.num_experts, device=chosen.device, dtype=chosen.dtype)
    ends = torch.searchsorted(chosen, numbers, right=True, out_int32=True)
    x = hidden_states[order // k]
    x = _linear(self, x, "gate_up_proj" if self.has_gate else "up_proj", ends)
    x = self._apply_gate(x) if self.has_gate else self.act_fn(x)
    x = _linear(self, x, "down_proj", ends)
    if self.has_post_expert_norm:
        x = self.post_expert_norm(x)
    x = x * top_k_weights.reshape(-1)[order, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return x[back].view(tokens, k, -1).sum(1).to(hidden_states.dtype)


def _linear(self: Any, x: Any, name: str, ends: Any) -> Any:
    """The rows of each expert by its weight, with its bias; 0 for rows of no expert."""
    weight = getattr(self, name)
    columns = weight if self.is_transposed else weight.transpose(1, 2)
    said = {}
    if self.has_bias:
        said = {"epilogue": "bias", "bias": getattr(self, f"{name}_bias")}
    return grouped_gemm(x.to(weight.dtype), columns, ends, zero_rest=True, **said)
