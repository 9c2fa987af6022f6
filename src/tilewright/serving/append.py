"""New keys and values written into a cache in pages, without attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked
from tilewright.serving.planned import cache_parts, check_layout


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
    """Write rows into the pages of their sequences, in place. Nothing waits for the device, so no
    error says that a number there is wrong: a row of no sequence, of a place below 0 or behind its
    sequence's last page, or of a page that the cache does not have is not written.

    append_key, append_value: [rows, num_kv_heads, head_dim], converted to the cache's dtype.
    batch_indices, positions: [rows], each row's sequence and its place in it (see
        `get_batch_indices_positions`).
    paged_kv_cache: (keys, values), or one array of both, [pages, 2, …].
    kv_indices, kv_indptr: pages of all sequences, and the first entry of each, [batch + 1]. They
        have room for the new rows.
    kv_last_page_len: FlashInfer's; not read, for `positions` say it.
    kv_layout: of pages: ``"NHD"`` or ``"HND"``.

    Indices and positions are of int32 or int64. Raises `BadArgument` and `WrongDevice`.
    """
    import torch

    check_layout(kv_layout)
    _check(
        paged_kv_cache, append_key=append_key, append_value=append_value,
        batch_indices=batch_indices, positions=positions, kv_indices=kv_indices,
        kv_indptr=kv_indptr,
    )  # fmt: skip
    caches = cache_parts(paged_kv_cache)
    count = len(positions)
    found: dict[tuple[int, int], _Places] = {}
    for new, pages in zip((append_key, append_value), caches, strict=True):
        cache = pages if kv_layout == "NHD" else pages.transpose(1, 2)
        if new.shape[1:] != cache.shape[2:] or len(new) != count:
            raise BadArgument(
                f"new rows are {list(new.shape)}, but must be [{count}, "
                f"{', '.join(map(str, cache.shape[2:]))}]"
            )
        sizes = cache.shape[0], cache.shape[1]
        if 0 in (count, *sizes, len(kv_indices), len(kv_indptr) - 1):
            continue  # no row, or no place for one
        if sizes not in found:
            found[sizes] = _places(batch_indices, positions, kv_indices, kv_indptr, *sizes)
        rows = new.to(cache.dtype)
        if cache.element_size() == 1:  # torch has no scatter of fp8
            cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
        found[sizes].write(cache, rows)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where rows go.

    there: [rows], whether the cache has a place for each. one: [1], the number of a row for which
    it has, if there is any. page, row: of each, or of that one in its stead; of any place in the
    cache if there is none.
    """

    there: Any
    one: Any
    page: Any
    row: Any

    def write(self, cache: Any, rows: Any) -> None:
        """Write the rows that have a place. Those without write what another one writes, to the
        same place: to leave them out, the host would have to know their number."""
        import torch

        there = self.there[:, None, None]
        kept = cache[self.page[self.one], self.row[self.one]]
        one = torch.where(there[self.one], rows[self.one], kept)
        cache.index_put_((self.page, self.row), torch.where(there, rows, one))


def _places(
    sequences: Any, positions: Any, indices: Any, indptr: Any, pages: int, size: int
) -> _Places:
    """The places of rows in `pages` pages of `size` rows."""
    import torch

    sequence, position = sequences.long(), positions.long()
    known = sequence.clamp(0, len(indptr) - 2)
    first, end = (indptr[known + n].long().clamp(0, len(indices)) for n in (0, 1))
    entry = first + position // size
    page = indices[entry.clamp(0, len(indices) - 1)].long()
    inside = page.clamp(0, pages - 1)
    there = (sequence == known) & (position >= 0) & (entry < end) & (page == inside)
    one = there.int().argmax(0, keepdim=True)
    row = position % size
    places = (torch.where(there, x, x[one]) for x in (inside, row))
    return _Places(there, one, *places)


def _check(paged_kv_cache: Any, **given: Any) -> None:
    """Raise unless the arguments of `append_paged_kv_cache` are what they must be."""
    for name in ("append_key", "append_value"):
        checked.tensor(name, given[name], "rows", "num_kv_heads", "head_dim")
    for name in ("batch_indices", "positions"):
        checked.tensor(name, given[name], "rows", kinds=checked.INTEGERS)
    rows = len(given["positions"])
    for name in ("append_key", "append_value", "batch_indices"):
        shape = list(given[name].shape)
        if shape[0] != rows:
            raise BadArgument(f"{name} is {shape}, but must be {[rows, *shape[1:]]}")
    checked.tensor("kv_indices", given["kv_indices"], "pages", kinds=checked.INTEGERS)
    checked.tensor("kv_indptr", given["kv_indptr"], "batch + 1", kinds=checked.INTEGERS)
    for name, x in zip(("keys", "values"), cache_parts(paged_kv_cache), strict=True):
        dims = ("pages", "page_size", "num_kv_heads", "head_dim")
        checked.tensor(f"paged_kv_cache of {name}", x, *dims)
        given[f"paged_kv_cache of {name}"] = x
    checked.together(**given)


def get_batch_indices_positions(append_indptr: Any, seq_lens: Any, nnz: int) -> tuple[Any, Any]:
    """The sequence and the place of each of `nnz` new rows: (batch_indices, positions), int32.

    append_indptr: [batch + 1], the first new row of each sequence, and the end.
    seq_lens: [batch], rows of each sequence, the new ones included.
    nnz: how many new rows there are.

    A row behind the last sequence's has the number batch for a sequence, and place -1. Both arrays
    are of int32 or int64. Raises `BadArgument` and `WrongDevice`.
    """
    import torch

    nnz = checked.count("nnz", nnz)
    checked.tensor("append_indptr", append_indptr, "batch + 1", kinds=checked.INTEGERS)
    checked.tensor("seq_lens", seq_lens, "batch", kinds=checked.INTEGERS)
    if len(seq_lens) + 1 != len(append_indptr):
        raise BadArgument(
            f"seq_lens is {list(seq_lens.shape)}, but beside append_indptr of {len(append_indptr)} "
            f"must be [{len(append_indptr) - 1}]"
        )
    checked.together(append_indptr=append_indptr, seq_lens=seq_lens)
    rows = torch.arange(nnz, dtype=torch.int32, device=append_indptr.device)
    batch = torch.searchsorted(append_indptr[1:].contiguous(), rows, right=True, out_int32=True)
    last = len(seq_lens) - 1
    if last < 0:
        return batch, torch.full_like(batch, -1)
    at = batch.long().clamp(max=last)
    places = (seq_lens[at] - append_indptr[at + 1] + rows).int()
    return batch, torch.where(batch > last, -1, places)
