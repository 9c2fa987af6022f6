"""Inputs that attention is checked with.

Scores have a standard deviation of about `tolerance.SCORES`, so that a softmax is neither flat nor
one key's.
Whatever no kernel may read is poison: rows of Q, K and V beyond a sequence's and in unused pages
are NaN, and unused entries of page tables name no page.

Lengths that lie on the device are within `SHORTER` rows of the most that the sizes allow, so that
rates computed from sizes are right of long sequences; short ones have any length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright import arrays
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops.attention.operands import operands
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.attention.rows import (
    WHOLE,
    by_row,
    index,
    keys_at,
    keys_seen,
    place,
    queries_at,
    sequences,
)
from tilewright.ops.nouns import Operand
from tilewright.tolerance import SCORES

SHORTER = 256
"""Most rows by which a sequence is shorter than it may be, where nothing else limits it."""

SHORT = 1024
"""Sequences of at most so many rows may be empty, or have one row."""

BOUNDS: dict[str, tuple[float, float]] = {
    "q_scale": (0.75, 1.25),
    "k_scale": (0.75, 1.25),
    "v_scale": (0.75, 1.25),
    "o_scale": (0.02, 0.05),
}
"""Values of scales. Outputs of unit values then fill the range of an fp8 without leaving it."""

_UNUSED = (-1, -(2**31), 2**31 - 1, 10**9)
"""Entries that name no page."""


def make_inputs(p: AttentionProblem, rng: Any) -> Mapping[str, Any]:
    """Fresh values for every operand that kernels read, and for the scalars given at the call.
    Raises `BadArgument` where sequences have no room for what is appended."""
    stated = {one.name: one for one in operands(p) if one.read}
    said = _whole(p, rng.numpy)
    special = {
        name: made for name, made in _MADE.items() if name != "bias" or p.bias_dtype == "bool"
    }
    plain = [
        replace(one, values=BOUNDS.get(name))
        for name, one in stated.items()
        if name not in WHOLE and name not in special
    ]
    found: dict[str, Any] = rng.independent(plain)
    for name, made in special.items():
        if name in stated:
            found[name] = rng.filled(stated[name], made(p, stated[name], rng.numpy))
    _poison(p, found, said)
    found |= {name: rng.filled(stated[name], values) for name, values in said.items()}
    scalars: dict[str, Any] = {"seed": 0, "offset": 0}
    if p.dropout:
        most = {"seed": 2**63, "offset": 2**31}
        scalars = {name: int(rng.numpy.integers(0, end)) for name, end in most.items()}
    scalars["scale"] = SCORES * float(rng.numpy.uniform(0.9, 1.1)) * p.head_dim**-0.5
    return {name: found[name] for name in stated} | scalars


def _slopes(p: AttentionProblem, one: Operand, rng: Any) -> Any:
    """ALiBi's: a geometric series over the heads (Press et al., arXiv:2108.12409)."""
    import numpy as np

    series = 2.0 ** (-8.0 * (np.arange(p.heads) + 1) / p.heads)
    return np.broadcast_to(series, one.shape) * rng.uniform(0.5, 1.0, one.shape)


def _sinks(p: AttentionProblem, one: Operand, rng: Any) -> Any:
    """As large as the logarithm of a row's sum, so that they take a good share of it."""
    usual = math.log(max(1, p.lengths[1])) + SCORES**2 / 2
    return rng.normal(usual, 1.0, one.shape)


def _angles(turn: Any) -> Any:
    """The table of one function of the angles: places times falling frequencies."""

    def made(p: AttentionProblem, one: Operand, rng: Any) -> Any:
        import numpy as np

        places, half = one.shape
        frequencies = 1e4 ** (-np.arange(half) / half)
        return getattr(np, turn)(np.arange(places)[:, None] * frequencies)

    return made


def _seen(p: AttentionProblem, one: Operand, rng: Any) -> Any:
    """A boolean bias: most keys are seen."""
    return rng.uniform(0.0, 1.0, one.shape) < 0.75


def _blocks(p: AttentionProblem, one: Operand, rng: Any) -> Any:
    """A mask of blocks, as dense as is said; else of most blocks."""
    return rng.uniform(0.0, 1.0, one.shape) < (p.density or 0.75)


_MADE = {
    "bias": _seen,
    "blocks": _blocks,
    "slopes": _slopes,
    "sinks": _sinks,
    "rotary_cos": _angles("cos"),
    "rotary_sin": _angles("sin"),
}
"""Operands with values of their own kind."""


# --- lengths, offsets, pages -------------------------------------------------------------------


def _whole(p: AttentionProblem, rng: Any) -> dict[str, Any]:
    """The operands of `WHOLE` that `p` has, as NumPy's int64 arrays."""
    import numpy as np

    words, found = p.words, {}
    q_most, kv_most = [p.q_len] * p.batch, [p.kv_len] * p.batch
    if "packedq" in words:
        found["q_offsets"], q_most = _offsets(p.batch, p.q_len, p.total_q, rng)
    if {"packedq", "packedkv"} <= words and (p.q_len, p.total_q) == (p.kv_len, p.total_kv):
        found["kv_offsets"], kv_most = found["q_offsets"], q_most  # attention to oneself
    elif "packedkv" in words:
        found["kv_offsets"], kv_most = _offsets(p.batch, p.kv_len, p.total_kv, rng)
    if "usedq" in words:
        found["q_used"] = np.asarray(_lengths(q_most, rng), np.int64)
    if "usedkv" in words:
        used = [n - p.new_kv for n in kv_most]
        if p.rotary_dim:  # every place has its angles
            used = [min(n, p.rotary_len - max(p.new_kv, p.q_len)) for n in used]
        if p.batch and min(used) < 0:
            raise BadArgument(f"{p} has no room to append {p.new_kv} rows, or no angles for them")
        used = _lengths(used, rng)
        if p.paged:
            used = _within_pages(p, used)
            found |= _pages(p, [n + p.new_kv for n in used], rng)
        found["kv_used"] = np.asarray(used, np.int64)
        if "leftpad" in words:
            pads = [int(rng.integers(0, min(n, 40) + 1)) for n in used]
            found["left_pad"] = np.asarray(pads, np.int64)
    return found


