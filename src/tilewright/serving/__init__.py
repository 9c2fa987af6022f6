"""Attention for serving, in FlashInfer's manner: `plan` says where the sequences of a batch lie,
and `run` computes a layer's attention, as often as there are layers.

    attention = PagedAttention("cuda")
    attention.plan(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
                   num_qo_heads=32, num_kv_heads=8, head_dim=128, page_size=16, causal=True)
    for layer in layers:
        o = attention.run(q, layer.kv_cache)

Arguments are named as FlashInfer's (flashinfer-ai/flashinfer). A plan copies lengths to the host,
checks them, and writes int32 arrays on the device; which kernel runs is chosen and kept by
`tilewright.attention`, which `run` calls.

**CUDA graphs.** Pass ``capacity=``: arrays then keep their shape and their address, and a plan
fills them. Capture a `run`; before each replay, plan the new lengths. What else a plan says must
stay.
"""

from __future__ import annotations

from tilewright.serving.append import append_paged_kv_cache, get_batch_indices_positions
from tilewright.serving.buffers import Capacity
from tilewright.serving.latent import LatentAttention
from tilewright.serving.merge import merge_state, merge_state_in_place, merge_states
from tilewright.serving.paged import PagedAttention
from tilewright.serving.ragged import RaggedAttention

__all__ = [
    "Capacity",
    "LatentAttention",
    "PagedAttention",
    "RaggedAttention",
    "append_paged_kv_cache",
    "get_batch_indices_positions",
    "merge_state",
    "merge_state_in_place",
    "merge_states",
]
