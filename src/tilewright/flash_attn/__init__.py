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
q_descale, k_descale, v_descale: fp32 [batch, heads of keys] or [1], or a number: what fp8 operands
    are multiplied by; one that is left out is 1.
learnable_sink, s_aux: [heads], a score that joins the softmax and has no value; two names of one
    argument.
num_splits: 0: the kernel's choice; 1: a kernel that gives a sequence the same bits whatever is
    computed beside it (`Constraints.batch_invariant`). Other numbers are refused.
return_softmax_lse: return (out, softmax_lse).
out: where out is written; no gradients are recorded then.
fa_version: 2, 3 or 4, which says nothing here.

A row that sees no key gives 0, and softmax_lse -inf. softmax_lse is a natural logarithm, fp32
[batch, heads, seqlen], with ``varlen`` [heads, total].

Numbers are Python's, NumPy's, or in tensors of no dimension.

Gradients are those of `tilewright.attention`. Pages and appended keys have none: an operand that
requires one raises `BadArgument`, unless torch records none. So does every argument that is not
supported, by its name, with the reason and the way around it. Every other wrong argument raises
`BadArgument` or `WrongDevice`, with its name; `TypeError` only where Python raises it.

Besides, torch computes `unpad_input`, `pad_input`, `index_first_axis` (of
``flash_attn.bert_padding``) and `apply_rotary_emb` (of ``flash_attn.layers.rotary``).
"""

from __future__ import annotations

from tilewright.flash_attn.bert_padding import (
    index_first_axis,
    index_put_first_axis,
    pad_input,
    unpad_input,
)
from tilewright.flash_attn.functions import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from tilewright.flash_attn.kvcache import flash_attn_with_kvcache
from tilewright.flash_attn.rotary import apply_rotary_emb

__all__ = [
    "apply_rotary_emb",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "index_first_axis",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
]
