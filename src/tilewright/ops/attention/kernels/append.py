"""New keys and values are written behind those of the cache; they and Q are rotated.

Idea. A row is one head of one token. A workgroup takes `ROWS` neighbouring rows: first all heads of
a token, then the next token's. The second dimension of the grid says what its rows are: keys,
values, or (with a rotary embedding) queries, which go to a temporary that the attention kernel
reads in place of Q.

Rotation. Element d of a row is turned together with another one of the same row: its neighbour
(`ROTARYI`), or the one half of `rotary_dim` away (`ROTARYH`). Each thread loads both, so no data
moves between threads; the second load finds the first one's cache line. Elements from `rotary_dim`
on stay as they are. Sums are in fp32, and rounded once, when they are stored.

Places. Key t that is new lies in row kv_used + t of the cache; `left_pad` rows at the beginning are
no keys, so its place is kv_used - left_pad + t. Query i has that of key i, or, where every query
sees every key, the place of the first new key. A place that the tables of angles do not have is not
turned.

A cache of fp8 under 16-bit keys: what is stored is the key divided by the scale that the attention
kernel multiplies by; it saturates. Keys that come in fp8 are stored as they are.

Edges. A row at or beyond `kv_len`, or beyond the last of a sequence's pages, is no row of the cache
and is not written, since what lies there is another sequence's or nobody's; nor is one in a page
that the pool does not have. Table entries are read only for rows that are written. Rows of Q beyond
a sequence's are neither read nor written.

What limits it. It reads and writes each new element once; with one token a sequence, as in a
decode loop, it is the launch. It was not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.combine import wide
from tilewright.ops.attention.kernels.lengths import pages_of, queries_of
from tilewright.ops.device.epilogue import rounded
from tilewright.ops.device.lengths import length_at

ROWS = tl.constexpr(8)
"""Rows of a workgroup; the launch knows it as `APPENDED_ROWS`."""


@triton.jit
def _rotated(
    x, base, d, step, place, known, rotary_cos, rotary_sin, rotary_dim, rotary_len,
    ROTARYI: tl.constexpr,
):  # fmt: skip
    """Rows `x`, as fp32, rotated by the angles of `place`.

    base: pointers to the rows' first elements; step: from an element to the next. d: indices of
    elements. place: [rows]. known: which rows there are.
    """
    half = rotary_dim // 2
    if ROTARYI:
        other = d ^ 1
        angle = d // 2
        second = d % 2 == 1
    else:
        second = d >= half
        angle = tl.where(second, d - half, d)
        other = tl.where(second, d - half, d + half)
    turned = (d < rotary_dim)[None, :] & known[:, None]
    there = turned & (place < rotary_len)[:, None]
    at = place.to(tl.int64)[:, None] * half + angle[None, :]
    cos = tl.load(rotary_cos + at, mask=there, other=1.0).to(tl.float32)
    sin = tl.load(rotary_sin + at, mask=there, other=0.0).to(tl.float32)
    y = tl.load(base[:, None] + (other * step)[None, :], mask=turned, other=0.0).to(tl.float32)
    # The first of a pair becomes x·cos - y·sin; the second, of which y is the first, x·cos + y·sin.
    return x * cos + tl.where(second[None, :], y, -y) * sin


@triton.jit
def _cache_rows(
    cache, b, row, head, known, d, strides, entries, pages, kv_heads,
    DIM: tl.constexpr, PAGE: tl.constexpr, VECTORISED: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Pointers to elements `d` of rows `row` of sequence `b` in the cache, and which of the rows
    that are `known` the cache has."""
    row = row.to(tl.int64)
    outer = b.to(tl.int64)
    if PAGE > 0:
        outer = tl.load(entries + row // PAGE, mask=known, other=-1)
        known = (outer >= 0) & (outer < pages)
        outer = outer.to(tl.int64)
        row = row % PAGE
    if VECTORISED:
        # Groups of 16 bytes: of a key's elements, [heads, dim / group, rows, group], and of
        # elements d of several values, [heads, rows / group, dim, group].
        GROUP: tl.constexpr = 128 // cache.dtype.element_ty.primitive_bitwidth
        base = ((outer * kv_heads + head) * DIM) * PAGE
        if VALUES:
            at = (row // GROUP * DIM)[:, None] + d[None, :]
            within = at * GROUP + (row % GROUP)[:, None]
        else:
            at = (d // GROUP * PAGE)[None, :] + row[:, None]
            within = at * GROUP + (d % GROUP)[None, :]
        return cache + base[:, None] + within, known
    base = outer * strides[0] + row * strides[1] + head.to(tl.int64) * strides[2]
    return cache + base[:, None] + (d * strides[3])[None, :], known


@triton.jit
def _write(
    cache, new, scale, strides, b, block, used, skipped, room, rotary_cos, rotary_sin, entries,
    pages, scale_strides, kv_heads, new_kv, rotary_dim, rotary_len, scale_block,
    DIM: tl.constexpr, PAGE: tl.constexpr, VECTORISED: tl.constexpr, SCALED: tl.constexpr,
    BSCALE: tl.constexpr, ROTARYI: tl.constexpr, ROTARYH: tl.constexpr, LARGEST: tl.constexpr,
    VALUES: tl.constexpr,
):  # fmt: skip
    """Rows of new keys, or (VALUES) of new values, to the cache, which has `room` rows for the
    sequence."""
    row = block * ROWS + tl.arange(0, ROWS)
    token, head = row // kv_heads, row % kv_heads
    at = used + token
    known = (row < new_kv * kv_heads) & (at < room)
    d = tl.arange(0, wide(DIM))
    inside = known[:, None] & (d < DIM)[None, :]
    base = new + (b.to(tl.int64) * new_kv * kv_heads + row) * DIM
    x = tl.load(base[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    if (ROTARYI or ROTARYH) and not VALUES:
        x = _rotated(
            x, base, d, 1, at - skipped, known, rotary_cos, rotary_sin, rotary_dim, rotary_len,
            ROTARYI,
        )  # fmt: skip
    if SCALED and new.dtype.element_ty != cache.dtype.element_ty:
        of = b * scale_strides[0] + head * scale_strides[1]
        if BSCALE:
            of += (at - skipped) // scale_block * scale_strides[2]
        x = x / tl.load(scale + of, mask=known, other=1.0)[:, None]
    out, there = _cache_rows(
        cache, b, at, head, known, d, strides, entries, pages, kv_heads, DIM, PAGE, VECTORISED,
        VALUES,
    )  # fmt: skip
    inside = inside & there[:, None]
    tl.store(out, rounded(x, cache.dtype.element_ty, LARGEST), mask=inside)


@triton.jit
def _q_rows(b, i, h, strides):
    """Offsets of rows of Q."""
    return b.to(tl.int64) * strides[0] + i.to(tl.int64) * strides[1] + h.to(tl.int64) * strides[2]


@triton.jit
def _rotate_queries(
    q, rotated_q, b, block, place, q_offsets, q_used, rotary_cos, rotary_sin, given_q_strides,
    q_strides, heads, q_len, total_q, rotary_dim, rotary_len,
    HEAD_DIM: tl.constexpr, MASK: tl.constexpr, PACKEDQ: tl.constexpr, USEDQ: tl.constexpr,
    ROTARYI: tl.constexpr,
):  # fmt: skip
    """Rows of Q, rotated. place: of the first query."""
    start, n_q = queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    row = block * ROWS + tl.arange(0, ROWS)
    i, h = row // heads, row % heads
    known = i < n_q
    places = tl.zeros_like(i) + place
    if MASK != "none":
        places += i
    d = tl.arange(0, wide(HEAD_DIM))
    inside = known[:, None] & (d < HEAD_DIM)[None, :]
    base = q + _q_rows(b, start + i, h, given_q_strides)
    step = given_q_strides[3]
    x = tl.load(base[:, None] + (d * step)[None, :], mask=inside, other=0.0)
    y = _rotated(
        x.to(tl.float32), base, d, step, places, known, rotary_cos, rotary_sin, rotary_dim,
        rotary_len, ROTARYI,
    )  # fmt: skip
    out = rotated_q + _q_rows(b, start + i, h, q_strides)
    tl.store(out[:, None] + d[None, :], y.to(q.dtype.element_ty), mask=inside)


@triton.jit
def append(
    q, rotated_q, k, v, new_k, new_v, rotary_cos, rotary_sin, q_offsets, q_used, kv_used, left_pad,
    page_table, page_list, page_starts, k_scale, v_scale, given_q_strides, q_strides, k_strides,
    v_strides, kv_scale_strides, heads, kv_heads, q_len, kv_len, total_q, new_kv, pages,
    page_entries, rotary_dim, rotary_len, scale_block,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, MASK: tl.constexpr, PAGE: tl.constexpr,
    PACKEDQ: tl.constexpr, USEDQ: tl.constexpr, LEFTPAD: tl.constexpr, PAGETABLE: tl.constexpr,
    PAGELIST: tl.constexpr, VECTORISED: tl.constexpr, LATENT: tl.constexpr, TSCALE: tl.constexpr,
    HSCALE: tl.constexpr, BSCALE: tl.constexpr, ROTARYI: tl.constexpr, ROTARYH: tl.constexpr,
    LARGEST_KV: tl.constexpr,
):  # fmt: skip
    """The grid is (blocks of rows; keys, values, queries; sequences)."""
    SCALED: tl.constexpr = TSCALE or HSCALE or BSCALE
    block, what, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    entries, room = pages_of(
        b, page_table, page_list, page_starts, page_entries, kv_len, PAGE, PAGETABLE, PAGELIST
    )  # fmt: skip
    used, skipped = length_at(kv_used, b, room), 0
    if LEFTPAD:
        skipped = length_at(left_pad, b, used)
    if what == 0:
        _write(
            k, new_k, k_scale, k_strides, b, block, used, skipped, room, rotary_cos, rotary_sin,
            entries, pages, kv_scale_strides, kv_heads, new_kv, rotary_dim, rotary_len, scale_block,
            HEAD_DIM, PAGE, VECTORISED, SCALED, BSCALE, ROTARYI, ROTARYH, LARGEST_KV, False,
        )  # fmt: skip
    elif what == 1:
        if not LATENT:  # its values are the keys' first elements
            _write(
                v, new_v, v_scale, v_strides, b, block, used, skipped, room, rotary_cos, rotary_sin,
                entries, pages, kv_scale_strides, kv_heads, new_kv, rotary_dim, rotary_len,
                scale_block, HEAD_DIM_V, PAGE, VECTORISED, SCALED, BSCALE, ROTARYI, ROTARYH,
                LARGEST_KV, True,
            )  # fmt: skip
    elif ROTARYI or ROTARYH:
        _rotate_queries(
            q, rotated_q, b, block, used - skipped, q_offsets, q_used, rotary_cos, rotary_sin,
            given_q_strides, q_strides, heads, q_len, total_q, rotary_dim, rotary_len, HEAD_DIM,
            MASK, PACKEDQ, USEDQ, ROTARYI,
        )  # fmt: skip
