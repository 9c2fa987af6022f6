"""What is registered with transformers, once its interfaces are found to be the expected ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, masking_utils
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tilewright.transformers.attention import attention
from tilewright.transformers.experts import experts
from tilewright.transformers.masks import mask
from tilewright.transformers.patterns import Pattern, pattern_of

EXPECTED: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (
        masking_utils.sdpa_mask,
        (
            "batch_size", "q_length", "kv_length", "q_offset", "kv_offset", "mask_function",
            "attention_mask", "local_size", "allow_is_causal_skip", "allow_is_bidirectional_skip",
            "use_vmap", "device",
        ),
    ),
    (
        sdpa_attention_forward,
        ("module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal"),
    ),
    (
        grouped_mm_experts_forward,
        ("self", "hidden_states", "top_k_index", "top_k_weights"),
    ),
)  # fmt: skip
"""Functions of transformers that ours stand beside, and parameters that they must have."""


def interfaces() -> list[tuple[Any, Callable[..., Any]]]:
    """Each interface, and the function to register with it. Raises `ValueError` for a function of
    transformers with other parameters, or whose patterns of masks are not read."""
    for function, names in EXPECTED:
        missing = set(names) - {*inspect.signature(function).parameters}
        if missing:
            raise ValueError(f"{function.__name__} has no {', '.join(sorted(missing))}")
    window = masking_utils.sliding_window_causal_mask_function(3)
    if pattern_of(window) != Pattern(left=2, right=0):
        raise ValueError("sliding_window_causal_mask_function is another one")
    if not hasattr(PreTrainedModel, "_can_set_attn_implementation"):
        raise ValueError("PreTrainedModel has no _can_set_attn_implementation")
    return [
        (AttentionInterface, attention),
        (AttentionMaskInterface, mask),
        (ExpertsInterface, experts),
    ]
