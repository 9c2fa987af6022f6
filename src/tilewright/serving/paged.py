"""Attention over a cache in pages."""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked
from tilewright.serving.buffers import Capacity, between, host_numbers, host_offsets
from tilewright.serving.masks import own_mask
from tilewright.serving.planned import (
    LAYOUTS,
    Planned,
    cache_parts,
    check_layout,
    heads,
    masked,
    sizes,
)


class PagedAttention(Planned):
    """Attention of a batch over pages: decode, prefill, or both at once. FlashInfer's
    ``BatchDecodeWithPagedKVCacheWrapper`` and ``BatchPrefillWithPagedKVCacheWrapper``.

    device: a torch device, or its name.
    kv_layout: ``"NHD"``: pages are [page_size, num_kv_heads, head_dim]; ``"HND"``: [num_kv_heads,
        page_size, head_dim].
    capacity: for CUDA graphs (see the package).
    """

    def __init__(
        self, device: Any, kv_layout: str = "NHD", *, capacity: Capacity | None = None
    ) -> None:
        super().__init__(device, capacity)
        check_layout(kv_layout)
        self._layout = kv_layout

    def plan(
        self,
        qo_indptr: Any,
        paged_kv_indptr: Any,
        paged_kv_indices: Any,
        paged_kv_last_page_len: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        head_dim_vo: int | None = None,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        custom_mask: Any = None,
        packed_custom_mask: Any = None,
    ) -> None:
        """Say where the sequences of a batch lie, and what is computed.

        qo_indptr: [batch + 1], the first row of each sequence's queries, and the end; None where
            each sequence has one query.
        paged_kv_indptr: [batch + 1], the first entry of each sequence in `paged_kv_indices`.
        paged_kv_indices: pages of all sequences, one after another.
        paged_kv_last_page_len: [batch], rows of each sequence's last page.
        head_dim_vo: elements of a row of values; None for `head_dim`.
        causal: whether a query sees no later key; the last query is in the place of the last key.
        window_left: how many keys before its own place a query sees; -1 for all.
        logits_soft_cap: scores s become cap * tanh(s / cap); None for no cap.
        sm_scale: of the scores; None for head_dim ** -0.5.
        custom_mask: bool, of each sequence its queries times its keys, one sequence after another:
            whether a query sees a key. It says all of the mask, beside window_left. It is kept as
            fp32 [batch, most queries, most keys], and read by the kernels that add a bias.
        packed_custom_mask: the same in bits, uint8: each sequence begins a byte, whose lowest bit
            comes first.

        Offsets, pages and lengths are tensors of int32 or int64, on any device. Raises
        `BadArgument`.
        """
        starts = host_offsets("paged_kv_indptr", paged_kv_indptr)
        pages = between(starts)
        last = host_numbers("paged_kv_last_page_len", paged_kv_last_page_len)
        page_size = sizes(page_size=page_size)["page_size"]
        own = own_mask(causal, custom_mask, packed_custom_mask)
        if len(last) != len(pages):
            raise BadArgument(
                f"paged_kv_last_page_len has {len(last)} entries beside {len(pages)} sequences"
            )
        full = [(count - 1) * page_size for count in pages]
        used = [before + n if before >= 0 else 0 for before, n in zip(full, last, strict=True)]
        if any(count and not 1 <= n <= page_size for count, n in zip(pages, last, strict=True)):
            raise BadArgument(f"paged_kv_last_page_len is not from 1 to page_size = {page_size}")
        self._fix(
            masked(causal, window_left, logits_soft_cap, sm_scale)
            | {"kv_layout": LAYOUTS[self._layout]},
            qo_indptr=qo_indptr is not None,
            custom_mask=own,
            page_size=page_size,
            **heads(num_qo_heads, num_kv_heads, head_dim, head_dim_vo),
        )
        where = page_words(self, qo_indptr, starts, ("paged_kv_indices", paged_kv_indices), used)
        if own:
            where |= self._mask(qo_indptr, used, where, custom_mask, packed_custom_mask)
        self._lay(where)

    def run(
        self,
        q: Any,
        paged_kv_cache: Any,
        *,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        sinks: Any = None,
        out: Any = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention of q over a layer's cache, as planned.

        q: [rows, num_qo_heads, head_dim], the rows of all sequences; with one query for each,
            [batch, num_qo_heads, head_dim].
        paged_kv_cache: (keys, values), pages in the layout of this object; or one array of both,
            [pages, 2, …].
        q_scale, k_scale, v_scale: what fp8 operands are multiplied by: a number, or fp32 of one
            element or [batch, num_kv_heads]. One that is left out beside another is 1.
        sinks: fp32 [num_qo_heads], a score that joins the softmax and has no value.
        out: where O is written.

        Returns O, [rows, num_qo_heads, head_dim_vo]; with `return_lse`, (O, LSE), LSE being a
        natural logarithm, fp32 [rows, num_qo_heads]. Raises `BadArgument`, and as
        `tilewright.attention` does.
        """
        whole = not isinstance(paged_kv_cache, tuple | list)
        pair = (paged_kv_cache, paged_kv_cache) if whole else paged_kv_cache
        given, kind = None, (return_lse, whole)
        if q_scale is k_scale is v_scale is None and type(return_lse) is bool:
            given = (q, *pair, sinks, out)
            made = self._again(given, kind)
            if made is not None:
                return made if out is None else out
        plan = self._plan
        k, v = cache_parts(paged_kv_cache)
        self._check("q", q, plan["num_qo_heads"], plan["head_dim"])
        page = plan["page_size"], plan["num_kv_heads"]
        page = page if self._layout == "NHD" else page[::-1]
        self._check("keys", k, *page, plan["head_dim"])
        self._check("values", v, *page, plan["head_dim_vo"])
        scales = self._scaled(q, k, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
        words = {**scales, "sinks": sinks}
        return self._run(q, (k, v), words, out, return_lse, given, kind)


def page_words(
    plan: Planned, qo_indptr: Any, starts: list[int], named: tuple[str, Any], used: list[int]
) -> dict[str, Any]:
    """The words that say where queries and keys lie.

    starts: [batch + 1] offsets into the page list. named: the page list behind its name. used:
        [batch] rows of keys.
    """
    buffers, (name, indices) = plan._buffers, named
    checked.tensor(name, indices, "pages of all sequences", kinds=checked.INTEGERS)
    if len(indices) < starts[-1]:
        raise BadArgument(
            f"the page list has {len(indices)} entries, under the {starts[-1]} of its offsets"
        )
    numbers, arrays = plan._queries(qo_indptr, len(used))
    numbers["max_kv"] = buffers.most("max_kv", used)
    arrays["page_starts"] = buffers.padded(starts)
    arrays["kv_used"] = used + [0] * (buffers.batch(len(used)) - len(used))
    pages = buffers.pages(indices[: starts[-1]])
    return {**numbers, **buffers.lengths(arrays), "page_list": pages}
