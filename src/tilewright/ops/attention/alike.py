"""Which problems share a row of a table, which rows may answer for other problems, and which
problems one batch-invariant kernel must serve.

No kernel is made for lengths or for a batch: any that is right for one problem is right for each
problem of the same features, head dims and alignment. So a row may answer for all sizes; the best
tile depends on them slowly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tilewright.ops.attention import stated
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.mask import CORNERS
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.nearby import Invariance, Nearby
from tilewright.ops.problem import changed
from tilewright.verdict import YES, Verdict, no

WIDEST = 16
"""Bytes of alignment that kernels are made for; for less, they load element by element."""

CHOSEN_BATCH = 16
CHOSEN_QUERIES, CHOSEN_KEYS = 256, 8192
"""A kernel for every batch is chosen for these sizes: these lengths where sequences have their
own, so that the longest of a batch does not decide."""

SERVED = ((1, 1, 1), (129, 8193, 131073))
"""(batch, queries, keys) that such a kernel must serve too."""


def tuning_key(p: AttentionProblem) -> AttentionProblem:
    """`p` with one value in each field that does not decide which kernel is best: where its arrays
    lie, how many pages there are, the value of a cap, of a share of dropout, of angles, of the
    density of a mask of blocks. Its own key
    is itself."""
    return p.once(_tuning_key)


def _tuning_key(p: AttentionProblem) -> AttentionProblem:
    sizes: dict[str, Any] = dict.fromkeys(stated.STRIDES, ())
    sizes |= {"layout": "bshd", "kv_layout": "bshd"} | dict.fromkeys(stated.SWITCHES, False)
    if p.q_len == p.kv_len:
        sizes["corner"] = CORNERS[0]
    if p.softcap:
        sizes["softcap"] = 1.0
    if p.dropout:
        sizes["dropout"] = 0.5
    if p.density:
        sizes["density"] = 0.0
    if p.rotary_dim:
        sizes |= {"rotary_dim": p.head_dim - p.head_dim % 2, "rotary_len": p.kv_len}
    if p.paged:
        sizes |= _pages(p, p.batch, p.kv_len)
    sizes["alignment"] = WIDEST if p.alignment >= WIDEST else 1
    if all(getattr(p, name) == value for name, value in sizes.items()):
        return p
    return replace(p, **sizes)


def nearby(p: AttentionProblem) -> Iterator[Nearby]:
    """The problem with lengths rounded up to powers of two, and then the batch too."""
    lengths = changed(p, _sized(p, p.batch, _power(p.q_len), _power(p.kv_len), averages=_power))
    said = f"lengths padded to {lengths.q_len}×{lengths.kv_len}"
    found = tuning_key(lengths)
    if found != tuning_key(p):
        yield Nearby(found, said)
    if (batch := _power(p.batch)) != p.batch:
        more = changed(p, _sized(p, batch, lengths.q_len, lengths.kv_len, averages=_power))
        yield Nearby(tuning_key(more), f"{said}, batch to {batch}")


def invariance(p: AttentionProblem) -> Invariance:
    """The problems that the kernel for every batch must serve."""
    own_q = bool(p.words & {"packedq", "usedq"})
    own_kv = bool(p.words & {"packedkv", "usedkv"})

    def made(batch: int, queries: int, keys: int) -> AttentionProblem:
        q_len, kv_len = queries if own_q else p.q_len, keys if own_kv else p.kv_len
        return replace(p, **_sized(p, batch, q_len, kv_len))

    problems = (made(CHOSEN_BATCH, CHOSEN_QUERIES, CHOSEN_KEYS), *(made(*one) for one in SERVED))
    lengths = [f"{CHOSEN_QUERIES} queries"] * own_q + [f"{CHOSEN_KEYS} keys"] * own_kv
    over = "every batch" + (" and length" if lengths else "")
    return Invariance(over, ", ".join([f"batch = {CHOSEN_BATCH}", *lengths]), problems)


def invariant(config: AttentionConfig) -> Verdict:
    """Whether a sequence's rows have the same bits whatever else is computed at once.

    A row adds its keys up in steps from the first; steps that a mask hides from it change nothing.
    Splits of a fixed length cut a sequence's keys by their places alone.
    """
    if config.library_engine:
        return no("library", "cuDNN does not say that rows have the same bits in every batch")
    if config.scheduler == "split" and not config.split_len:
        return no("scheduler", "cuts keys into as many parts as fill the device, and so by batch")
    return YES


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length() if size > 1 else size


def _plain(p: AttentionProblem) -> dict[str, Any]:
    """Contiguous arrays, as aligned as `p`'s."""
    return dict.fromkeys(stated.STRIDES, ())


def _pages(p: AttentionProblem, batch: int, kv_len: int) -> Mapping[str, int]:
    entries = -(-kv_len // p.page_size)
    return {
        "pages": batch * entries,
        "page_entries": batch * entries if "pagelist" in p.words else entries,
    }


def _same(size: int) -> int:
    return size


def _sized(
    p: AttentionProblem, batch: int, q_len: int, kv_len: int, averages: Any = _same
) -> dict[str, Any]:
    """The fields of `p` that change with these sizes, in contiguous arrays.

    averages: from the average length of packed rows to the new one, at most the longest.
    """
    found: dict[str, Any] = {**_plain(p), "batch": batch, "q_len": q_len, "kv_len": kv_len}
    n_q, n_kv = (averages(n) for n in p.lengths)
    if "packedq" in p.words:
        found["total_q"] = batch * min(n_q, q_len)
    if "packedkv" in p.words:
        found["total_kv"] = batch * min(n_kv, kv_len)
    if p.paged:
        found |= _pages(p, batch, kv_len)
    if p.bias_shape and p.bias_shape[0] != 1:
        found["bias_shape"] = (batch, *p.bias_shape[1:])
    if p.blocks_shape and p.blocks_shape[0] != 1:
        found["blocks_shape"] = (batch, p.blocks_shape[1])
    if p.rotary_dim:
        found["rotary_len"] = kv_len
    return found
