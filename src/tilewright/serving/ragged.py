"""Attention of sequences whose keys follow one another in one array."""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked
from tilewright.serving.buffers import Capacity, between, host_offsets
from tilewright.serving.masks import own_mask
from tilewright.serving.planned import Planned, heads, masked


class RaggedAttention(Planned):
    """Prefill without a cache: FlashInfer's ``BatchPrefillWithRaggedKVCacheWrapper``, layout NHD.

    device: a torch device, or its name.
    capacity: for CUDA graphs (see the package).
    """

    def __init__(self, device: Any, *, capacity: Capacity | None = None) -> None:
        super().__init__(device, capacity)
        self._keys = 0

    def plan(
        self,
        qo_indptr: Any,
        kv_indptr: Any,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
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

        qo_indptr, kv_indptr: [batch + 1], the first row of each sequence's queries and keys, and
            the end.

        The others are those of `PagedAttention.plan`. Raises `BadArgument`.
        """
        own = own_mask(causal, custom_mask, packed_custom_mask)
        starts = host_offsets("kv_indptr", kv_indptr)
        checked.tensor("qo_indptr", qo_indptr)
        self._fix(
            masked(causal, window_left, logits_soft_cap, sm_scale),
            custom_mask=own,
            **heads(num_qo_heads, num_kv_heads, head_dim, head_dim_vo),
        )
        buffers, self._keys = self._buffers, starts[-1]
        numbers, arrays = self._queries(qo_indptr, len(starts) - 1)
        numbers["max_kv"] = buffers.most("max_kv", between(starts))
        arrays["kv_offsets"] = buffers.padded(starts)
        where = {**numbers, **buffers.lengths(arrays)}
        if own:
            where |= self._mask(qo_indptr, between(starts), where, custom_mask, packed_custom_mask)
        self._lay(where)

    def run(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        sinks: Any = None,
        out: Any = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention as planned.

        q, k, v: [rows, num_qo_heads, head_dim], [rows of keys, num_kv_heads, head_dim], [rows of
            keys, num_kv_heads, head_dim_vo].

        The others, and what is returned, are those of `PagedAttention.run`.
        """
        given, kind = None, (return_lse,)
        try:
            enough = len(k) >= self._keys <= len(v)
        except TypeError:  # no tensors, or of no dimension
            enough = False
        if q_scale is k_scale is v_scale is None and enough and type(return_lse) is bool:
            given = (q, k, v, sinks, out)
            made = self._again(given, kind)
            if made is not None:
                return made if out is None else out
        plan = self._plan
        self._check("q", q, plan["num_qo_heads"], plan["head_dim"])
        for name, x in (("k", k), ("v", v)):
            checked.tensor(name, x, "rows of keys", "num_kv_heads", "head_dim")
            if len(x) < self._keys:
                raise BadArgument(f"{name} has {len(x)} rows, but the plan has {self._keys}")
        self._check("k", k, plan["num_kv_heads"], plan["head_dim"])
        self._check("v", v, plan["num_kv_heads"], plan["head_dim_vo"])
        scales = self._scaled(q, k, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
        words = {**scales, "sinks": sinks}
        return self._run(q, (k, v), words, out, return_lse, given, kind)
