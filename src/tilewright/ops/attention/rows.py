"""Where the rows of a problem's operands lie, by the lengths, offsets and pages in its inputs.

The reference reads rows here, and the inputs poison all others. Lengths and offsets that the
operands have no room for mean what they have: no sequence has more rows than its place, and none
fewer than zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright import arrays
from tilewright.ops.attention.problem import AttentionProblem

WHOLE = (
    "q_offsets", "kv_offsets", "q_used", "kv_used", "left_pad", "page_table", "page_list",
    "page_starts",
)  # fmt: skip
"""The operands that say where rows lie."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one sequence.

    number: of the sequence. q_first, n_q: its first row of packed Q (else 0), and its queries.
    kv_first, n_kv: the row of key 0, and its keys, appended ones included. Rows of keys count from
    the sequence's first in packed K, from its first page, or from the cache's first row.
    new, n_new: the row, so counted, from which new keys are written, and how many the cache has
        room for.
    """

    number: int
    q_first: int
    n_q: int
    kv_first: int
    n_kv: int
    new: int
    n_new: int

    @property
    def before(self) -> int:
        """Keys before the new ones."""
        return self.new - self.kv_first


def whole(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a problem's inputs that are lengths, offsets and pages: int64 arrays of NumPy's."""
    return {
        name: arrays.to_numpy(x.cpu().long()) if arrays.is_torch(x) else x.astype("int64")
        for name, x in inputs.items()
        if name in WHOLE
    }


def sequences(p: AttentionProblem, said: Mapping[str, Any]) -> tuple[Rows, ...]:
    """The rows of each sequence of `p`.

    said: as `whole` gives it.
    """
    found = []
    for b in range(p.batch):
        q_first, q_room = _range(said, "q_offsets", b, p.q_len, p.total_q)
        n_q = _within(said["q_used"][b], q_room) if "q_used" in said else q_room
        room = _room(p, said, b)
        used = _within(said["kv_used"][b], room) if "kv_used" in said else room
        pad = _within(said["left_pad"][b], used) if "left_pad" in said else 0
        n_new = min(p.new_kv, room - used)
        found.append(Rows(b, q_first, n_q, pad, used + n_new - pad, used, n_new))
    return tuple(found)


def _within(x: Any, most: int) -> int:
    return min(max(int(x), 0), most)


def _room(p: AttentionProblem, said: Mapping[str, Any], b: int) -> int:
    """The most keys that sequence `b` has."""
    if not p.paged:
        return _range(said, "kv_offsets", b, p.kv_len, p.total_kv)[1]
    if not p.pages:
        return 0
    entries = p.page_entries
    if "page_list" in said:
        _, entries = _range(said, "page_starts", b, p.page_entries, p.page_entries)
    return min(p.kv_len, entries * p.page_size)


def _range(said: Mapping[str, Any], name: str, b: int, most: int, total: int) -> tuple[int, int]:
    """The first row and the number of rows that offsets say, at most `most` of `total`; without
    offsets, 0 and `most`."""
    if name not in said:
        return 0, most
    first, end = (_within(x, total) for x in said[name][b : b + 2])
    return first, min(max(end - first, 0), most)


def by_row(p: AttentionProblem, name: str, array: Any) -> Any:
    """A view of Q, K, V or O whose leading dimensions are indexed by `place`, and whose others are
    heads and elements (in vectorised K in two dimensions)."""
    if name in ("k", "v") and "vectorised" in p.words:
        # K is [pages, heads, dim / x, page, x], V [pages, heads, page / x, dim, x].
        order = (0, 3, 1, 2, 4) if name == "k" else (0, 2, 4, 1, 3)
        return array.permute(order) if arrays.is_torch(array) else array.transpose(order)
    packed = ("packedq" if name in ("q", "o") else "packedkv") in p.words
    layout = p.layout if name in ("q", "o") else p.kv_layout
    return array if packed or layout == "bshd" else array.swapaxes(1, 2)


def place(p: AttentionProblem, name: str, outer: Any, row: Any) -> tuple[Any, ...]:
    """The index of rows in a `by_row` view.

    outer: the sequence, or the page. row: in it, or in packed rows.
    """
    if ("packedq" if name in ("q", "o") else "packedkv") in p.words:
        return (row,)
    if name == "v" and "vectorised" in p.words:
        return outer, row // p.vector, row % p.vector
    return outer, row


def keys_at(
    p: AttentionProblem, said: Mapping[str, Any], of: Rows, first: int, count: int
) -> tuple[Any, Any]:
    """For `place`: where rows `first` to `first` + `count` of a sequence's keys lie, as int64
    arrays of NumPy's. An entry that names no page is read as the nearest page."""
    import numpy as np

    outer, row = listed_at(p, said, of, first, count)
    return (np.clip(outer, 0, max(p.pages - 1, 0)) if p.paged else outer), row


def listed_at(
    p: AttentionProblem, said: Mapping[str, Any], of: Rows, first: int, count: int
) -> tuple[Any, Any]:
    """As `keys_at`, with pages as the entries say."""
    import numpy as np

    at = np.arange(first, first + count, dtype=np.int64)
    if "kv_offsets" in said:
        begin, _ = _range(said, "kv_offsets", of.number, p.kv_len, p.total_kv)
        return np.zeros_like(at), at + begin
    if not p.paged:
        return np.full_like(at, of.number), at
    if "page_list" in said:
        begin, _ = _range(said, "page_starts", of.number, p.page_entries, p.page_entries)
        listed = said["page_list"][begin:]
    else:
        listed = said["page_table"][of.number]
    return listed[at // p.page_size], at % p.page_size


def keys_seen(p: AttentionProblem, blocks: Any, of: Rows, count: int) -> Any:
    """Whether each of the first `count` keys of a sequence is in a block that a query sees: a
    boolean array of NumPy's.

    blocks: the mask of blocks.
    """
    import numpy as np

    own = blocks[of.number if p.blocks_shape[0] > 1 else 0]
    found = (own != 0).any(0).any(0)
    found = arrays.to_numpy(found.cpu() if arrays.is_torch(found) else found)
    return found[np.arange(count) // p.block_size]


def queries_at(p: AttentionProblem, of: Rows) -> tuple[Any, Any]:
    """For `place`: where a sequence's queries lie, as int64 arrays of NumPy's."""
    import numpy as np

    at = np.arange(of.n_q, dtype=np.int64)
    return np.full_like(at, of.number), at + of.q_first


def index(like: Any, places: tuple[Any, ...]) -> tuple[Any, ...]:
    """An index of NumPy arrays as one that `like` takes."""
    if not arrays.is_torch(like):
        return places
    import torch

    return tuple(torch.from_numpy(each).to(like.device) for each in places)
