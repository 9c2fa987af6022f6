"""Latent attention (DeepSeek-V2, arXiv 2405.04434) over a cache in pages, its projections absorbed:
all heads share one key, whose first elements are the value."""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked
from tilewright.serving.buffers import Capacity, between, host_numbers, host_offsets
from tilewright.serving.paged import page_words
from tilewright.serving.planned import Planned, masked, sizes


class LatentAttention(Planned):
    """FlashInfer's ``BatchMLAPagedAttentionWrapper``.

    device: a torch device, or its name.
    capacity: for CUDA graphs (see the package).
    """

    def __init__(self, device: Any, *, capacity: Capacity | None = None) -> None:
        super().__init__(device, capacity)

    def plan(
        self,
        qo_indptr: Any,
        kv_indptr: Any,
        kv_indices: Any,
        kv_len_arr: Any,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
    ) -> None:
        """Say where the sequences of a batch lie, and what is computed.

        qo_indptr: [batch + 1], the first row of each sequence's queries, and the end; None where
            each sequence has one query.
        kv_indptr: [batch + 1], the first entry of each sequence in `kv_indices`.
        kv_indices: pages of all sequences, one after another.
        kv_len_arr: [batch], rows that each sequence has in the cache.
        head_dim_ckv, head_dim_kpe: elements of a row of the cache without and with a position.
        sm_scale: of the scores; that of the heads before their projections were absorbed.

        Raises `BadArgument`.
        """
        starts, used = host_offsets("kv_indptr", kv_indptr), host_numbers("kv_len_arr", kv_len_arr)
        page_size = sizes(page_size=page_size)["page_size"]
        room = [count * page_size for count in between(starts)]
        fits = len(used) == len(room) and all(
            0 <= n <= most for n, most in zip(used, room, strict=True)
        )
        if not fits:
            raise BadArgument("kv_len_arr is not [batch] numbers of rows that the pages hold")
        self._fix(
            masked(causal, -1, None, checked.number("sm_scale", sm_scale))
            | {"head_dim_v": sizes(head_dim_ckv=head_dim_ckv)["head_dim_ckv"]},
            qo_indptr=qo_indptr is not None,
            page_size=page_size,
            **sizes(num_heads=num_heads, head_dim_kpe=head_dim_kpe),
        )
        self._lay(page_words(self, qo_indptr, starts, ("kv_indices", kv_indices), used))

    def run(
        self,
        q_nope: Any,
        q_pe: Any,
        ckv_cache: Any,
        kpe_cache: Any,
        *,
        k_scale: Any = None,
        out: Any = None,
        return_lse: bool = False,
    ) -> Any:
        """Attention as planned.

        q_nope, q_pe: [rows, num_heads, head_dim_ckv] and […, head_dim_kpe]; joined by a copy unless
            they are neighbours as below. None for `q_pe`: `q_nope` has both parts.
        ckv_cache, kpe_cache: [pages, page_size, head_dim_ckv] and […, head_dim_kpe], two neighbours
            in one array: ``cache[..., :512]`` and ``cache[..., 512:]``. None for `kpe_cache`:
            `ckv_cache` has both parts, as it must under ``torch.compile``.
        k_scale: of a cache in fp8, as in `PagedAttention.run`.

        Returns O, [rows, num_heads, head_dim_ckv]; with `return_lse`, (O, LSE), LSE being a natural
        logarithm, fp32 [rows, num_heads]. Raises `BadArgument`, and as `tilewright.attention` does.
        """
        import torch

        given, kind = None, (return_lse,)
        # Whether parts are neighbours, their addresses say, which no repeated call compares.
        if q_pe is kpe_cache is k_scale is None and type(return_lse) is bool:
            given = (q_nope, ckv_cache, None, out)
            made = self._again(given, kind)
            if made is not None:
                return made if out is None else out
        plan = self._plan
        ckv, kpe = plan["head_dim_v"], plan["head_dim_kpe"]
        q, cache = q_nope, ckv_cache
        if q_pe is not None:
            self._check("q_nope", q_nope, plan["num_heads"], ckv)
            self._check("q_pe", q_pe, plan["num_heads"], kpe)
            if len(q_pe) != len(q_nope):
                raise BadArgument(f"q_pe has {len(q_pe)} rows, but q_nope has {len(q_nope)}")
            q = joined(q_nope, q_pe)
            q = torch.cat((q_nope, q_pe), -1) if q is None else q
        if kpe_cache is not None:
            checked.tensor("ckv_cache", ckv_cache, "pages", "page_size", "head_dim_ckv")
            checked.tensor("kpe_cache", kpe_cache, "pages", "page_size", "head_dim_kpe")
            cache = joined(ckv_cache, kpe_cache)
            if cache is None:
                raise BadArgument(
                    "ckv_cache and kpe_cache do not lie beside each other; pass cache[..., :"
                    f"{ckv}] and cache[..., {ckv}:] of one array, or the array and None; caches "
                    "that are apart are joined by a copy, torch.cat((ckv_cache, kpe_cache), -1)"
                )
        self._check("q_nope", q, plan["num_heads"], ckv + kpe)
        self._check("ckv_cache", cache, plan["page_size"], ckv + kpe)
        scales = self._scaled(q, cache, q_scale=None, k_scale=k_scale)
        return self._run(q, (cache[:, :, None],), scales, out, return_lse, given, kind)


def joined(one: Any, other: Any) -> Any:
    """The array of which `one` is the first part of each row and `other` the rest; None if there is
    none."""
    import torch

    if torch.compiler.is_compiling():  # which does not know where tensors lie
        return None
    size = one.shape[-1]
    together = (
        one.dtype == other.dtype
        and one.stride() == other.stride()
        and one.stride(-1) == 1
        and one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and other.storage_offset() == one.storage_offset() + size
    )
    if not together:
        return None
    shape = (*one.shape[:-1], size + other.shape[-1])
    return one.as_strided(shape, one.stride(), one.storage_offset())
