"""The experts function that is registered: mixtures of experts as one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations import moe as theirs

from tilewright.moe import fused_moe, rows_of_experts
from tilewright.operation import operation

sum_of_experts = operation("sum_of_experts")

WORDS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "ReLU": "relu",
}
"""Activations by the names of torch's and transformers' classes."""


def experts(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """Experts as transformers calls them.

    self: the module of experts, whose weights, biases and gate are taken.
    hidden_states: [tokens, width]. top_k_index, top_k_weights: [tokens, k], the experts of each
        token, and what their results are multiplied by. An index beyond the experts is no
        expert's, as under expert parallelism: it adds 0.

    Returns [tokens, width].
    """
    name = "gate_up_proj" if self.has_gate else "up_proj"
    up, down = getattr(self, name), self.down_proj
    if not len(hidden_states):
        return torch.empty_like(hidden_states)
    biases = {}
    if self.has_bias:
        biases = {"b1": getattr(self, f"{name}_bias"), "b2": self.down_proj_bias}
    if self.is_transposed:
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    given = (hidden_states.to(up.dtype), up, down)
    said = {"activation": _activation(self), **biases}
    if not self.has_post_expert_norm:
        y = fused_moe(*given, top_k_weights, top_k_index, **said)
    else:
        rows, places = rows_of_experts(*given, top_k_index, **said)
        y = sum_of_experts(self.post_expert_norm(rows), places, weights=top_k_weights)
    return y.to(hidden_states.dtype)


def _activation(self: Any) -> str | Callable[[Any], Any]:
    """The word for a module's activation, else its own function."""
    word = WORDS.get(type(getattr(self, "act_fn", None)).__name__)
    if not self.has_gate:
        return word or self.act_fn
    usual = type(self)._apply_gate is getattr(theirs, "_default_apply_gate", None)
    return word if usual and word else self._apply_gate
