"""FlashAttention's functions, computed by `tilewright.attention`: the import line is the change.

    from tilewright.flash_attn import flash_attn_func, flash_attn_varlen_func

Names, order and defaults of arguments are those of FlashAttention 2 (Dao-AILab/flash-attention,
``flash_attn/flash_attn_interface.py``); the further arguments of FlashAttention 3 and 4 that are
supported are taken by keyword. Arrays are torch tensors of one device; on the CPU they run in
Triton's interpreter. What all functions share:

q, k, v: [batch, seqlen, heads, dim]; with ``varlen``, [total, heads, dim]. The innermost dimension
    is copied if it is not contiguous. Query heads are a multiple of the heads of keys.
dropout_p: share of weights that become zero, rounded to a multiple of 1/256. The seed comes from
    torch's generator of the CPU (``torch.manual_seed``).
softmax_scale: of the scores; None for dim ** -0.5.
causal: whether a query sees no later key; the last query is in the place of the last key.
window_size: (left, right), how many keys beside its own place a query sees; a negative number, or
    None, sets no bound.
softcap: scores s become softcap * tanh(s / softcap); 0 or less for none.
alibi_slopes: fp32 [heads] or [batch, heads].
deterministic: gradients have the same bits in every run. The forward pass always has.
return_attn_probs: return (out, softmax_lse, S_dmask). S_dmask is None without dropout; with it, the
    softmax before dropout, [batch, heads, most queries, most keys], negative where a weight was
    dropped. It is computed by torch, for tests.
q_descale, k_descale, v_descale: fp32 [batch, heads of keys], what fp8 operands are multiplied by;
    one that is left out is 1.
learnable_sink: [heads], a score that joins the softmax and has no value.

A row that sees no key gives 0, and softmax_lse -inf. softmax_lse is a natural logarithm, fp32
[batch, heads, seqlen], with ``varlen`` [heads, total].

Gradients are those of `tilewright.attention`. Pages and appended keys have none: an operand that
requires one raises `BadArgument`, unless torch records none. So does every argument that is not
supported, by its name.
"""

from __future__ import annotations

from tilewright.flash_attn.functions import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from tilewright.flash_attn.kvcache import flash_attn_with_kvcache

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
