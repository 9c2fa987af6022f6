"""Attention over a cache of keys and values, which new ones may join first."""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked, words
from tilewright.flash_attn.functions import ALL, Window
from tilewright.flash_attn.words import Like, attention

_NAMES = (
    "new_k", "new_v", "rotary_cos", "rotary_sin", "kv_used", "left_pad", "page_table", "q_offsets",
    "slopes", "sinks", "out",
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
    s_aux: Any = None,
    out: Any = None,
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
        [batch]; None for all. A number is checked; those of an array, which are on the device, are
        taken to be from 0 to the rows that the cache has.
    cache_batch_idx: int32 [batch], the cache's sequence of each query's.
    cache_leftpad: int32 [batch], the cache's first rows that are left out.
    block_table, page_table: int32 [batch, pages of a sequence]; the cache is pages then, [pages,
        page size, heads of keys, dim], of any size.
    rotary_interleaved: whether elements 0 and 1, 2 and 3 … are rotated together, or the first half
        with the second.
    cu_seqlens_q, max_seqlen_q: q is packed, [total_q, heads, dim] (see `flash_attn_varlen_func`).

    See the package for the other arguments, and errors.
    """
    if type(window_size) is not tuple:
        window_size = words.bounds(window_size)
    like = None
    if (
        not others
        and cache_batch_idx is None
        and q_descale is k_descale is v_descale is None
        and (block_table is None or page_table is None)
    ):
        plain = (
            causal, softcap, rotary_interleaved, num_splits, return_softmax_lse, max_seqlen_q,
            *window_size,
        )  # fmt: skip
        given = (
            q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_leftpad,
            page_table if block_table is None else block_table, cu_seqlens_q, alibi_slopes,
            s_aux if learnable_sink is None else learnable_sink, out,
        )  # fmt: skip
        like = Like("flash_attn_with_kvcache", softmax_scale, plain, _NAMES, given)
        made = like.again()
        if made is not None:
            return made if out is None else out
    words.refuse("flash_attn_with_kvcache", others)
    table = words.one_table(block_table, page_table)
    if cu_seqlens_q is None:
        checked.tensor("q", q, "batch", "seqlen_q", "heads", "dim")
        batch = q.shape[0]
    else:
        checked.tensor("q", q, "total_q", "heads", "dim")
        checked.tensor("cu_seqlens_q", cu_seqlens_q, "batch + 1", kinds=("int32",))
        batch = cu_seqlens_q.shape[0] - 1
        max_seqlen_q = checked.count("max_seqlen_q", max_seqlen_q)
    first = ("batch", "rows") if table is None else ("pages", "page size")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        checked.tensor(name, cache, *first, "heads of keys", "dim")
        if cache.stride(-1) != 1:
            raise BadArgument(f"{name} must be contiguous in its last dimension")
    if cache_batch_idx is not None:
        if table is not None:
            raise BadArgument("cache_batch_idx and a page table both say where rows lie; pass one")
        checked.tensor("cache_batch_idx", cache_batch_idx, "batch", kinds=checked.INTEGERS)
        if cache_batch_idx.shape[0] != batch:
            raise BadArgument(
                f"cache_batch_idx is {list(cache_batch_idx.shape)}, but must be [{batch}]"
            )
        table = cache_batch_idx.to(dtype=_int32()).reshape(batch, 1)  # a page is a whole row
    most = k_cache.shape[1] if table is None else table.shape[1] * k_cache.shape[1]
    for name, new in (("k", k), ("v", v)):
        checked.given(name, new, "batch", "seqlen_new", "heads of keys", "dim")
    if (k is None) != (v is None):
        raise BadArgument("k and v are appended together; pass both")
    if cache_seqlens is None and k is not None:
        raise BadArgument("k and v are appended behind cache_seqlens rows; pass cache_seqlens")
    if cache_seqlens is None and (table is not None or cache_leftpad is not None):
        cache_seqlens = most
    used = _used(q, batch, cache_seqlens, most - (0 if k is None else k.shape[1]))
    checked.given("cache_leftpad", cache_leftpad, "batch", kinds=("int32",))
    checked.given("rotary_cos", rotary_cos, "places", "rotary_dim / 2")
    checked.given("rotary_sin", rotary_sin, "places", "rotary_dim / 2")
    if (rotary_cos is None) != (rotary_sin is None):
        raise BadArgument("rotary_cos and rotary_sin are used together; pass both")
    if rotary_cos is not None and k is None:
        raise BadArgument("rotary_cos and rotary_sin rotate new keys too; pass k and v")
    interleaved = checked.flag("rotary_interleaved", rotary_interleaved)
    checked.given("out", out)
    sink = words.one_of(learnable_sink=learnable_sink, s_aux=s_aux)
    said = {
        **words.common(softmax_scale, softcap, alibi_slopes, sink),
        **words.masked(causal, window_size),
        **words.scaled(q, k_cache, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale),
        **words.splits("flash_attn_with_kvcache", num_splits),
        "kv_used": used,
        "left_pad": cache_leftpad,
        "page_table": table,
        "q_offsets": cu_seqlens_q,
        "max_q": max_seqlen_q,
        "lse": checked.flag("return_softmax_lse", return_softmax_lse) or None,
    }
    if k is not None:
        said |= {"new_k": k.contiguous(), "new_v": v.contiguous()}
    if rotary_cos is not None:
        style = "interleaved" if interleaved else "half"
        said |= {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "rotary": style}
    operands = words.dense_inside(q), k_cache, v_cache
    made = words.written(attention, operands, said, out)
    if like is not None:
        like.remember(operands, said, made, out)
    return made


def _used(q: Any, batch: int, cache_seqlens: Any, most: int) -> Any:
    """Rows that each sequence of the cache has, int32 [batch]; None for all."""
    if cache_seqlens is None:
        return None
    if hasattr(cache_seqlens, "ndim") and cache_seqlens.ndim:
        checked.tensor("cache_seqlens", cache_seqlens, "batch", kinds=("int32",))
        return cache_seqlens
    if isinstance(cache_seqlens, list | tuple):
        checked.tensor("cache_seqlens", cache_seqlens, "batch")
    n = checked.count("cache_seqlens", cache_seqlens, 0, max(0, most))
    return q.new_full((batch,), n, dtype=_int32())


def _int32() -> Any:
    import torch

    return torch.int32
