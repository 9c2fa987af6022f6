"""Tiles of jagged sequences, and which keys a row of a sequence sees.

Sequences lie behind one another, and begin at offsets. A sequence of n rows has at its beginning a
prefix, of rows that see all history, and at its end targets, which see the history and themselves
alone. History is all before the targets, the prefix included.

`max_attn_len` and `min_full_attn_seq_len` count places: the prefix is one place together, and so
are the targets (the reference's ids: see `declared.attention._masks`).
"""

import triton
import triton.language as tl

from tilewright.ops.attention_backward.kernels.order import sequences_by_length
from tilewright.ops.device.lengths import length_at, range_at

CHUNK = tl.constexpr(256)
"""Sequences that a workgroup looks at together to find its own."""


@triton.jit
def order_of_sequences(offsets, order, bounds, rows, TILE: tl.constexpr):
    """order [2, batch]: see `sequences_by_length`."""
    sequences_by_length(
        order, offsets, offsets, offsets, offsets, bounds - 1, rows, rows, rows, rows, TILE,
        True, True, False, False,
    )  # fmt: skip


@triton.jit
def tile_of(order, batch, place):
    """The sequence that tile `place` is of, and the tile's number there. Tiles of the longest
    sequence come first. Those behind the last have a number behind its tiles."""
    rank = place * 0 - 1
    for start in range(0, batch, CHUNK):
        n = start + tl.arange(0, CHUNK)
        begins = tl.load(order + batch + n, mask=n < batch, other=0)
        rank += tl.sum(((begins <= place) & (n < batch)).to(tl.int32), 0)
    return tl.load(order + rank), place - tl.load(order + batch + rank)


@triton.jit
def sequence_of(
    b, offsets, num_targets, rows, PREFIX: tl.constexpr, CAUSAL: tl.constexpr, TARGETS: tl.constexpr
):  # fmt: skip
    """Of sequence `b`: its first row, its rows, those of the prefix, and those of the history. All
    rows of a sequence that is not causal are its prefix."""
    start, n = range_at(offsets, b, rows)
    prefix = n
    if CAUSAL:
        prefix = tl.minimum(n, PREFIX)
    history = n
    if TARGETS:
        history = n - length_at(num_targets, b, n - prefix)
    return start, n, prefix, history


@triton.jit
def rows_at(x, row_stride, head_stride, first, r, head):
    """A pointer, and how far from there rows `first` + `r` of a head are: 32 bits for each thread
    to compute with."""
    x += first.to(tl.int64) * row_stride + head.to(tl.int64) * head_stride
    return x, r * row_stride.to(tl.int32)


@triton.jit
def seen(i, j, prefix, history, WINDOW: tl.constexpr, FULL: tl.constexpr):
    """[queries, keys]: whether rows `i` see rows `j` of a sequence."""
    found = j[None, :] < i[:, None]
    if WINDOW > 0:
        before = tl.maximum(prefix - 1, 0)
        at = tl.minimum(i, history) - before
        near = at[:, None] - tl.maximum(j - before, 0)[None, :] <= WINDOW
        if FULL > 0:
            near = near | (i >= history - FULL)[:, None]
        found = found & near
    found = found | (i < prefix)[:, None]
    return (found & (j < history)[None, :]) | (i[:, None] == j[None, :])


@triton.jit
def first_seen(i, prefix, history, WINDOW: tl.constexpr):
    """The first key that row `i`, behind the prefix, sees under a window."""
    before = tl.maximum(prefix - 1, 0)
    begin = tl.minimum(i, history) - WINDOW
    return tl.where(begin > before, begin, 0)


@triton.jit
def last_seeing(j, n, prefix, history, WINDOW: tl.constexpr):
    """The number of rows up to the last that sees key `j`, of the history, under a window."""
    before = tl.maximum(prefix - 1, 0)
    end = tl.maximum(j, before) + WINDOW
    return tl.where(end >= history, n, end + 1)