def _lengths(most: Sequence[int], rng: Any) -> list[int]:
    """A length for each sequence, at most `most`: of the first all; of two short ones 0 and 1."""
    found = [n - int(rng.integers(0, min(n, SHORTER) + 1)) for n in most]
    if found:
        found[0] = most[0]
    if len(found) > 2:
        for place, few in ((-1, 0), (-2, 1)):
            if most[place] <= SHORT:
                found[place] = min(few, most[place])
    return found


def _offsets(batch: int, most: int, total: int, rng: Any) -> tuple[Any, list[int]]:
    """Offsets of sequences of at most `most` rows, all `total` if they have room, and lengths."""
    import numpy as np

    left, found = min(total, batch * most), []
    shares = rng.uniform(0.0, 1.0, batch) ** 2
    for b in range(batch):
        room = (batch - b - 1) * most  # that the later ones have
        want = int(left * shares[b] / shares[b:].sum())
        found.append(min(most, left, max(want, left - room)))
        left -= found[-1]
    return np.cumsum([0, *found]).astype(np.int64), found


def _count(p: AttentionProblem, used: Sequence[int]) -> int:
    return sum(-(-(n + p.new_kv) // p.page_size) for n in used)


def _within_pages(p: AttentionProblem, used: list[int]) -> list[int]:
    """Lengths that the pages, and the entries of a list, have room for."""
    room = p.pages if "pagetable" in p.words else min(p.pages, p.page_entries)
    while (need := _count(p, used)) > room:
        longest = max(range(len(used)), key=used.__getitem__)
        if not used[longest]:
            raise BadArgument(f"{p.pages} pages of {p.page_size} rows have no room for {p}")
        # All are cut in the same share; the last pages one by one.
        share = room / need
        cut = [int(n * share) for n in used]
        used = cut if cut != used and _count(p, cut) >= room else [
            max(0, n - p.page_size) if b == longest else n for b, n in enumerate(used)
        ]  # fmt: skip
    return used


def _pages(p: AttentionProblem, rows: Sequence[int], rng: Any) -> dict[str, Any]:
    """Page tables or lists, each page used once, in random order."""
    import numpy as np

    order = rng.permutation(p.pages).astype(np.int64)
    counts = [-(-n // p.page_size) for n in rows]
    starts = np.cumsum([0, *counts]).astype(np.int64)
    shape = (p.batch, p.page_entries) if "pagetable" in p.words else (p.page_entries,)
    entries = rng.choice(np.asarray(_UNUSED), shape)
    if "pagelist" in p.words:
        entries[: starts[-1]] = order[: starts[-1]]
        return {"page_list": entries, "page_starts": starts}
    for b, count in enumerate(counts):
        entries[b, :count] = order[starts[b] : starts[b + 1]]
    return {"page_table": entries}


# --- poison ------------------------------------------------------------------------------------


def _poison(p: AttentionProblem, found: dict[str, Any], said: Mapping[str, Any]) -> None:
    """Put NaN into the rows of Q, K and V that no sequence has, and into those of K and V in blocks
    that no query sees."""
    all_rows = sequences(p, said)
    queries = [queries_at(p, of) for of in all_rows]
    keys = [keys_at(p, said, of, of.kv_first, of.before) for of in all_rows]
    if p.blocks_shape:
        seen = [keys_seen(p, found["blocks"], of, of.before) for of in all_rows]
        keys = [(at[kept], row[kept]) for (at, row), kept in zip(keys, seen, strict=True)]
    for name in ("q", "k", "v"):
        if name in found:
            poison_others(p, name, found[name], queries if name == "q" else keys)


def poison_others(
    p: AttentionProblem, name: str, array: Any, used: Sequence[tuple[Any, Any]]
) -> None:
    """Put NaN into all rows of `array` but those used."""
    import numpy as np

    strides = array.stride() if arrays.is_torch(array) else array.strides
    if any(not s and n > 1 for s, n in zip(strides, array.shape, strict=True)):
        return  # rows share memory
    kind = DTYPES[p.dtype if name == "q" else p.dtype_kv]
    packed = ("packedq" if name == "q" else "packedkv") in p.words
    if packed:
        outer, rows = 1, array.shape[0]
    elif name == "q":
        outer, rows = p.batch, p.q_len
    else:
        outer, rows = (p.pages, p.page_size) if p.paged else (p.batch, p.kv_len)
    keep = np.zeros((outer, rows), bool)
    for at, row in used:
        keep[0 * at if packed else at, row] = True
    if keep.all():
        return
    view = by_row(p, name, array)
    if arrays.is_torch(array) and kind.bytes == 1:  # torch puts bytes by index, and no fp8
        import torch

        value = torch.full((1,), float("nan")).to(array.dtype).view(torch.uint8).item()
        view = view.view(torch.uint8)
    else:
        value = float("nan")
    view[index(view, place(p, name, *np.nonzero(~keep)))] = value
