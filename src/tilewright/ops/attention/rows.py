"""Where the rows of a problem's operands lie, by the lengths, offsets and pages in its inputs.

The reference reads rows here, and the inputs poison all others.
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
    new: rows, so counted, from which new keys are written.
    """

    number: int
    q_first: int
    n_q: int
    kv_first: int
    n_kv: int
    new: int

    @property
    def before(self) -> int:
        """Keys before the new ones."""
        return self.new - self.kv_first


def whole(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a problem's inputs that are lengths, offsets and pages: int64 arrays of NumPy's."""
    return {
        name: arrays.to_numpy(x.cpu() if arrays.is_torch(x) else x).astype("int64")
        for name, x in inputs.items()
        if name in WHOLE
    }


def sequences(p: AttentionProblem, said: Mapping[str, Any]) -> tuple[Rows, ...]:
    """The rows of each sequence of `p`.

    said: as `whole` gives it.
    """
    found = []
    for b in range(p.batch):
        q_first, n_q = _range(said, "q_offsets", b, p.q_len)
        _, n_kv = _range(said, "kv_offsets", b, p.kv_len)
        n_q = int(said["q_used"][b]) if "q_used" in said else n_q
        n_kv = int(said["kv_used"][b]) if "kv_used" in said else n_kv
        pad = int(said["left_pad"][b]) if "left_pad" in said else 0
        found.append(Rows(b, q_first, n_q, pad, n_kv + p.new_kv - pad, n_kv))
    return tuple(found)


def _range(said: Mapping[str, Any], name: str, b: int, most: int) -> tuple[int, int]:
    """The first row and the number of rows that offsets say; without them, 0 and `most`."""
    if name not in said:
        return 0, most
    first, end = (int(x) for x in said[name][b : b + 2])
    return first, end - first


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
    arrays of NumPy's."""
    import numpy as np

    at = np.arange(first, first + count, dtype=np.int64)
    if "kv_offsets" in said:
        return np.zeros_like(at), at + said["kv_offsets"][of.number]
    if not p.paged:
        return np.full_like(at, of.number), at
    if "page_list" in said:
        listed = said["page_list"][said["page_starts"][of.number] :]
    else:
        listed = said["page_table"][of.number]
    return listed[at // p.page_size], at % p.page_size


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
