"""Sums along rows, before and behind the products.

`row_sums` computes delta = Σ O·dO of each row, which is Σ P·dP over its keys, and takes the
gradient of LSE off. `row_totals` adds up, over the rows of a head, what a sink and a slope of ALiBi
gain: in one order, so that the sum repeats. Both are bound by the memory's bandwidth, and
`row_totals` by how few heads there are; nothing was timed yet.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.keys import pieces, row_places, sequence
from tilewright.ops.attention.kernels.scores import in_base2
from tilewright.ops.attention_backward.kernels.steps import load_rows, row_numbers, row_numbers_read


@triton.jit
def row_sums(
    q, o, do, lse, dlse, delta, q_offsets, q_used, o_strides, do_strides, heads, q_len, total_q,
    HEAD_DIM_V: tl.constexpr, PACKEDQ: tl.constexpr, USEDQ: tl.constexpr, DLSE: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """delta [rows], as LSE lies. The arguments are those of the catalogue (`arguments`)."""
    ROWS: tl.constexpr = 32
    WIDTHS: tl.constexpr = pieces(HEAD_DIM_V, 16)
    tiles = tl.cdiv(q_len, ROWS)
    tile = tl.program_id(0) % tiles
    head = tl.program_id(0) // tiles % heads
    b = tl.program_id(0) // tiles // heads
    q_start, n_q, _, _ = sequence(
        b, q_offsets, q_offsets, q_used, q_used, q_used, q_len, 0, total_q, 0, 0,
        PACKEDQ, False, USEDQ, False, False, False,
    )  # fmt: skip
    if tile * ROWS >= n_q:
        return
    r = tl.arange(0, ROWS)
    i = tile * ROWS + r
    there = i < n_q
    o_base, o_rows = row_places(o, o_strides, b, q_start, tile * ROWS, r, head)
    do_base, do_rows = row_places(do, do_strides, b, q_start, tile * ROWS, r, head)
    x = load_rows(o_base, o_rows, o_strides, there, WIDTHS, HEAD_DIM_V, True, UNIT)
    y = load_rows(do_base, do_rows, do_strides, there, WIDTHS, HEAD_DIM_V, True, UNIT)
    found = tl.zeros((ROWS,), tl.float32)
    for n in tl.static_range(len(WIDTHS)):
        # dO as it is multiplied by V, so that dP and delta cancel where they are equal.
        z = y[n].to(q.dtype.element_ty).to(tl.float32)
        found += tl.sum(x[n].to(tl.float32) * z, 1)
    at = row_numbers(b, heads, head, i, q_start, q_len, total_q, PACKEDQ)
    if DLSE:
        # A row that sees nothing has no weights to change, whatever gradient its LSE is given.
        some = tl.load(lse + at, mask=there, other=float("-inf")) != float("-inf")
        found -= tl.where(some, tl.load(dlse + at, mask=there, other=0.0), 0.0)
    tl.store(delta + at, found, mask=there)


@triton.jit
def row_totals(
    logs, tops, delta, distances, sinks, dsinks, dslopes, q_offsets, q_used, batch, heads, q_len,
    total_q, slopes_stride, accumulate,
    BIAS: tl.constexpr, PACKEDQ: tl.constexpr, USEDQ: tl.constexpr, DSINKS: tl.constexpr,
    DSLOPES: tl.constexpr,
):  # fmt: skip
    """The gradients of a head's sink and slope: a workgroup for each head, or, with slopes for each
    sequence, for each head of each sequence."""
    ROWS: tl.constexpr = 1024
    head = tl.program_id(0) % heads
    own = tl.program_id(0) // heads
    of_sinks = tl.zeros((ROWS,), tl.float32)
    of_slopes = tl.zeros((ROWS,), tl.float32)
    sink = 0.0
    if DSINKS:
        sink = in_base2(tl.load(sinks + head))
    for b in range(batch):
        q_start, n_q, _, _ = sequence(
            b, q_offsets, q_offsets, q_used, q_used, q_used, q_len, 0, total_q, 0, 0,
            PACKEDQ, False, USEDQ, False, False, False,
        )  # fmt: skip
        if DSLOPES:
            counts = (own == b) | (slopes_stride == 0)
        for i0 in range(0, n_q, ROWS):
            i = i0 + tl.arange(0, ROWS)
            there = i < n_q
            at = row_numbers(b, heads, head, i, q_start, q_len, total_q, PACKEDQ)
            if DSINKS:
                log_sum, row_sum = row_numbers_read(logs, tops, delta, at, there, BIAS)
                share = sink + tl.zeros((ROWS,), tl.float32)
                for n in tl.static_range(len(log_sum)):
                    share = share - log_sum[n]
                # A sink of -inf has no weight, also where LSE is -inf.
                share = tl.where(sink == float("-inf"), 0.0, tl.exp2(share))
                of_sinks -= share * row_sum
            if DSLOPES:
                of_slopes += tl.load(distances + at, mask=there & counts, other=0.0)
    if DSINKS:  # noqa: SIM102 (a constant, then a value of the device)
        if own == 0:
            gained = tl.sum(of_sinks, 0)
            if accumulate != 0:
                gained += tl.load(dsinks + head)
            tl.store(dsinks + head, gained)
    if DSLOPES:
        to = dslopes + own * slopes_stride + head
        lost = tl.sum(of_slopes, 0)
        if accumulate != 0:
            lost -= tl.load(to)
        tl.store(to, -lost)
