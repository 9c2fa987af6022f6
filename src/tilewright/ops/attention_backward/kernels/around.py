"""Before and behind `gluon_ws`: what it reads of each row, and dQ from its sums. In Triton.

`row_terms` writes what products begin with: of scores minus LSE, divided by the scale (with a soft
cap or a bias, LSE in units of log2(e), or the numbers of `logarithms`); of their gradients minus
delta, Σ O·dO less the gradient of LSE. They lie in lines of rows, padded to multiples of PAD behind
each sequence with rows that weigh nothing; each sequence begins at a multiple. So the copy engine
brings whole blocks. `queries_of_sums` multiplies the fp32 sums by the scale and rounds them. Both
are bound by the memory's bandwidth; neither was timed on its own.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.keys import pieces, row_places, sequence
from tilewright.ops.attention.kernels.scores import in_base2
from tilewright.ops.attention_backward.kernels.steps import (
    clear_rows,
    load_rows,
    row_numbers,
    store_rows,
)
from tilewright.ops.device.lengths import length_at

SEQUENCES = tl.constexpr(128)
"""That are looked at together."""

LEAST_SCALE = tl.constexpr(1e-30)
"""Stands for a scale of 0, as in `gluon_scores.base2`."""


@triton.jit
def place_of(
    batch, heads, total_q, padded, q_offsets, ROWS: tl.constexpr, PACKEDQ: tl.constexpr,
    PAD: tl.constexpr,
):  # fmt: skip
    """(sequence, head, tile) of this workgroup: ROWS padded rows; and which tile it is of how many
    of a line. The tile is negative where rows lie before the first sequence's."""
    number = tl.program_id(0)
    parts = padded // ROWS
    part = number % parts
    head = number // parts % heads
    b = number // parts // heads
    tile = part
    if PACKEDQ:
        b = part * 0
        for start in range(0, batch, SEQUENCES):
            n = start + tl.arange(0, SEQUENCES)
            begin = length_at(q_offsets, tl.minimum(n, batch - 1), total_q) // PAD + n
            reached = (begin <= part * ROWS // PAD) & (n < batch)
            b = tl.maximum(b, tl.max(tl.where(reached, n, 0), 0))
        tile -= (length_at(q_offsets, b, total_q) // PAD + b) * (PAD // ROWS)
    return b, head, tile, part, parts


@triton.jit
def line_of(b, heads, head, q_start, padded, PACKEDQ: tl.constexpr, PAD: tl.constexpr):
    """Where the padded rows of a head of a sequence begin."""
    if PACKEDQ:
        found = head.to(tl.int64) * padded + (q_start // PAD + b) * PAD
    else:
        found = (b * heads + head).to(tl.int64) * padded
    return found


@triton.jit
def row_terms(
    q, o, do, logs, tops, dlse, dk, dv, log_sums, row_tops, deltas, q_offsets, kv_offsets, q_used,
    o_strides, do_strides, dk_strides, dv_strides, batch, heads, group, q_len, total_q, total_kv,
    padded, accumulate, scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PACKEDQ: tl.constexpr,
    PACKEDKV: tl.constexpr, USEDQ: tl.constexpr, DLSE: tl.constexpr, UNIT: tl.constexpr,
    PAD: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The terms of each row; and zeros in packed rows of dK and dV that no sequence has. The
    arguments are those of the catalogue (`arguments`)."""
    ROWS: tl.constexpr = 32
    K_WIDTHS: tl.constexpr = pieces(HEAD_DIM, 16)
    V_WIDTHS: tl.constexpr = pieces(HEAD_DIM_V, 16)
    b, head, tile, part, parts = place_of(
        batch, heads, total_q, padded, q_offsets, ROWS, PACKEDQ, PAD
    )
    q_start, n_q, _, _ = sequence(
        b, q_offsets, q_offsets, q_used, q_used, q_used, q_len, 0, total_q, 0, 0,
        PACKEDQ, False, USEDQ, False, False, False,
    )  # fmt: skip
    if PACKEDKV:  # noqa: SIM102 (a constant, then values of the device)
        if (PACKEDQ | (b == 0)) & (head % group == 0) & (accumulate == 0):
            end = length_at(kv_offsets, batch, total_kv)
            g = head // group
            clear_rows(dk, dk_strides, end, total_kv, g, part, parts, K_WIDTHS, HEAD_DIM, ROWS)
            clear_rows(dv, dv_strides, end, total_kv, g, part, parts, V_WIDTHS, HEAD_DIM_V, ROWS)
    if (tile < 0) | (tile * ROWS >= tl.cdiv(n_q, PAD) * PAD):
        return
    r = tl.arange(0, ROWS)
    i = tile * ROWS + r
    there = i < n_q
    o_base, o_rows = row_places(o, o_strides, b, q_start, tile * ROWS, r, head)
    do_base, do_rows = row_places(do, do_strides, b, q_start, tile * ROWS, r, head)
    x = load_rows(o_base, o_rows, o_strides, there, V_WIDTHS, HEAD_DIM_V, True, UNIT)
    y = load_rows(do_base, do_rows, do_strides, there, V_WIDTHS, HEAD_DIM_V, True, UNIT)
    found = tl.zeros((ROWS,), tl.float32)
    for n in tl.static_range(len(V_WIDTHS)):
        found += tl.sum(x[n].to(tl.float32) * y[n].to(tl.float32), 1)
    at = row_numbers(b, heads, head, i, q_start, q_len, total_q, PACKEDQ)
    log_sum = tl.load(logs + at, mask=there, other=float("-inf"))
    some = log_sum != float("-inf")
    if DLSE:
        # A row that sees nothing has no weights to change, whatever gradient its LSE is given.
        found -= tl.where(some, tl.load(dlse + at, mask=there, other=0.0), 0.0)
    line = line_of(b, heads, head, q_start, padded, PACKEDQ, PAD)
    log_sum = tl.where(some, log_sum, float("inf"))
    if SOFTCAP or BIAS:
        term = in_base2(log_sum)
    else:
        term = -log_sum / tl.where(scale == 0.0, LEAST_SCALE, scale)
    tl.store(log_sums + line + i, term)
    if BIAS:
        tl.store(row_tops + line + i, tl.load(tops + at, mask=there, other=0.0))
    tl.store(deltas + line + i, tl.where(some, -found, 0.0))


@triton.constexpr_function
def tiles_of(columns):
    """The widths of tiles of sums that hold a row."""
    return (64,) * (columns // 64)


@triton.jit
def queries_of_sums(
    dq_sums, turns, dq, q_offsets, q_used, dq_strides, batch, heads, q_len, total_q, padded,
    accumulate, scale,
    HEAD_DIM: tl.constexpr, PACKEDQ: tl.constexpr, USEDQ: tl.constexpr, SUMS: tl.constexpr,
    PAD: tl.constexpr, STEP: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """dQ from its sums, in tiles of 64×64 as `gluon_ws` writes them; zeros in rows without a
    query. ORDERED: also in blocks of STEP rows that nothing was added to."""
    ROWS: tl.constexpr = 64
    WIDTHS: tl.constexpr = tiles_of(SUMS)
    b, head, tile, part, parts = place_of(
        batch, heads, total_q, padded, q_offsets, ROWS, PACKEDQ, PAD
    )
    q_start, n_q, _, _ = sequence(
        b, q_offsets, q_offsets, q_used, q_used, q_used, q_len, 0, total_q, 0, 0,
        PACKEDQ, False, USEDQ, False, False, False,
    )  # fmt: skip
    _, room, _, _ = sequence(
        b, q_offsets, q_offsets, q_used, q_used, q_used, q_len, 0, total_q, 0, 0,
        PACKEDQ, False, False, False, False, False,
    )  # fmt: skip
    if PACKEDQ:  # noqa: SIM102 (a constant, then a value of the device)
        if accumulate == 0:
            end = length_at(q_offsets, batch, total_q)
            clear_rows(dq, dq_strides, end, total_q, head, part, parts, WIDTHS, HEAD_DIM, ROWS)
    if (tile < 0) | (tile * ROWS >= room):
        return
    r = tl.arange(0, ROWS)
    i = tile * ROWS + r
    first = line_of(b, heads, head, q_start, padded, PACKEDQ, PAD) + tile * ROWS
    there = i < room
    some = i < n_q
    if ORDERED:
        some = some & (tl.load(turns + first // STEP) > 0)
    sums = ()
    for n in tl.static_range(len(WIDTHS)):
        at = dq_sums + (first // ROWS * len(WIDTHS) + n) * (ROWS * 64)
        flat = tl.load(at + tl.arange(0, ROWS * 64))
        parts = tl.permute(tl.reshape(flat, (8, 4, 8, 4, 2, 2)), (1, 4, 2, 0, 3, 5))
        sums += (tl.reshape(parts, (ROWS, 64)),)
    base, places = row_places(dq, dq_strides, b, q_start, tile * ROWS, r, head)
    store_rows(base, places, dq_strides, sums, scale, there, some, accumulate, WIDTHS, HEAD_DIM)
