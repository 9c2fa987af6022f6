"""Attention of whole sequences: one after another in a batch, or packed (``varlen``).

See the package for what the arguments mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import words
from tilewright.flash_attn.probabilities import Sequences, probabilities
from tilewright.flash_attn.words import Like, attention

Window = tuple[int | None, int | None]
ALL: Window = (-1, -1)

_NAMES = ("slopes", "sinks")
_VARLEN = ("q_offsets", "kv_offsets", "q_used", "kv_used", "page_table", *_NAMES)
"""The words of `attention` for the arrays behind q, k and v that a repeated call is given."""


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = ALL,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    learnable_sink: Any = None,
    **others: Any,
) -> Any:
    """Attention of a batch: q [batch, seqlen_q, heads, dim], k and v [batch, seqlen_k, heads of
    keys, dim]. Returns out, [batch, seqlen_q, heads, dim of v]."""
    like = None
    if not others and dropout_p == 0 and q_descale is k_descale is v_descale is None:
        plain = (causal, window_size, softcap, return_attn_probs)
        given = (q, k, v, alibi_slopes, learnable_sink)
        like = Like("flash_attn_func", softmax_scale, plain, _NAMES, given)
        made = like.again()
        if made is not None:
            return (*made, None) if return_attn_probs else made
    words.refuse("flash_attn_func", others)
    said = {
        **words.common(softmax_scale, softcap, alibi_slopes, learnable_sink, deterministic),
        **words.masked(causal, window_size),
        **words.dropped(dropout_p),
        **words.scaled(q, k, q_scale=q_descale, k_scale=k_descale, v_scale=v_descale),
    }
    return _run(q, k, v, said, {}, return_attn_probs, like)


def flash_attn_kvpacked_func(
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = ALL,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of keys and values in one tensor: kv [batch, seqlen, 2, heads of keys,
    dim]."""
    _packs("kv", kv, 5, 2)
    return flash_attn_func(
        q, kv[:, :, 0], kv[:, :, 1], dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = ALL,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of all in one tensor: qkv [batch, seqlen, 3, heads, dim]."""
    _packs("qkv", qkv, 5, 3)
    return flash_attn_func(
        qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = ALL,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
    *,
    seqused_q: Any = None,
    seqused_k: Any = None,
    page_table: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    learnable_sink: Any = None,
    **others: Any,
) -> Any:
    """Attention of sequences of different lengths, packed: q [total_q, heads, dim], k and v
    [total_k, heads of keys, dim]. Returns out, [total_q, heads, dim of v].

    cu_seqlens_q, cu_seqlens_k: int32 [batch + 1], the first row of each sequence, and the end.
    max_seqlen_q, max_seqlen_k: most rows of a sequence.
    block_table, page_table: int32 [batch, pages of a sequence]: k and v are pages, [pages, page
        size, heads of keys, dim], and cu_seqlens_k says lengths alone.
    seqused_q, seqused_k: int32 [batch], rows of a sequence that are used, from its first. Others of
        out are not written. With pages, seqused_k stands for cu_seqlens_k, which may be None.
    """
    like = None
    if (
        not others
        and dropout_p == 0
        and q_descale is k_descale is v_descale is None
        and (block_table is None or page_table is None)
    ):
        plain = (max_seqlen_q, max_seqlen_k, causal, window_size, softcap, return_attn_probs)
        given = (
            q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
            page_table if block_table is None else block_table, alibi_slopes, learnable_sink,
        )  # fmt: skip
        like = Like("flash_attn_varlen_func", softmax_scale, plain, _VARLEN, given)
        made = like.again()
        if made is not None:
            return (*made, None) if return_attn_probs else made
    words.refuse("flash_attn_varlen_func", others)
    table = words.one_table(block_table, page_table)
    lengths = {"q_offsets": cu_seqlens_q, "q_used": seqused_q, "max_q": max_seqlen_q}
    lengths["max_kv"] = max_seqlen_k
    if table is None:
        lengths |= {"kv_offsets": cu_seqlens_k, "kv_used": seqused_k}
    else:
        if seqused_k is None:
            seqused_k = cu_seqlens_k.diff()
        lengths |= {"page_table": table, "kv_used": seqused_k}
    said = {
        **words.common(softmax_scale, softcap, alibi_slopes, learnable_sink, deterministic),
        **words.masked(causal, window_size),
        **words.dropped(dropout_p),
        **words.scaled(q, k, q_scale=q_descale, k_scale=k_descale, v_scale=v_descale),
    }
    return _run(q, k, v, said, lengths, return_attn_probs, like)


def flash_attn_varlen_kvpacked_func(
    q: Any,
    kv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = ALL,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of keys and values in one tensor: kv [total_k, 2, heads of keys,
    dim]."""
    _packs("kv", kv, 4, 2)
    return flash_attn_varlen_func(
        q, kv[:, 0], kv[:, 1], cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Any,
    cu_seqlens: Any,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = ALL,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of all in one tensor: qkv [total, 3, heads, dim]."""
    _packs("qkv", qkv, 4, 3)
    return flash_attn_varlen_func(
        qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p,
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def _run(
    q: Any,
    k: Any,
    v: Any,
    said: Mapping[str, Any],
    lengths: Mapping[str, Any],
    probs: bool,
    like: Like | None,
) -> Any:
    q, k, v = words.dense_inside(q), words.dense_inside(k), words.dense_inside(v)
    if probs and "dropout" in said:
        if "page_table" in lengths:
            raise BadArgument("return_attn_probs with dropout needs keys that do not lie in pages")
        out, lse, random = attention(q, k, v, **said, **lengths, lse=True, random=True)
        return out, lse, probabilities(Sequences(q, k, lse, random, lengths), said)
    keywords = {**said, **lengths, **({"lse": True} if probs else {})}
    made = attention(q, k, v, **keywords)
    if like is not None:
        like.remember((q, k, v), keywords, made)
    return (*made, None) if probs else made


def _packs(name: str, x: Any, rank: int, parts: int) -> None:
    if x.ndim != rank or x.shape[-3] != parts:
        raise BadArgument(
            f"{name} is {list(x.shape)}, but must have {rank} dimensions, the third last of {parts}"
        )
