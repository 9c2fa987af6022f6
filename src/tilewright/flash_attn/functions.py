"""Attention of whole sequences: one after another in a batch, or packed (``varlen``).

See the package for what the arguments mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked, words
from tilewright.flash_attn.probabilities import Sequences, probabilities
from tilewright.flash_attn.words import Like, attention

Window = Sequence[int | None] | None
ALL: Window = (-1, -1)

_NAMES = ("slopes", "sinks", "out")
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
    s_aux: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    out: Any = None,
    **others: Any,
) -> Any:
    """Attention of a batch: q [batch, seqlen_q, heads, dim], k and v [batch, seqlen_k, heads of
    keys, dim]. Returns out, [batch, seqlen_q, heads, dim of v].

    See the package for what the arguments mean, what else may be returned, and errors.
    """
    if type(window_size) is not tuple:
        window_size = words.bounds(window_size)
    like = None
    if (
        not others
        and type(dropout_p) in (float, int)
        and dropout_p == 0
        and q_descale is k_descale is v_descale is None
    ):
        plain = (
            causal, softcap, deterministic, return_attn_probs, num_splits, return_softmax_lse,
            *window_size,
        )  # fmt: skip
        sink = s_aux if learnable_sink is None else learnable_sink
        given = (q, k, v, alibi_slopes, sink, out)
        like = Like("flash_attn_func", softmax_scale, plain, _NAMES, given)
        made = like.again()
        if made is not None:
            if out is not None:
                return out
            return (*made, None) if return_attn_probs else made
    words.refuse("flash_attn_func", others)
    checked.tensor("q", q, "batch", "seqlen_q", "heads", "dim")
    checked.tensor("k", k, "batch", "seqlen_k", "heads of keys", "dim")
    checked.tensor("v", v, "batch", "seqlen_k", "heads of keys", "dim of v")
    sink = words.one_of(learnable_sink=learnable_sink, s_aux=s_aux)
    said = {
        **words.common(softmax_scale, softcap, alibi_slopes, sink, deterministic),
        **words.masked(causal, window_size),
        **words.dropped(dropout_p),
        **words.scaled(q, k, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale),
        **words.splits("flash_attn_func", num_splits),
    }
    returned = Returned.of(return_attn_probs, return_softmax_lse, out)
    return _run(q, k, v, said, {}, returned, like)


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
    dim].

    Other arguments, what is returned, and errors are those of `flash_attn_func`.
    """
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
    """`flash_attn_func` of all in one tensor: qkv [batch, seqlen, 3, heads, dim].

    Other arguments, what is returned, and errors are those of `flash_attn_func`.
    """
    _packs("qkv", qkv, 5, 3)
    return flash_attn_func(
        qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
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
    s_aux: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    out: Any = None,
    **others: Any,
) -> Any:
    """Attention of sequences of different lengths, packed: q [total_q, heads, dim], k and v
    [total_k, heads of keys, dim]. Returns out, [total_q, heads, dim of v].

    cu_seqlens_q, cu_seqlens_k: int32 [batch + 1], the first row of each sequence, and the end.
    max_seqlen_q, max_seqlen_k: most rows of a sequence; with pages, max_seqlen_k may be None: as
        many as a row of the table has.
    block_table, page_table: int32 [batch, pages of a sequence]: k and v are pages, [pages, page
        size, heads of keys, dim], and cu_seqlens_k says lengths alone.
    seqused_q, seqused_k: int32 [batch], rows of a sequence that are used, from its first. Others of
        out are not written. With pages, seqused_k stands for cu_seqlens_k, which may be None.

    See the package for what the others mean, what else may be returned, and errors.
    """
    if type(window_size) is not tuple:
        window_size = words.bounds(window_size)
    like = None
    if (
        not others
        and type(dropout_p) in (float, int)
        and dropout_p == 0
        and q_descale is k_descale is v_descale is None
        and (block_table is None or page_table is None)
    ):
        plain = (
            max_seqlen_q, max_seqlen_k, causal, softcap, deterministic, return_attn_probs,
            num_splits, return_softmax_lse, *window_size,
        )  # fmt: skip
        given = (
            q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
            page_table if block_table is None else block_table, alibi_slopes,
            s_aux if learnable_sink is None else learnable_sink, out,
        )  # fmt: skip
        like = Like("flash_attn_varlen_func", softmax_scale, plain, _VARLEN, given)
        made = like.again()
        if made is not None:
            if out is not None:
                return out
            return (*made, None) if return_attn_probs else made
    words.refuse("flash_attn_varlen_func", others)
    table = words.one_table(block_table, page_table)
    rows = ("total_k",) if table is None else ("pages", "page size")
    checked.tensor("q", q, "total_q", "heads", "dim")
    checked.tensor("k", k, *rows, "heads of keys", "dim")
    checked.tensor("v", v, *rows, "heads of keys", "dim of v")
    checked.tensor("cu_seqlens_q", cu_seqlens_q, "batch + 1", kinds=("int32",))
    if table is None or seqused_k is None:
        checked.tensor("cu_seqlens_k", cu_seqlens_k, "batch + 1", kinds=("int32",))
    checked.given("seqused_q", seqused_q, "batch", kinds=("int32",))
    checked.given("seqused_k", seqused_k, "batch", kinds=("int32",))
    lengths = {"q_offsets": cu_seqlens_q, "q_used": seqused_q}
    lengths["max_q"] = checked.count("max_seqlen_q", max_seqlen_q)
    if table is None or max_seqlen_k is not None:
        lengths["max_kv"] = checked.count("max_seqlen_k", max_seqlen_k)
    if table is None:
        lengths |= {"kv_offsets": cu_seqlens_k, "kv_used": seqused_k}
    else:
        if seqused_k is None:
            seqused_k = cu_seqlens_k.diff()
        lengths |= {"page_table": table, "kv_used": seqused_k}
    sink = words.one_of(learnable_sink=learnable_sink, s_aux=s_aux)
    said = {
        **words.common(softmax_scale, softcap, alibi_slopes, sink, deterministic),
        **words.masked(causal, window_size),
        **words.dropped(dropout_p),
        **words.scaled(q, k, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale),
        **words.splits("flash_attn_varlen_func", num_splits),
    }
    returned = Returned.of(return_attn_probs, return_softmax_lse, out)
    return _run(q, k, v, said, lengths, returned, like)


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
    dim].

    Other arguments, what is returned, and errors are those of `flash_attn_varlen_func`.
    """
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
    """`flash_attn_varlen_func` of all in one tensor: qkv [total, 3, heads, dim].

    Other arguments, what is returned, and errors are those of `flash_attn_varlen_func`.
    """
    _packs("qkv", qkv, 4, 3)
    return flash_attn_varlen_func(
        qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p,
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call returns.

    probs: (out, softmax_lse, S_dmask). lse: (out, softmax_lse). Else out alone.
    out: where out is written; None where it is made.
    """

    probs: bool
    lse: bool
    out: Any

    @classmethod
    def of(cls, return_attn_probs: Any, return_softmax_lse: Any, out: Any) -> Returned:
        """Raises `BadArgument`."""
        probs = checked.flag("return_attn_probs", return_attn_probs)
        lse = checked.flag("return_softmax_lse", return_softmax_lse)
        checked.given("out", out)
        if probs and lse:
            raise BadArgument(
                "return_attn_probs and return_softmax_lse return three values and two; pass one"
            )
        return cls(probs, lse, out)


