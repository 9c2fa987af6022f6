"""Which rows of Q, K and V a sequence has, in Triton and Gluon kernels. Lengths and pages come from
the device, and are clamped to what the operands hold (`ops.device.lengths`)."""

import triton
import triton.language as tl

from tilewright.ops.device.lengths import bounded, length_at, range_at


@triton.jit
def queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ: tl.constexpr, USEDQ: tl.constexpr):
    """(first row, number of rows) of the queries of sequence `b`: at most `q_len`."""
    begin = 0
    rows = q_len
    if PACKEDQ:
        begin, room = range_at(q_offsets, b, total_q)
        rows = tl.minimum(room, q_len)
    if USEDQ:
        rows = length_at(q_used, b, rows)
    return begin, rows


@triton.jit
def keys_of(
    b, kv_len, total_kv, new_kv, kv_offsets, kv_used, PACKEDKV: tl.constexpr, USEDKV: tl.constexpr,
    APPEND: tl.constexpr,
):  # fmt: skip
    """(first row, number of rows) of the keys of sequence `b`: at most `kv_len`, rows that are
    appended included."""
    begin = 0
    rows = kv_len
    if PACKEDKV:
        begin, room = range_at(kv_offsets, b, total_kv)
        rows = tl.minimum(room, kv_len)
    most = rows
    if USEDKV:
        rows = length_at(kv_used, b, most)
    if APPEND:
        rows = tl.minimum(rows + new_kv, most)
    return begin, rows


@triton.jit
def pages_of(
    b, page_table, page_list, page_starts, page_entries, kv_len, PAGE: tl.constexpr,
    PAGETABLE: tl.constexpr, PAGELIST: tl.constexpr,
):  # fmt: skip
    """(where the list of a sequence's pages begins, the most keys that it has: those of its
    entries, up to `kv_len`). Without pages anything, and `kv_len`."""
    entries = page_table
    room = kv_len
    if PAGETABLE:
        entries = page_table + b.to(tl.int64) * page_entries
        room = _rows_of(page_entries, kv_len, PAGE)
    elif PAGELIST:
        first, count = range_at(page_starts, b, page_entries)
        entries = page_list + first
        room = _rows_of(count, kv_len, PAGE)
    return entries, room


@triton.jit
def _rows_of(count, most, PAGE: tl.constexpr):
    """Rows of `count` pages, up to `most`. The product is taken only where it is no more."""
    return tl.where(count > most // PAGE, most, count * PAGE)


@triton.jit
def page_at(entries, at, pages):
    """Entry `at` of a list of pages: a page of the pool's `pages`, the nearest to what it says."""
    return bounded(tl.load(entries + at), pages - 1)
