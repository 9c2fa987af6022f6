"""New keys and values written into a cache in pages, without attention."""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.serving.planned import LAYOUTS


def append_paged_kv_cache(
    append_key: Any,
    append_value: Any,
    batch_indices: Any,
    positions: Any,
    paged_kv_cache: Any,
    kv_indices: Any,
    kv_indptr: Any,
    kv_last_page_len: Any = None,
    kv_layout: str = "NHD",
) -> None:
    """Write rows into the pages of their sequences, in place. Nothing waits for the device.

    append_key, append_value: [rows, num_kv_heads, head_dim], converted to the cache's dtype.
    batch_indices, positions: [rows], each row's sequence and its place in it (see
        `get_batch_indices_positions`).
    paged_kv_cache: (keys, values), or one array of both, [pages, 2, …].
    kv_indices, kv_indptr: pages of all sequences, and the first entry of each, [batch + 1]. They
        have room for the new rows.
    kv_last_page_len: FlashInfer's; not read, for `positions` say it.
    kv_layout: of pages: ``"NHD"`` or ``"HND"``.

    Raises `BadArgument`.
    """
    import torch

    if kv_layout not in LAYOUTS:
        raise BadArgument(f"kv_layout = {kv_layout!r} is neither NHD nor HND")
    whole = isinstance(paged_kv_cache, torch.Tensor)
    caches = paged_kv_cache.unbind(1) if whole else paged_kv_cache
    places = positions.long()
    for new, pages in zip((append_key, append_value), caches, strict=True):
        cache = pages if kv_layout == "NHD" else pages.transpose(1, 2)
        if new.shape[1:] != cache.shape[2:] or len(new) != len(places):
            raise BadArgument(
                f"new rows are {list(new.shape)}, but must be [{len(places)}, "
                f"{', '.join(map(str, cache.shape[2:]))}]"
            )
        size = cache.shape[1]
        page = kv_indices[(kv_indptr[batch_indices.long()] + places // size).long()].long()
        rows = new.to(cache.dtype)
        if cache.element_size() == 1:  # torch has no scatter of fp8
            cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
        cache.index_put_((page, places % size), rows)


def get_batch_indices_positions(append_indptr: Any, seq_lens: Any, nnz: int) -> tuple[Any, Any]:
    """The sequence and the place of each of `nnz` new rows: (batch_indices, positions), int32.

    append_indptr: [batch + 1], the first new row of each sequence, and the end.
    seq_lens: [batch], rows of each sequence, the new ones included.
    """
    import torch

    rows = torch.arange(nnz, dtype=torch.int32, device=append_indptr.device)
    batch = torch.searchsorted(append_indptr[1:].contiguous(), rows, right=True, out_int32=True)
    at = batch.long()
    return batch, (seq_lens[at] - append_indptr[at + 1] + rows).int()