def _run(
    q: Any,
    k: Any,
    v: Any,
    said: Mapping[str, Any],
    lengths: Mapping[str, Any],
    returned: Returned,
    like: Like | None,
) -> Any:
    q, k, v = words.dense_inside(q), words.dense_inside(k), words.dense_inside(v)
    out, probs = returned.out, returned.probs
    if probs and "dropout" in said:
        if "page_table" in lengths:
            raise BadArgument("return_attn_probs with dropout needs keys that do not lie in pages")
        if out is not None:
            raise BadArgument("return_attn_probs with dropout takes no out=; leave it out")
        out, lse, random = attention(q, k, v, **said, **lengths, lse=True, random=True)
        return out, lse, probabilities(Sequences(q, k, lse, random, lengths), said)
    keywords = {**said, **lengths, **({"lse": True} if probs or returned.lse else {})}
    made = words.written(attention, (q, k, v), keywords, out)
    if like is not None:
        like.remember((q, k, v), keywords, made, out)
    return (*made, None) if probs else made


def _packs(name: str, x: Any, rank: int, parts: int) -> None:
    checked.tensor(name, x)
    if x.ndim != rank or x.shape[-3] != parts:
        raise BadArgument(
            f"{name} is {list(x.shape)}, but must have {rank} dimensions, the third last of {parts}"
        )
