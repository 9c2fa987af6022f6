"""Attention over a cache of keys and values, which new ones may join first."""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import words
from tilewright.flash_attn.functions import ALL, Window
from tilewright.flash_attn.words import Like, attention

_NAMES = (
    "new_k", "new_v", "rotary_cos", "rotary_sin", "kv_used", "left_pad", "page_table", "q_offsets",
    "slopes", "sinks",
)  # fmt: skip
"""The words of `attention` for the arrays behind q and the cache that a repeated call is given."""


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = ALL,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int | None = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    learnable_sink: Any = None,
    **others: Any,
) -> Any:
    """Attention of q [batch, seqlen_q, heads, dim] over a cache [batch, rows, heads of keys, dim].
    Returns out, like q with the dim of v_cache; with `return_softmax_lse`, (out, softmax_lse).

    k, v: [batch, seqlen_new, heads of keys, dim], written into the cache in place, behind the rows
        that it has, before anything is read. The cache must have room.
    rotary_cos, rotary_sin: [places, rotary_dim / 2]; new keys are rotated by their places in the
        cache, and queries by the places from `cache_seqlens` on (all by that of the first, without
        mask and window).
    cache_seqlens: rows that the cache has before the call, without new ones: a number, or int32
        [batch]; None for all.
    cache_batch_idx: int32 [batch], the cache's sequence of each query's.
    cache_leftpad: int32 [batch], the cache's first rows that are left out.
    block_table, page_table: int32 [batch, pages of a sequence]; the cache is pages then, [pages,
        page size, heads of keys, dim], of any size.
    rotary_interleaved: whether elements 0 and 1, 2 and 3 … are rotated together, or the first half
        with the second.
    num_splits: 0: the kernel's choice.
    cu_seqlens_q, max_seqlen_q: q is packed, [total_q, heads, dim] (see `flash_attn_varlen_func`).

    See the package for the other arguments.
    """
    like = None
    if (
        not others
        and num_splits == 0
        and cache_batch_idx is None
        and q_descale is k_descale is v_descale is None
        and (block_table is None or page_table is None)
    ):
        plain = (
            causal, window_size, softcap, rotary_interleaved, return_softmax_lse, max_seqlen_q,
        )  # fmt: skip
        given = (
            q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_leftpad,
            page_table if block_table is None else block_table, cu_seqlens_q, alibi_slopes,
            learnable_sink,
        )  # fmt: skip
        like = Like("flash_attn_with_kvcache", softmax_scale, plain, _NAMES, given)
        made = like.again()
        if made is not None:
            return made
    words.refuse("flash_attn_with_kvcache", {**others, "num_splits": num_splits})
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.stride(-1) != 1:
            raise BadArgument(f"{name} must be contiguous in its last dimension")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    table = words.one_table(block_table, page_table)
    if cache_batch_idx is not None:
        if table is not None:
            raise BadArgument("cache_batch_idx and a page table both say where rows lie; pass one")
        table = cache_batch_idx.to(dtype=_int32()).reshape(batch, 1)  # a page is a whole row
    most = k_cache.shape[1] if table is None else table.shape[1] * k_cache.shape[1]
    if cache_seqlens is None and k is not None:
        raise BadArgument("k and v are appended behind cache_seqlens rows; pass cache_seqlens")
    if cache_seqlens is None and (table is not None or cache_leftpad is not None):
        cache_seqlens = most
    if isinstance(cache_seqlens, int):
        cache_seqlens = q.new_full((batch,), cache_seqlens, dtype=_int32())
    if (k is None) != (v is None):
        raise BadArgument("k and v are appended together; pass both")
    if (rotary_cos is None) != (rotary_sin is None):
        raise BadArgument("rotary_cos and rotary_sin are used together; pass both")
    if rotary_cos is not None and k is None:
        raise BadArgument("rotary_cos and rotary_sin rotate new keys too; pass k and v")
    said = {
        **words.common(softmax_scale, softcap, alibi_slopes, learnable_sink),
        **words.masked(causal, window_size),
        **words.scaled(q, k_cache, q_scale=q_descale, k_scale=k_descale, v_scale=v_descale),
        "kv_used": cache_seqlens,
        "left_pad": cache_leftpad,
        "page_table": table,
        "q_offsets": cu_seqlens_q,
        "max_q": max_seqlen_q,
        "lse": return_softmax_lse or None,
    }
    if k is not None:
        said |= {"new_k": k.contiguous(), "new_v": v.contiguous()}
    if rotary_cos is not None:
        style = "interleaved" if rotary_interleaved else "half"
        said |= {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "rotary": style}
    operands = words.dense_inside(q), k_cache, v_cache
    made = attention(*operands, **said)
    if like is not None:
        like.remember(operands, said, made)
    return made


def _int32() -> Any:
    import torch

    return torch.int32