@triton.jit
def step_at(t, runs, STEP: tl.constexpr):
    """Where step `t` begins, of runs of steps one behind the other: (first row, steps) each."""
    at = t * 0
    before = t * 0
    for n in tl.static_range(len(runs)):
        begin, count = runs[n]
        at = tl.where(t >= before, begin + (t - before) * STEP, at)
        before += count
    return at


@triton.jit
def steps_in(begin, end, STEP: tl.constexpr):
    """How many steps there are from `begin` to `end`; none where it ends before it begins."""
    return (tl.maximum(end - begin, 0) + STEP - 1) // STEP


@triton.jit
def up(x, STEP: tl.constexpr):
    """`x`, or the next multiple of STEP."""
    return (x + STEP - 1) // STEP * STEP


@triton.jit
def keys_of_tile(
    i0, i1, prefix, history, STEP: tl.constexpr, WINDOW: tl.constexpr, FULL: tl.constexpr
):  # fmt: skip
    """The steps of keys that rows `i0` to `i1` of a sequence need: (begin, end) of those that all
    rows see whole, and the runs of steps under a mask, with their number in all."""
    low = i0 * 0
    whole = i0 * 0
    whole_end = tl.minimum(i0, history)
    end = tl.minimum(i1 + 1, history)
    if WINDOW > 0:
        low = first_seen(i0, prefix, history, WINDOW)
        whole = first_seen(i1, prefix, history, WINDOW)
        if FULL > 0:
            low = tl.where(i1 >= history - FULL, 0, low)
            whole = tl.where(i0 >= history - FULL, 0, whole)
    if i0 < prefix:  # its last rows may be behind the prefix
        low = low * 0
        whole = whole * 0
        whole_end = tl.where(i1 < prefix, history, 0)
        end = history
    low = low // STEP * STEP
    whole = tl.minimum(up(whole, STEP), up(end, STEP))
    whole_end = tl.maximum(whole, whole_end // STEP * STEP)
    rights = steps_in(whole_end, end, STEP)
    own = tl.maximum(whole_end + rights * STEP, i0 // STEP * STEP)  # targets see themselves
    lefts = steps_in(low, whole, STEP)
    owns = steps_in(own, i1 + 1, STEP)
    runs = ((low, lefts), (whole_end, rights), (own, owns))
    return whole, whole_end, runs, lefts + rights + owns


@triton.jit
def queries_of_tile(
    j0, j1, n, prefix, history, STEP: tl.constexpr, WINDOW: tl.constexpr, FULL: tl.constexpr
):  # fmt: skip
    """The same of rows that keys `j0` to `j1` of a sequence are seen by."""
    low = j0 // STEP * STEP
    whole = tl.maximum(j1 + 1, prefix)
    whole_end = n
    end = n
    if WINDOW > 0:
        whole_end = last_seeing(j0, n, prefix, history, WINDOW)
        end = last_seeing(tl.minimum(j1, history - 1), n, prefix, history, WINDOW)
        end = tl.maximum(end, j1 + 1)
    if prefix == n:
        low = low * 0
        whole = whole * 0
    if j1 >= history:  # some of the keys are targets
        whole_end = whole_end * 0
    firsts = steps_in(0, tl.minimum(prefix, low), STEP)
    if j0 >= history:
        end = j1 + 1
        firsts = firsts * 0
    whole = tl.minimum(up(whole, STEP), up(end, STEP))
    whole_end = tl.maximum(whole, whole_end // STEP * STEP)
    lefts = steps_in(low, whole, STEP)
    rights = steps_in(whole_end, end, STEP)
    fulls_at = whole_end + rights * STEP
    fulls = j0 * 0
    if FULL > 0:  # the last rows see every key of the history
        fulls_at = tl.maximum(fulls_at, (history - FULL) // STEP * STEP)
        fulls = tl.where(j0 < history, steps_in(fulls_at, n, STEP), 0)
    runs = ((j0 * 0, firsts), (low, lefts), (whole_end, rights), (fulls_at, fulls))
    return whole, whole_end, runs, firsts + lefts + rights + fulls
